"""Time for a ledger: milliseconds since 1970 that never run backwards while a process lives."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "steady_clock"]

Clock = Callable[[], int]
"""Milliseconds since 1970."""


def steady_clock() -> Clock:
    """A clock that is set once, when it is made, and then runs by itself.

    Somebody who sets the machine's clock changes no hold of a running process. After a restart holds may expire earlier
    or later than they said; money is safe in both cases, because a late outcome asks for money anew.
    """
    started_at, began = time.time_ns() // 1_000_000, time.monotonic_ns()
    return lambda: started_at + (time.monotonic_ns() - began) // 1_000_000

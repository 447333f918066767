"""Ctrl-C between two steps of long work: raised inside a compiler or a garbage collection, it gets lost or crashes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["heeding_interrupts", "stop_if_interrupted"]

_pressed: list[int] = []


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Within, the first Ctrl-C is only remembered, for `stop_if_interrupted`; the second is as ever."""
    _pressed.clear()
    before = signal.signal(signal.SIGINT, _press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed; called between steps, where it is safe to stop."""
    if _pressed:
        raise KeyboardInterrupt


def _press(number: int, frame: FrameType | None) -> None:
    if _pressed:
        raise KeyboardInterrupt
    _pressed.append(number)
    print("\nstopping after this step, nothing will be written; Ctrl-C again stops at once", file=sys.stderr)

"""How far a pass over parts is: parts done, rows a second, time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from redenvelope.progress import Stages

__all__ = ["paced"]

Result = TypeVar("Result")


def paced(
    stages: Stages, stage: str, results: Iterable[Result], total: int, rows: Callable[[Result], int]
) -> Iterator[Result]:
    """The same results; after each it is told how fast it goes, and how long it will take still."""
    began, done = time.monotonic(), 0
    for number, result in enumerate(results, start=1):
        done += rows(result)
        seconds = max(time.monotonic() - began, 1e-9)
        left = seconds / number * (total - number)
        stages.going_on(stage, number, total, f"{done / seconds:,.0f} rows a second, {_words(left)} left: part")
        yield result


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"

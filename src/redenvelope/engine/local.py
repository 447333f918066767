"""Threads of this process, a few partitions at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from redenvelope.errors import UsageError

__all__ = ["LocalEngine", "cores"]

Part = TypeVar("Part")
Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may use; fewer where the usual variable says so."""
    present = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(present, int(allowed)) if allowed.isdigit() and int(allowed) > 0 else present


@dataclass(frozen=True)
class LocalEngine:
    """Works with threads, and holds no more parts and results than it has threads."""

    threads: int | None = None
    """None is one a core."""

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"an engine needs at least one thread, not {self.threads}")

    def map(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """See Engine."""
        threads = self.threads or cores()
        if threads == 1:
            yield from map(work, parts)
            return
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(work, part))
                    if len(waiting) > threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

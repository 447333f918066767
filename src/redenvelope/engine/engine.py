"""Where a pass over partitions runs: each is worked on alone, and the results come back in the partitions' order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from redenvelope.errors import UsageError

Part = TypeVar("Part")
Result = TypeVar("Result")


class Engine(Protocol):
    """Maps work over partitions. Results are merged by the caller, in order, so that no number of workers changes a
    bit of what comes out."""

    def map(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The result of every part, in the order of the parts; what the work raises is raised here."""
        ...


# Threads of this process, a few partitions at a time.


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


# Engines by the names that the command line takes.


def engine_named(name: str) -> Engine:
    """`local`, `ray` for a cluster on this machine, `ray://HOST:PORT`, `ray:auto` or `ray:HOST:PORT` for another."""
    if name == "local":
        return LocalEngine()
    kind, _, address = name.partition(":")
    if kind != "ray" or (":" in name and not address.strip("/")):
        raise UsageError(
            f"there is no engine {name!r}; use local, ray (a cluster on this machine), or ray://HOST:PORT, "
            "ray:HOST:PORT or ray:auto for one that is running"
        )
    from redenvelope.engine.ray import RayEngine

    return RayEngine(None if not address else name if address.startswith("//") else address)


# Parts that are opened where they are worked on: only their names travel.


@dataclass(frozen=True)
class Opened:
    """An engine whose parts hold several pieces: the work is asked of every piece of a part, where the part is."""

    engine: Engine
    pieces: Callable[[Any], Iterable[Any]]
    """The pieces of a part, in their order."""

    def map(self, work: Callable[[Any], Result], parts: Iterable[Any]) -> Iterator[Result]:
        """The results of all pieces of all parts, in order; see Engine."""
        for results in self.engine.map(partial(_each, work, self.pieces), parts):
            yield from results


def _each(work: Callable[[Any], Result], pieces: Callable[[Any], Iterable[Any]], part: Any) -> list[Result]:
    return [work(piece) for piece in pieces(part)]

"""Engines that map work over partitions, and return the results in the partitions' order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from threadpoolctl import threadpool_limits

from redenvelope.errors import UsageError

Part = TypeVar("Part")
Result = TypeVar("Result")


class Engine(Protocol):
    """Maps work over partitions. Results are merged by the caller, in order, so that no number of workers changes a
    bit of what comes out."""

    def map(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The result of every part, in the order of the parts; what the work raises is raised here."""
        ...


def cores() -> int:
    """Cores that this process may use, at most OMP_NUM_THREADS."""
    present = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(present, int(allowed)) if allowed.isdigit() and int(allowed) > 0 else present


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products of numpy in one thread each, while it lasts; also a decorator.

    Large products run in XLA, and partitions in threads of our own. Threads of BLAS beside them wait for each other
    without sleeping: of a fit of 250,000 rows on two busy cores, they took 40 of 100 processor seconds.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@dataclass(frozen=True)
class LocalEngine:
    """Works with threads, and holds no more parts and results than it has threads."""

    threads: int | None = None
    """None is one per core."""

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


def engine_named(name: str) -> Engine:
    """`local`, `ray` for a cluster on this machine, `ray://HOST:PORT`, `ray:auto` or `ray:HOST:PORT` for another."""
    if name == "local":
        return LocalEngine()
    kind, _, address = name.partition(":")
    if kind != "ray" or (":" in name and not address.strip("/")):
        raise UsageError(
            f"unknown engine {name!r}; use local, ray (a cluster on this machine), or ray://HOST:PORT, "
            "ray:HOST:PORT or ray:auto for one that is running"
        )
    from redenvelope.engine.ray import RayEngine

    return RayEngine(None if not address else name if address.startswith("//") else address)


@dataclass(frozen=True)
class Opened:
    """An engine whose parts are opened where the work runs: the work is done on every piece of a part."""

    engine: Engine
    pieces: Callable[[Any], Iterable[Any]]
    """The pieces of a part, in their order."""

    def map(self, work: Callable[[Any], Result], parts: Iterable[Any]) -> Iterator[Result]:
        """The results of all pieces of all parts, in order; see Engine."""
        for results in self.engine.map(partial(_each, work, self.pieces), parts):
            yield from results


def _each(work: Callable[[Any], Result], pieces: Callable[[Any], Iterable[Any]], part: Any) -> list[Result]:
    return [work(piece) for piece in pieces(part)]

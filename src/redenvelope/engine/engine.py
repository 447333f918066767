"""Engines that map work over partitions, in threads or on Ray, and yield the results in the partitions' order."""

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
    """Maps work over partitions. The caller merges results in order, so the number of workers never changes a bit."""

    def map(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The result of every part, in the order of the parts; exceptions of the work are raised here."""
        ...


def cores() -> int:
    """Cores that this process may use, at most OMP_NUM_THREADS."""
    present = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(present, int(allowed)) if allowed.isdigit() and int(allowed) > 0 else present


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block, numpy's matrix products use one thread each; also usable as a decorator.

    Large products run in XLA, and partitions in this package's own threads. BLAS threads beside them would spin while
    they wait for each other: in a fit of 250,000 rows on two busy cores, they took 40 of 100 processor seconds.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@dataclass(frozen=True)
class LocalEngine:
    """Runs work in threads; at most one more part than there are threads is in progress or waiting."""

    threads: int | None = None
    """None: one per core."""

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
    """The engine for `local`, `ray` (on this machine), `ray://HOST:PORT`, `ray:auto` or `ray:HOST:PORT`."""
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
    """An engine that splits each part into pieces where the work runs, and works on every piece."""

    engine: Engine
    pieces: Callable[[Any], Iterable[Any]]
    """The pieces of a part, in order."""

    def map(self, work: Callable[[Any], Result], parts: Iterable[Any]) -> Iterator[Result]:
        """The results of all pieces of all parts, in order; see Engine."""
        for results in self.engine.map(partial(_each, work, self.pieces), parts):
            yield from results


def _each(work: Callable[[Any], Result], pieces: Callable[[Any], Iterable[Any]], part: Any) -> list[Result]:
    return [work(piece) for piece in pieces(part)]

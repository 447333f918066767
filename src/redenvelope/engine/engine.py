"""Where a pass over partitions runs: each is worked on alone, and the results come back in the partitions' order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

__all__ = ["Engine"]

Part = TypeVar("Part")
Result = TypeVar("Result")


class Engine(Protocol):
    """Maps work over partitions. Results are merged by the caller, in order, so that no number of workers changes a
    bit of what comes out."""

    def map(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The result of every part, in the order of the parts; what the work raises is raised here."""
        ...

"""Statistics of parts that merge into the statistics of the whole: of a log's parts, a lake's, a batch's."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Protocol, Self, TypeVar


class Mergeable(Protocol):
    """Statistics of some rows or users; those of disjoint parts merge."""

    def merge(self, other: Self) -> Self:
        """The statistics of both parts, this one first."""
        ...


Statistics = TypeVar("Statistics", bound=Mergeable)


def merged(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of all parts, at least one. Merged in their order, so that floats round the same way."""
    return reduce(lambda first, second: first.merge(second), parts)


def merged_known(*parts: Statistics | None) -> Statistics | None:
    """The statistics of the parts that have any; None where none has."""
    known = [part for part in parts if part is not None]
    return merged(known) if known else None

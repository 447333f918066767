"""Statistics of parts (of a log, a lake or a batch) that merge into the statistics of the whole, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import and_, or_
from typing import Any, Protocol, Self, TypeVar


class Mergeable(Protocol):
    """Statistics of some rows or users that merge with those of a disjoint part."""

    def merge(self, other: Self) -> Self:
        """The statistics of both parts, this one first."""
        ...


Statistics = TypeVar("Statistics", bound=Mergeable)


def merged(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of all parts (at least one), merged in order, so that floats round the same way every time."""
    return reduce(lambda first, second: first.merge(second), parts)


def merged_known(*parts: Statistics | None) -> Statistics | None:
    """The statistics of the parts that are not None, merged; None if all are None."""
    known = [part for part in parts if part is not None]
    return merged(known) if known else None


@dataclass(frozen=True, eq=False)
class FieldwiseSums:
    """Statistics whose fields merge one by one.

    Values with a `merge` method merge by it, mappings merge key by key, and numbers, arrays and tuples are added. A
    field's metadata may choose another way: `low: float = field(metadata=MINIMUM)`.
    """

    def merge(self, other: Self) -> Self:
        """See Mergeable."""
        ways = {part.name: part.metadata.get("merge", _added) for part in fields(self)}
        return replace(self, **{name: way(getattr(self, name), getattr(other, name)) for name, way in ways.items()})


def _same(one: Any, _: Any) -> Any:
    return one


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, Mapping):
        return {key: _added(value, other[key]) for key, value in one.items()}
    return one.merge(other) if hasattr(one, "merge") else one + other


MINIMUM, MAXIMUM, ANY, ALL = ({"merge": way} for way in (min, max, or_, and_))
SAME = {"merge": _same}
"""Ways to merge a field other than by addition; with `SAME`, the field is equal in all parts."""

"""One transaction's way to the database: the same statements for both, with ? where a value stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

__all__ = ["Session", "chunks", "marks"]

_CHUNK = 500


class Session(Protocol):
    """Statements inside of one transaction."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        ...

    def many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """A statement for each row of values."""
        ...


def marks(count: int) -> str:
    """So many values, for IN (…)."""
    return ", ".join("?" * count)


def chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Values in pieces that one statement can take."""
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]

"""What a condition says of rows: true, false, or unknown where a value is missing.

Unknown is carried through `and`, `or` and `not` as in SQL and polars. A condition holds where it is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Among",
    "Column",
    "Compare",
    "Condition",
    "Either",
    "Every",
    "Missing",
    "Negation",
    "RowColumns",
    "Texts",
    "Verdict",
    "columns_of",
    "holds",
]

BoolArray = NDArray[np.bool_]
Kind = Literal["number", "text"]

_SIGNS = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


class Texts(NamedTuple):
    """A column of text in some rows."""

    codes: NDArray[np.integer]
    """[rows], index into the labels; −1 is missing, any other number a label that is not among them."""
    labels: tuple[str, ...]


class RowColumns(Protocol):
    """The columns of some rows, by name."""

    def numbers(self, name: str) -> NDArray[np.float32]:
        """A column of numbers (true is 1), [rows]; NaN is missing."""
        ...

    def texts(self, name: str) -> Texts:
        """A column of text."""
        ...

    def missing(self, name: str) -> BoolArray:
        """Where a column of either kind has no value, [rows]."""
        ...


class Verdict(NamedTuple):
    """What is known of some rows; where neither holds, nothing is."""

    true: BoolArray
    """[rows]"""
    false: BoolArray
    """[rows]"""


class Condition(Protocol):
    """A question about single rows."""

    def verdict(self, rows: RowColumns) -> Verdict:
        """What it says of some rows."""
        ...

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """The columns it looks at, and what kind each must be; None is either."""
        ...


def holds(condition: Condition, rows: RowColumns) -> BoolArray:
    """Where a condition is true, [rows]."""
    return condition.verdict(rows).true


def columns_of(condition: Condition) -> frozenset[str]:
    """The names of the columns that a condition looks at."""
    return frozenset(name for name, _ in condition.uses())


@dataclass(frozen=True)
class Column:
    """A column by itself: true where it is 1."""

    name: str

    def verdict(self, rows: RowColumns) -> Verdict:
        """See Condition."""
        values = rows.numbers(self.name)
        known = ~np.isnan(values)
        return Verdict(known & (values != 0), known & (values == 0))

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """See Condition."""
        yield self.name, "number"


@dataclass(frozen=True)
class Compare:
    """A column against a number, a text, or another column of numbers."""

    left: str
    sign: str
    right: float | str | Column

    def verdict(self, rows: RowColumns) -> Verdict:
        """See Condition."""
        if isinstance(self.right, str):
            found = _is_text(rows.texts(self.left), (self.right,))
            return found if self.sign == "==" else Verdict(found.false, found.true)
        # As features are held: the same number is the same number wherever it was written.
        left = rows.numbers(self.left)
        right = rows.numbers(self.right.name) if isinstance(self.right, Column) else np.float32(self.right)
        known = ~(np.isnan(left) | np.isnan(right))
        said = np.asarray(_SIGNS[self.sign](left, right))
        return Verdict(known & said, known & ~said)

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """See Condition."""
        yield self.left, "text" if isinstance(self.right, str) else "number"
        if isinstance(self.right, Column):
            yield self.right.name, "number"


@dataclass(frozen=True)
class Among:
    """A column that is one of some numbers, or of some texts."""

    name: str
    values: tuple[float, ...] | tuple[str, ...]

    def verdict(self, rows: RowColumns) -> Verdict:
        """See Condition."""
        texts = tuple(value for value in self.values if isinstance(value, str))
        if texts:
            return _is_text(rows.texts(self.name), texts)
        values = rows.numbers(self.name)
        known = ~np.isnan(values)
        said = np.isin(values, np.array(self.values, dtype=np.float32))
        return Verdict(known & said, known & ~said)

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """See Condition."""
        yield self.name, "text" if isinstance(self.values[0], str) else "number"


@dataclass(frozen=True)
class Missing:
    """A column that has no value; this is always known."""

    name: str

    def verdict(self, rows: RowColumns) -> Verdict:
        """See Condition."""
        missing = rows.missing(self.name)
        return Verdict(missing, ~missing)

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """See Condition."""
        yield self.name, None


@dataclass(frozen=True)
class Negation:
    """Not."""

    inner: Condition

    def verdict(self, rows: RowColumns) -> Verdict:
        """See Condition."""
        said = self.inner.verdict(rows)
        return Verdict(said.false, said.true)

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """See Condition."""
        return self.inner.uses()


@dataclass(frozen=True)
class Every:
    """And."""

    parts: tuple[Condition, ...]

    def verdict(self, rows: RowColumns) -> Verdict:
        """See Condition."""
        said = [part.verdict(rows) for part in self.parts]
        return Verdict(
            reduce(np.logical_and, [part.true for part in said]), reduce(np.logical_or, [part.false for part in said])
        )

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """See Condition."""
        for part in self.parts:
            yield from part.uses()


@dataclass(frozen=True)
class Either:
    """Or."""

    parts: tuple[Condition, ...]

    def verdict(self, rows: RowColumns) -> Verdict:
        """See Condition."""
        said = [part.verdict(rows) for part in self.parts]
        return Verdict(
            reduce(np.logical_or, [part.true for part in said]), reduce(np.logical_and, [part.false for part in said])
        )

    def uses(self) -> Iterator[tuple[str, Kind | None]]:
        """See Condition."""
        for part in self.parts:
            yield from part.uses()


def _is_text(column: Texts, wanted: tuple[str, ...]) -> Verdict:
    places = [place for place, label in enumerate(column.labels) if label in wanted]
    known = column.codes != -1
    said = np.isin(column.codes, places)
    return Verdict(known & said, known & ~said)

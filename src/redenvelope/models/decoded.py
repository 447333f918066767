"""Conditions asked of encoded states: at the nodes of trees, where no table of features exists any more.

The same questions as `campaign.conditions` asks of tables, in plain arrays or inside of a compiled program. A number is
read back with the rounding of its encoding, so that values that close count as equal. An expected state between two
kinds of users is taken for the likelier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from redenvelope.campaign.conditions import (
    Among,
    Column,
    Compare,
    Condition,
    Either,
    Every,
    Missing,
    Negation,
    Verdict,
    columns_of,
)
from redenvelope.campaign.rows import STEP
from redenvelope.errors import ModelError
from redenvelope.log.encode_table import state_places
from redenvelope.log.encoding import Encoder
from redenvelope.log.encodings import MISSING

__all__ = ["Decoding", "decoding_for"]

# Of the size of what is compared: far above the rounding of a standardised 32-bit number, far below real differences.
_EQUAL = 1e-5


@dataclass(frozen=True)
class _Number:
    """Where a number stands in a state, and how it is read back."""

    name: str
    column: int
    mean: float
    scale: float
    indicator: int | None
    """The column that says whether it is missing."""
    binary: bool


@dataclass(frozen=True)
class _Category:
    """Where a category stands in a state."""

    name: str
    column: int
    labels: tuple[str, ...]
    static: bool


@dataclass(frozen=True)
class Decoding:
    """How the columns that conditions look at are read back from states [rows, width]."""

    numbers: tuple[_Number, ...]
    categories: tuple[_Category, ...]
    step: int
    """The step's column."""
    step_change: float
    first_step: int

    def holds(self, condition: Condition, states: Any, library: Any = np) -> Any:
        """Where a condition is true of states [rows, width], [rows]; arrays of numpy, or of the library given."""
        return self.said(condition, states, library).true

    def steps(self, states: Any, library: Any = np) -> Any:
        """Steps from 0, [rows], as numbers."""
        return library.rint(states[:, self.step] / self.step_change)

    def said(self, condition: Condition, states: Any, library: Any = np) -> Verdict:
        """Where a condition is true of states [rows, width] and where it is false."""
        if isinstance(condition, Negation):
            said = self.said(condition.inner, states, library)
            return Verdict(said.false, said.true)
        if isinstance(condition, Every | Either):
            parts = [self.said(part, states, library) for part in condition.parts]
            both = parts[0]
            for part in parts[1:]:
                if isinstance(condition, Every):
                    both = Verdict(both.true & part.true, both.false | part.false)
                else:
                    both = Verdict(both.true | part.true, both.false & part.false)
            return both
        if isinstance(condition, Missing):
            missing = self._missing(condition.name, states, library)
            return Verdict(missing, ~missing)
        if isinstance(condition, Among):
            return self._among(condition.name, condition.values, states, library)
        if isinstance(condition, Column):
            equal = self._compared(condition.name, "==", 0.0, states, library)
            return Verdict(equal.false, equal.true)
        assert isinstance(condition, Compare)
        if isinstance(condition.right, str):
            said = self._among(condition.left, (condition.right,), states, library)
            return said if condition.sign == "==" else Verdict(said.false, said.true)
        return self._compared(condition.left, condition.sign, condition.right, states, library)

    def _among(self, name: str, values: tuple[float, ...] | tuple[str, ...], states: Any, library: Any) -> Verdict:
        if not isinstance(values[0], str):
            parts = [self._compared(name, "==", float(value), states, library) for value in values]
            true, false = parts[0]
            for part in parts[1:]:
                true, false = true | part.true, false & part.false
            return Verdict(true, false)
        category = self._category(name)
        code = _code(category, states, library)
        places = [place for place, label in enumerate(category.labels, start=2) if label in values]
        is_one = code == -1  # which no code is
        for place in places:
            is_one = is_one | (code == place)
        known = code != MISSING
        return Verdict(known & is_one, known & ~is_one)

    def _compared(self, name: str, sign: str, right: float | Column, states: Any, library: Any) -> Verdict:
        left, known, size = self._value(name, states, library)
        other: Any = right
        if isinstance(right, Column):
            other, also, other_size = self._value(right.name, states, library)
            known, size = known & also, size + other_size
        close = _EQUAL * (library.abs(other) + size)
        equal = library.abs(left - other) <= close
        above = (left > other) & ~equal
        said = {
            "==": equal,
            "!=": ~equal,
            "<": ~equal & ~above,
            "<=": ~above,
            ">": above,
            ">=": above | equal,
        }[sign]
        return Verdict(known & said, known & ~said)

    def _value(self, name: str, states: Any, library: Any) -> tuple[Any, Any, float]:
        """A number [rows], where it is known [rows], and the size of what it was encoded by."""
        if name == STEP:
            value = self.steps(states, library) + self.first_step
            return value, value == value, 0.0
        number = next((number for number in self.numbers if number.name == name), None)
        if number is None:
            raise ModelError(f"a condition asks for {name!r}, which is no number of the states")
        value = states[:, number.column] * number.scale + number.mean
        if number.binary:
            value = library.rint(value)
        known = value == value if number.indicator is None else states[:, number.indicator] < 0.5
        return value, known, abs(number.mean) + number.scale

    def _missing(self, name: str, states: Any, library: Any) -> Any:
        if any(category.name == name for category in self.categories):
            return _code(self._category(name), states, library) == MISSING
        return ~self._value(name, states, library)[1]

    def _category(self, name: str) -> _Category:
        category = next((category for category in self.categories if category.name == name), None)
        if category is None:
            raise ModelError(f"a condition asks for {name!r}, which is no category of the states")
        return category


def _code(category: _Category, states: Any, library: Any) -> Any:
    """The code of a category, [rows]."""
    if category.static:
        return library.rint(states[:, category.column])
    return states[:, category.column : category.column + len(category.labels) + 2].argmax(axis=1)


def decoding_for(encoder: Encoder, conditions: tuple[Condition, ...]) -> Decoding:
    """How what these conditions look at is read back."""
    layout = encoder.layout
    places = state_places(encoder.numbers, encoder.categories, layout)
    watched = dict(zip(places.watched.tolist(), places.indicators.tolist(), strict=True))
    asked = frozenset().union(*map(columns_of, conditions)) if conditions else frozenset()
    return Decoding(
        numbers=tuple(
            _Number(
                number.name, int(places.numbers[place]), number.mean, number.scale, watched.get(place), number.binary
            )
            for place, number in enumerate(encoder.numbers)
            if number.name in asked
        ),
        categories=tuple(
            _Category(category.name, places.categories[place], category.labels, category.static)
            for place, category in enumerate(encoder.categories)
            if category.name in asked
        ),
        step=layout.step,
        step_change=layout.step_change,
        first_step=encoder.first_step,
    )

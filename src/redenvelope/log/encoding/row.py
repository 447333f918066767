"""Encoding users given as plain mappings: the same states as for a table of these rows, in microseconds each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from math import nan
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.cleaning.ids import read_steps
from redenvelope.log.encoding.layout import (
    LARGEST_DEVIATION,
    MISSING,
    OTHER,
    CategoryEncoding,
    NumberEncoding,
    StateLayout,
)
from redenvelope.log.encoding.table import serving_numbers, serving_text, state_places

_TOO_LARGE = float.fromhex("0x1.ffffffp127")  # numbers from here on are infinite as float32
_LARGE_INTEGER = 2**53
_EPOCH, _FIRST_DAY = datetime(1970, 1, 1), date(1970, 1, 1)
_MICROSECOND, _DAY_MICROSECONDS = timedelta(microseconds=1), 86_400_000_000.0
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")  # numbers without ambiguity
_REMEMBERED = 4_096  # cached texts, each with its number or label


class RowEncoder:
    """Encodes a few rows. Whatever does not depend on the rows is computed once."""

    def __init__(
        self,
        numbers: Sequence[NumberEncoding],
        categories: Sequence[CategoryEncoding],
        layout: StateLayout,
        first_step: int,
        last_step: int,
    ) -> None:
        self._first_step, self._last_step = first_step, last_step
        self._width, self._step, self._step_change = layout.width, layout.step, layout.step_change
        self._names = [number.name for number in numbers]
        self._mean = np.array([number.mean for number in numbers])
        self._scale = np.array([number.scale for number in numbers])
        self._low = np.array([-np.inf if number.low is None else number.low for number in numbers])
        self._high = np.array([np.inf if number.high is None else number.high for number in numbers])
        places = state_places(numbers, categories, layout)
        self._columns, self._watched, self._indicators = places.numbers, places.watched, places.indicators
        self._categories = [
            (
                category.name,
                place,
                category.static,
                {label: code for code, label in enumerate(category.labels, start=2)}
                | dict.fromkeys(category.rare, OTHER),
            )
            for category, place in zip(categories, places.categories, strict=True)
        ]

    def encode(self, rows: Sequence[Mapping[str, Any]], unfamiliar: list[str] | None = None) -> NDArray[np.float32]:
        """The states [rows, width] of rows with `step` and features as plain values; absent features are missing.

        The names of features with values that training did not see are added to `unfamiliar`.
        """
        states = np.zeros((len(rows), self._width), dtype=np.float32)
        states[:, self._step] = [(self._step_of(row) - self._first_step) * self._step_change for row in rows]
        # Through float32, as in a log, so that a row has the same state whatever its source.
        numbers = [[number_of(row.get(name)) for name in self._names] for row in rows]
        narrow = np.array(numbers, dtype=np.float32).reshape(len(rows), len(self._names))
        missing = np.isnan(narrow)
        wide = narrow.astype(np.float64)
        if unfamiliar is not None:
            beyond = ((wide < self._low) | (wide > self._high)).any(axis=0)
            unfamiliar += [self._names[place] for place in np.flatnonzero(beyond)]
        values = (wide - self._mean) / self._scale
        np.minimum(values, LARGEST_DEVIATION, out=values)
        np.maximum(values, -LARGEST_DEVIATION, out=values)
        values[missing] = 0.0
        states[:, self._columns] = values
        states[:, self._indicators] = missing[:, self._watched]
        for row, state in zip(rows, states, strict=True):
            for name, place, static, codes in self._categories:
                label = label_of(row.get(name))
                code = MISSING if label is None else codes.get(label, OTHER)
                if unfamiliar is not None and label is not None and label not in codes:
                    unfamiliar.append(name)
                if static:
                    state[place] = code
                else:
                    state[place + code] = 1.0
        return states

    def _step_of(self, row: Mapping[str, Any]) -> int:
        if "step" not in row:
            raise ModelError("the row has no 'step'; pass the index of the decision, starting at 0")
        step = step_number(row["step"])
        if step is None or not self._first_step <= step <= self._last_step:
            shown = str(row["step"])[:60]
            raise ModelError(f"step {shown} is not a step of the campaign ({self._first_step} to {self._last_step})")
        return step


def step_number(value: Any) -> int | None:
    """A step, read as in a table; None if it is not an integer."""
    if type(value) is int:
        return value
    series = _series_of(value)
    return None if series is None else read_steps(series)[0]


def number_of(value: Any) -> float:
    """A value as a number that float32 can hold; NaN if it is missing or not a number."""
    kind = type(value)
    if kind is float:
        return value if -_TOO_LARGE < value < _TOO_LARGE else nan
    if kind is int and -_LARGE_INTEGER < value < _LARGE_INTEGER:
        return float(value)
    if value is None:
        return nan
    if kind is bool:
        return 1.0 if value else 0.0
    if kind is str:
        return _number_of_text(value)
    if kind is date:
        return float((value - _FIRST_DAY).days)
    if kind is datetime:
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return float((moment - _EPOCH) // _MICROSECOND) / _DAY_MICROSECONDS
    if isinstance(value, np.number | np.bool_):
        return number_of(value.item())
    return _number_of_series(_series_of(value))


@lru_cache(maxsize=_REMEMBERED)
def _number_of_text(text: str) -> float:
    if _PLAIN_NUMBER.fullmatch(text):
        return float(text)
    return _number_of_series(pl.Series([text], dtype=pl.String))


def _number_of_series(series: pl.Series | None) -> float:
    number = None if series is None else serving_numbers(series)[0][0]
    return nan if number is None or not -_TOO_LARGE < number < _TOO_LARGE else float(number)


def label_of(value: Any) -> str | None:
    """A value as the label that it would be in a table; None if it is missing."""
    kind = type(value)
    if kind is str:
        return value or None
    if value is None:
        return None
    if kind is bool:
        return "true" if value else "false"
    if kind is int and -_LARGE_INTEGER < value < _LARGE_INTEGER:
        return str(value)
    if kind is float:
        return _label_of_float(value)
    if isinstance(value, np.number | np.bool_):
        return label_of(value.item())
    return _label_of_series(_series_of(value))


@lru_cache(maxsize=_REMEMBERED)
def _label_of_float(value: float) -> str | None:
    return _label_of_series(pl.Series([value], dtype=pl.Float64))


def _label_of_series(series: pl.Series | None) -> str | None:
    return None if series is None else serving_text(series)[0]


def _series_of(value: Any) -> pl.Series | None:
    """The value as a one-row column; None if no column can hold it."""
    try:
        return pl.Series([value])
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return None

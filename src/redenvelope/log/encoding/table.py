"""Encoding tables of rows as states, block by block, and reading tables of users to decide for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.cleaning.ids import read_steps
from redenvelope.log.cleaning.number_formats import days, is_number, outside_calendar, to_numbers, to_plain_numbers
from redenvelope.log.columns import column
from redenvelope.log.encoding.layout import (
    LARGEST_DEVIATION,
    MISSING,
    OTHER,
    RARE_USERS,
    CategoryEncoding,
    NumberEncoding,
    StateLayout,
)
from redenvelope.log.findings import EXAMPLES, Findings
from redenvelope.log.log import FeatureTable
from redenvelope.log.tables import TEMPORAL, kind_of, plain
from redenvelope.wording import counted

_BLOCK = 4_096  # rows


@dataclass(frozen=True, eq=False)
class StatePlaces:
    """The columns of a state to which each number and each category is written."""

    numbers: NDArray[np.intp]
    """Column of each number, [numbers]."""
    watched: NDArray[np.intp]
    """Indices of the numbers that have a missing indicator, [indicators]."""
    indicators: NDArray[np.intp]
    """Columns of the missing indicators, [indicators]."""
    categories: tuple[int, ...]
    """Column of each category's code if it is static, else first column of its one-hots, [categories]."""


def state_places(
    numbers: Sequence[NumberEncoding], categories: Sequence[CategoryEncoding], layout: StateLayout
) -> StatePlaces:
    """The columns of the features in the layout; each kind of column is in the order of the encodings."""
    static, dynamic, binary = len(layout.static_categories), layout.numbers.start, layout.binaries.start
    columns, watched, indicators = [], [], []
    for place, number in enumerate(numbers):
        if number.static:
            columns.append(static)
            static += 1
        elif number.binary:
            columns.append(binary)
            binary += 1
        else:
            columns.append(dynamic)
            dynamic += 1
        if number.missing_seen:
            watched.append(place)
            indicators.append(static if number.static else binary)
            static, binary = (static + 1, binary) if number.static else (static, binary + 1)
    codes, blocks = iter(range(len(layout.static_categories))), iter(layout.categories)
    return StatePlaces(
        np.array(columns, dtype=np.intp),
        np.array(watched, dtype=np.intp),
        np.array(indicators, dtype=np.intp),
        tuple(next(codes) if category.static else next(blocks).start for category in categories),
    )


def write_states(
    features: FeatureTable,
    steps: NDArray[np.float64],
    numbers: Sequence[NumberEncoding],
    categories: Sequence[CategoryEncoding],
    layout: StateLayout,
) -> NDArray[np.float32]:
    """The states of a feature table, [rows, width]; `steps` [rows] are values of the step column.

    A feature that the table lacks is missing in every row.
    """
    places = state_places(numbers, categories, layout)
    states = np.zeros((len(steps), layout.width), dtype=np.float32)
    columns = [_place(number.name, features.numeric_names) for number in numbers]
    mean = np.array([number.mean for number in numbers])[:, None]
    scale = np.array([number.scale for number in numbers])[:, None]
    codes = [_codes(category, features) for category in categories]
    # Numbers, their indicators and the step are contiguous, after the static codes.
    first, last = len(layout.static_categories), layout.binaries.stop
    for start in range(0, len(steps), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(steps)))
        block = np.empty((last - first, rows.stop - rows.start), dtype=np.float32)
        values, missing = _standardised(features, rows, columns, mean, scale)
        block[places.numbers - first] = values
        block[places.indicators - first] = missing[places.watched]
        block[layout.step - first] = steps[rows]
        states[rows, first:last] = block.T
        for category, place, (position, lookup) in zip(categories, places.categories, codes, strict=True):
            found = lookup[features.codes[rows, position]] if position is not None else lookup
            if category.static:
                states[rows, place] = found
            else:
                states[np.arange(rows.start, rows.stop), place + found] = 1.0
    return states


def _standardised(
    features: FeatureTable,
    rows: slice,
    columns: Sequence[int | None],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Some rows of the numbers, standardised and clipped, and which are missing: [numbers, rows] both."""
    # In float64, because an outlier near the largest float32 would overflow before it is clipped.
    values = np.empty((len(columns), rows.stop - rows.start))
    for place, position in enumerate(columns):
        values[place] = np.nan if position is None else features.numeric[rows, position]
    missing = np.isnan(values)
    np.subtract(values, mean, out=values)
    np.divide(values, scale, out=values)
    np.minimum(values, LARGEST_DEVIATION, out=values)
    np.maximum(values, -LARGEST_DEVIATION, out=values)
    np.copyto(values, 0.0, where=missing)
    return values, missing


def _codes(category: CategoryEncoding, features: FeatureTable) -> tuple[int | None, NDArray[np.int64]]:
    """The category's column, and the code of each of its labels there (last, for the code −1, that of missing)."""
    column = _place(category.name, features.category_names)
    if column is None:
        return None, np.array(MISSING)
    place = {label: code for code, label in enumerate(category.labels, start=2)}
    return column, np.array([place.get(label, OTHER) for label in features.labels[column]] + [MISSING])


def _place(name: str, names: tuple[str, ...]) -> int | None:
    return names.index(name) if name in names else None


# Tables of users to decide for, read like the log's features; anything unusual is reported.


_UNSEEN = "\0"  # stands for every label that training did not see


def serving_steps(frame: pl.DataFrame, first_step: int, last_step: int, before: int = 0) -> NDArray[np.int32]:
    """The step of each row, [rows], which must be a step of the campaign; `before` rows precede in the whole table."""
    if "step" not in frame.columns:
        raise ModelError("the table has no column 'step'; add the index of the decision to each row")
    steps = read_steps(frame["step"])
    outside = (steps.is_null() | (steps < first_step) | (steps > last_step)).fill_null(True)
    if outside.any():
        row = int(outside.arg_true()[0])
        shown = str(_shown(frame["step"].slice(row, 1))[0])[:60]
        raise ModelError(
            f"row {before + row + 1:,}: step {shown} is not a step of the campaign "
            f"({first_step} to {last_step}); remove the {counted(int(outside.sum()), 'row')} outside it"
        )
    return steps.cast(pl.Int32).to_numpy()


def serving_table(
    frame: pl.DataFrame, numbers: Sequence[NumberEncoding], categories: Sequence[CategoryEncoding], findings: Findings
) -> FeatureTable:
    """The features of a table; missing columns are reported."""
    numeric = np.empty((len(numbers), len(frame)), np.float32)
    codes = np.empty((len(categories), len(frame)), np.int32)
    for values, number in zip(numeric, numbers, strict=True):
        _read_numbers(frame, number, values, findings)
    for found, category in zip(codes, categories, strict=True):
        found[:] = _code_column(frame, category, findings)
    return FeatureTable(
        numeric_names=tuple(number.name for number in numbers),
        numeric=numeric.T,
        category_names=tuple(category.name for category in categories),
        codes=codes.T,
        labels=tuple((*category.labels, _UNSEEN) for category in categories),
        static=frozenset(),
    )


def serving_numbers(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Values as float64, read as in a log, and which of them are neither numbers nor missing."""
    kind = kind_of(values.dtype)
    if kind == "nested":
        return pl.Series(values.name, [None] * len(values), dtype=pl.Float64), values.is_not_null()
    outside = outside_calendar(values) if kind in TEMPORAL else None
    values = plain(values)
    if outside is not None:
        return days(values), outside
    if values.dtype != pl.String:
        return to_numbers(values), pl.repeat(False, len(values), eager=True)
    values = to_plain_numbers(values)
    return to_numbers(values), ~is_number(values)


def serving_text(values: pl.Series) -> pl.Series:
    """Values as text, read as in a log."""
    kind = kind_of(values.dtype)
    if kind in TEMPORAL:
        values = plain(values)
    if kind == "nested" or kind in TEMPORAL:
        return pl.Series(values.name, [None if value is None else str(value) for value in values], dtype=pl.String)
    return plain(values).cast(pl.String)


def _read_numbers(
    frame: pl.DataFrame, encoding: NumberEncoding, values: NDArray[np.float32], findings: Findings
) -> None:
    """Fill in the values [rows] of a number; NaN if missing or not a number."""
    name = encoding.name
    if name not in frame.columns:
        findings.add("serving_column_missing", column=name, count=len(frame))
        values[:] = np.nan
        return
    numbers, lost = serving_numbers(column(frame, name))
    with np.errstate(over="ignore"):  # values beyond float32 are reported below
        values[:] = numbers.to_numpy()
    if lost.any() or np.isinf(values).any():
        rows = np.flatnonzero(lost.to_numpy() | np.isinf(values))
        findings.add(
            "serving_not_a_number",
            column=name,
            count=len(rows),
            rows=[int(row) + 1 for row in rows[:EXAMPLES]],
            examples=_shown(column(frame, name).gather(rows[:EXAMPLES])),
        )
        values[rows] = np.nan
    report_outside(encoding, values, findings)


def report_outside(encoding: NumberEncoding, values: NDArray[np.float32], findings: Findings, few: float = 0.0) -> None:
    """Report values [rows] outside the range of training users, if their share is above `few`."""
    if encoding.low is None or encoding.high is None:
        return
    outside = np.flatnonzero((values < encoding.low) | (values > encoding.high))
    if len(outside) > few * len(values):
        beyond = values[outside]
        findings.add(
            "serving_outside",
            column=encoding.name,
            count=len(outside),
            rows=[int(row) + 1 for row in outside[:EXAMPLES]],
            examples=[f"{value:.6g}" for value in beyond[:EXAMPLES]],
            share="under 0.1%" if 1000 * len(outside) < len(values) else f"{len(outside) / len(values):.1%}",
            reach=f"{float(beyond.min()):.6g} to {float(beyond.max()):.6g}",
            low=f"{encoding.low:.6g}",
            high=f"{encoding.high:.6g}",
        )


def _shown(values: pl.Series) -> list[object]:
    """Values as examples; dates outside the calendar are shown as stored."""
    return (values.to_physical() if kind_of(values.dtype) in TEMPORAL else values).to_list()


def _code_column(frame: pl.DataFrame, encoding: CategoryEncoding, findings: Findings) -> NDArray[np.int32]:
    if encoding.name not in frame.columns:
        findings.add("serving_column_missing", column=encoding.name, count=len(frame))
        return np.full(len(frame), -1, dtype=np.int32)
    values = serving_text(column(frame, encoding.name))
    codes = values.cast(pl.Enum(encoding.labels), strict=False).to_physical().cast(pl.Int32)
    other = codes.is_null() & values.is_not_null()
    if codes.null_count() > values.null_count():
        rare = other & values.is_in(list(encoding.rare)).fill_null(False)
        for rule, concerned in (("serving_rare_label", rare), ("serving_unseen_label", other & ~rare)):
            rows = concerned.arg_true()
            if len(rows):
                findings.add(
                    rule,
                    column=encoding.name,
                    count=len(rows),
                    rows=[int(row) + 1 for row in rows[:EXAMPLES]],
                    examples=values.gather(rows).unique(maintain_order=True)[:EXAMPLES].to_list(),
                    least=RARE_USERS,
                )
    # Such a label must become "other" instead of "missing", so give it the code of `_UNSEEN`.
    return codes.fill_null(-1).set(other, len(encoding.labels)).to_numpy()

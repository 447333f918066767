"""Many rows at once into states: block by block, so that what is worked on stays in a core's own cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.encodings import LARGEST_DEVIATION, MISSING, OTHER, CategoryEncoding, NumberEncoding
from redenvelope.log.layout import StateLayout
from redenvelope.log.log import FeatureTable

__all__ = ["StatePlaces", "state_places", "write_states"]

_BLOCK = 4_096  # rows


@dataclass(frozen=True, eq=False)
class StatePlaces:
    """Which columns of a state each number and each category is written to."""

    numbers: NDArray[np.intp]
    """Column of each number, [numbers]."""
    watched: NDArray[np.intp]
    """Which numbers say whether they are missing, [indicators]."""
    indicators: NDArray[np.intp]
    """The columns where they say so, [indicators]."""
    categories: tuple[int, ...]
    """Column of each category's code if it is static, first column of its one-hots if not, [categories]."""


def state_places(
    numbers: Sequence[NumberEncoding], categories: Sequence[CategoryEncoding], layout: StateLayout
) -> StatePlaces:
    """Where the layout puts the features: each kind of column in the order of the encodings."""
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
    """The states of a feature table, [rows, width]; steps [rows] as the states hold them.

    A feature that the table lacks is missing in every row.
    """
    places = state_places(numbers, categories, layout)
    states = np.zeros((len(steps), layout.width), dtype=np.float32)
    columns = [_place(number.name, features.numeric_names) for number in numbers]
    mean = np.array([number.mean for number in numbers])[:, None]
    scale = np.array([number.scale for number in numbers])[:, None]
    codes = [_codes(category, features) for category in categories]
    # Numbers, their indicators and the step stand side by side, behind the static codes.
    first, last = len(layout.static_categories), layout.binaries.stop
    for start in range(0, len(steps), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(steps)))
        block = np.empty((last - first, rows.stop - rows.start), dtype=np.float32)
        values, missing = _standardised(features, rows, columns, mean, scale)
        block[places.numbers - first] = values
        block[places.indicators - first] = missing[places.watched]
        block[layout.step - first] = steps[rows]
        states[rows, first:last] = block.T
        for category, place, (column, lookup) in zip(categories, places.categories, codes, strict=True):
            found = lookup[features.codes[rows, column]] if column is not None else lookup
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
    """Some rows of the numbers, less their means, in their scales; and which are missing: [numbers, rows] both."""
    # In float64: an outlier near the largest float32 would overflow on its way to being clipped.
    values = np.empty((len(columns), rows.stop - rows.start))
    for place, column in enumerate(columns):
        values[place] = np.nan if column is None else features.numeric[rows, column]
    missing = np.isnan(values)
    np.subtract(values, mean, out=values)
    np.divide(values, scale, out=values)
    np.minimum(values, LARGEST_DEVIATION, out=values)
    np.maximum(values, -LARGEST_DEVIATION, out=values)
    np.copyto(values, 0.0, where=missing)
    return values, missing


def _codes(category: CategoryEncoding, features: FeatureTable) -> tuple[int | None, NDArray[np.int64]]:
    """The category's column and the code of each of its labels there (the last is for missing, whose code is −1)."""
    column = _place(category.name, features.category_names)
    if column is None:
        return None, np.array(MISSING)
    place = {label: code for code, label in enumerate(category.labels, start=2)}
    return column, np.array([place.get(label, OTHER) for label in features.labels[column]] + [MISSING])


def _place(name: str, names: tuple[str, ...]) -> int | None:
    return names.index(name) if name in names else None

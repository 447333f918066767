"""The rows that conditions are evaluated on: those of a log, of a table of users to decide for, or of a single user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.campaign.conditions import Texts
from redenvelope.log.columns import column
from redenvelope.log.encoding.row import label_of, number_of
from redenvelope.log.encoding.table import serving_numbers, serving_text
from redenvelope.log.log import FeatureTable

STEP = "step"
"""Name of the decision's index in conditions."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a log. A column that it lacks is missing in every row."""

    features: FeatureTable
    step: NDArray[np.integer]
    """[rows]"""

    def numbers(self, name: str) -> NDArray[np.float32]:
        """See RowColumns."""
        if name == STEP:
            return self.step.astype(np.float32)
        if name not in self.features.numeric_names:
            return np.full(len(self.step), np.nan, np.float32)
        return self.features.numeric[:, self.features.numeric_names.index(name)]

    def texts(self, name: str) -> Texts:
        """See RowColumns."""
        if name not in self.features.category_names:
            return Texts(np.full(len(self.step), -1), ())
        place = self.features.category_names.index(name)
        return Texts(self.features.codes[:, place], self.features.labels[place])

    def is_text(self, name: str) -> bool:
        """See RowColumns."""
        return name in self.features.category_names


@dataclass(frozen=True, eq=False)
class FrameRows:
    """The rows of a table of users, read as a log is. A column that it lacks is missing in every row."""

    frame: pl.DataFrame
    texts_known: frozenset[str]
    """Columns that are text in the log; all others are numeric."""

    def numbers(self, name: str) -> NDArray[np.float32]:
        """See RowColumns."""
        if name not in self.frame.columns:
            return np.full(len(self.frame), np.nan, np.float32)
        values, lost = serving_numbers(column(self.frame, name))
        narrow = values.cast(pl.Float32, strict=False)
        lost |= narrow.is_infinite().fill_null(False)
        return narrow.set(lost, None).fill_null(float("nan")).to_numpy()

    def texts(self, name: str) -> Texts:
        """See RowColumns."""
        if name not in self.frame.columns:
            return Texts(np.full(len(self.frame), -1), ())
        values = serving_text(column(self.frame, name))
        values = values.set(values == "", None)
        labels = values.drop_nulls().unique().sort()
        codes = values.cast(pl.Enum(labels)).to_physical().cast(pl.Int32).fill_null(-1)
        return Texts(codes.to_numpy(), tuple(labels))

    def is_text(self, name: str) -> bool:
        """See RowColumns."""
        return name in self.texts_known


@dataclass(frozen=True, eq=False)
class OneRow:
    """A single user to decide for, as a plain mapping; gives the same results as a table with this row."""

    row: Mapping[str, Any]
    texts_known: frozenset[str]
    """Columns that are text in the log."""

    def numbers(self, name: str) -> NDArray[np.float32]:
        """See RowColumns."""
        return np.array([number_of(self.row.get(name))], dtype=np.float32)

    def texts(self, name: str) -> Texts:
        """See RowColumns."""
        label = label_of(self.row.get(name))
        return Texts(np.array([-1]), ()) if label is None else Texts(np.array([0]), (label,))

    def is_text(self, name: str) -> bool:
        """See RowColumns."""
        return name in self.texts_known


def places_of(labels: tuple[str, ...], catalogue: tuple[str, ...], numeric: bool) -> list[int | None]:
    """Indices of actions in a catalogue, by label; None for unknown labels."""
    if not numeric:
        known = {label: place for place, label in enumerate(catalogue)}
        return [known.get(label) for label in labels]
    numbers = {float(label): place for place, label in enumerate(catalogue)}
    return [numbers.get(_number(label)) for label in labels]


def _number(label: str) -> float:
    try:
        return float(label)
    except ValueError:
        return float("nan")  # equals no number

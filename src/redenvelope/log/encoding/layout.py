"""The layout of an encoded state, and the encoding of single features."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.schema.statistics import NumberSums
from redenvelope.randomness import draw


@dataclass(frozen=True)
class StateLayout:
    """The columns of an encoded state [width], in this order:

    static category codes | static numbers | step | dynamic numbers | dynamic binaries | dynamic categories | history

    The static head never changes within a user; everything from `step` on is the dynamic tail. The model predicts the
    columns between the step and the history; the history follows from actions and outcomes (see history.py). Static
    categories are codes (for embeddings, so that ten thousand cities take one column); dynamic categories are one-hot,
    so that a predicted next state can hold probabilities.
    """

    static_categories: tuple[int, ...]
    """Number of codes of each static category."""
    static_numbers: int
    dynamic_numbers: int
    dynamic_binaries: int
    dynamic_categories: tuple[int, ...]
    """Number of codes of each dynamic category."""
    step_change: float
    """The increase of the step column per step."""
    history_actions: int = 0
    """Number of actions in the history; 0 if states have no history."""
    history_outcomes: int = 0
    """Number of outcomes in the history."""

    def __post_init__(self) -> None:
        counts = (self.static_numbers, self.dynamic_numbers, self.dynamic_binaries)
        known = (self.history_actions, self.history_outcomes)
        if min((*counts, *known, *self.static_categories, *self.dynamic_categories)) < 0:
            raise ValueError("a layout counts its columns and codes, which are never fewer than 0")
        if not 0 < self.step_change <= 1:
            raise ValueError(f"a step adds more than 0 and at most 1 to its column, not {self.step_change}")

    @staticmethod
    def history_columns(actions: int, outcomes: int) -> int:
        """Number of history columns: last action, last outcomes, counts, sums, and steps since the last incentive."""
        return 2 * actions + 2 * outcomes + 1 if actions else 0

    @property
    def static_width(self) -> int:
        """Number of static columns."""
        return len(self.static_categories) + self.static_numbers

    @property
    def step(self) -> int:
        """The step's column."""
        return self.static_width

    @property
    def numbers(self) -> slice:
        """Columns of dynamic numbers, standardised."""
        return slice(self.step + 1, self.step + 1 + self.dynamic_numbers)

    @property
    def binaries(self) -> slice:
        """Columns of dynamic binaries, each a probability."""
        return slice(self.numbers.stop, self.numbers.stop + self.dynamic_binaries)

    @property
    def categories(self) -> tuple[slice, ...]:
        """One-hot columns of each dynamic category."""
        edges = list(accumulate(self.dynamic_categories, initial=self.binaries.stop))
        return tuple(slice(first, last) for first, last in pairwise(edges))

    @property
    def predicted_width(self) -> int:
        """Number of columns that the model predicts."""
        return self.dynamic_numbers + self.dynamic_binaries + sum(self.dynamic_categories)

    @property
    def predicted(self) -> slice:
        """Columns of the next state that the model predicts."""
        return slice(self.step + 1, self.step + 1 + self.predicted_width)

    @property
    def history(self) -> slice:
        """Columns of the history."""
        return slice(self.predicted.stop, self.width)

    @property
    def width(self) -> int:
        """Number of columns of a state."""
        known = self.history_columns(self.history_actions, self.history_outcomes)
        return self.step + 1 + self.predicted_width + known

    @property
    def drawn_parts(self) -> int:
        """Number of dynamic binaries and categories, which can be drawn from a mean state."""
        return self.dynamic_binaries + len(self.dynamic_categories)

    def drawn(self, means: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.float32]:
        """Draw states from mean states [rows, width] with numbers in [0, 1) [rows, drawn parts].

        Binaries and categories are drawn; numbers keep their predicted mean, because the model predicts nothing else.
        """
        states = means.copy()
        states[:, self.binaries] = uniforms[:, : self.dynamic_binaries] < means[:, self.binaries]
        for place, block in enumerate(self.categories, start=self.dynamic_binaries):
            chosen = draw(np.maximum(means[:, block], 0.0) + 1e-9, uniforms[:, place])
            states[:, block] = chosen[:, None] == np.arange(block.stop - block.start)
        return states


# Encodings of single features: numbers are standardised, categories coded.


OTHER, MISSING = 0, 1
"""Codes of every category: 0 for unseen or rare labels, 1 for missing ones. Labels follow."""

LARGEST_DEVIATION = 8.0
"""In standard deviations; values beyond are typing errors or outliers, and are clipped."""

RARE_USERS = 10
"""Labels with fewer users are too rare to learn from; together they train the code `OTHER`."""


@dataclass(frozen=True)
class NumberEncoding:
    """The standardisation of one number; a missing value becomes the mean, with an indicator in a column of its own."""

    name: str
    mean: float
    scale: float
    static: bool
    binary: bool
    missing_seen: bool
    low: float | None = None
    """The smallest value among training users."""
    high: float | None = None
    """The largest value among training users."""


@dataclass(frozen=True)
class CategoryEncoding:
    """The codes of one category: 0 for unseen or rare labels, 1 for missing, then the labels."""

    name: str
    labels: tuple[str, ...]
    static: bool
    rare: tuple[str, ...] = ()
    """Labels that too few training users had, kept to distinguish them from unseen labels."""

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels) + 2


def fit_number(name: str, sums: NumberSums, static: bool) -> NumberEncoding:
    """The encoding of a number with these statistics."""
    count = sums.moments.count
    if not count:
        return NumberEncoding(name, 0.0, 1.0, static, binary=False, missing_seen=False)
    mean, scale = sums.moments.mean[0], sqrt(sums.moments.spread[0] / count)
    if not isfinite(scale) or scale <= 1e-12 * max(1.0, abs(mean)):
        scale = 1.0
    # A dynamic binary is not scaled, so that a predicted probability is a valid state.
    if sums.binary and not static:
        mean, scale = 0.0, 1.0
    return NumberEncoding(
        name, mean, scale, static, sums.binary and not static, sums.missing > 0, low=sums.low, high=sums.high
    )


def fit_category(name: str, labels: tuple[str, ...], users: NDArray[np.int64], static: bool) -> CategoryEncoding:
    """The encoding of a category, given the number of users who ever had each label, [labels]."""
    had = dict(zip(labels, users.tolist(), strict=True))
    kept = tuple(label for label, count in had.items() if count >= RARE_USERS)
    return CategoryEncoding(name, kept, static, tuple(label for label, count in had.items() if 0 < count < RARE_USERS))

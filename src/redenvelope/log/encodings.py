"""How single features are encoded: numbers standardised, categories coded."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.moments import NumberSums

__all__ = [
    "LARGEST_DEVIATION",
    "MISSING",
    "OTHER",
    "RARE_USERS",
    "CategoryEncoding",
    "NumberEncoding",
    "fit_category",
    "fit_number",
]

OTHER, MISSING = 0, 1
"""Codes of every category: unseen or rare, and missing. Labels follow."""

LARGEST_DEVIATION = 8.0
"""Standard deviations; a value beyond is a typing error or an outlier, and is clipped."""

RARE_USERS = 10
"""Labels that fewer users had teach nothing of their own, but they do teach `OTHER`; rows of two users are few."""


@dataclass(frozen=True)
class NumberEncoding:
    """How one number is standardised; a missing value becomes the mean, and says so in a column of its own."""

    name: str
    mean: float
    scale: float
    static: bool
    binary: bool
    missing_seen: bool
    low: float | None = None
    """The least value that training users had."""
    high: float | None = None
    """The greatest."""


@dataclass(frozen=True)
class CategoryEncoding:
    """How one category is coded: 0 for unseen or rare labels, 1 for missing, then the labels."""

    name: str
    labels: tuple[str, ...]
    static: bool
    rare: tuple[str, ...] = ()
    """Labels that training users had, but too few of them: told apart from those that nobody had."""

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels) + 2


def fit_number(name: str, sums: NumberSums, static: bool) -> NumberEncoding:
    """The encoding of a number with these sums."""
    count = sums.moments.count
    if not count:
        return NumberEncoding(name, 0.0, 1.0, static, binary=False, missing_seen=False)
    mean, scale = sums.moments.mean[0], sqrt(sums.moments.spread[0] / count)
    if not isfinite(scale) or scale <= 1e-12 * max(1.0, abs(mean)):
        scale = 1.0
    # A binary keeps its own scale, so that a predicted probability is a state like any other.
    if sums.binary and not static:
        mean, scale = 0.0, 1.0
    return NumberEncoding(
        name, mean, scale, static, sums.binary and not static, sums.missing > 0, low=sums.low, high=sums.high
    )


def fit_category(name: str, labels: tuple[str, ...], users: NDArray[np.int64], static: bool) -> CategoryEncoding:
    """The encoding of a category whose labels so many users had, [labels]."""
    had = dict(zip(labels, users.tolist(), strict=True))
    kept = tuple(label for label, count in had.items() if count >= RARE_USERS)
    return CategoryEncoding(name, kept, static, tuple(label for label, count in had.items() if 0 < count < RARE_USERS))

"""Two arms of a test beside each other: means a user with intervals, and the difference between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from redenvelope.evaluation.skewness import Spread, studentised_quantile

_IMPOSSIBLE = 0.001
"""Chance below which an arm's share of the users is not what was meant: smaller than is usual, because all that follows
depends on it and it is looked at every time."""


@dataclass(frozen=True)
class Interval:
    """An estimated mean and the interval it lies in."""

    estimate: float
    lower: float
    upper: float
    standard_error: float


def mean_interval(added: ArrayLike, confidence: float) -> Interval:
    """Of what users add, [users]: two-sided, as wide as their skewness asks for."""
    spread = Spread.of(np.asarray(added, dtype=np.float64))
    side = (1 + confidence) / 2
    return Interval(
        float(spread.mean), float(spread.lower(side)), float(spread.upper(side)), float(spread.standard_error)
    )


def difference(first: ArrayLike, second: ArrayLike, confidence: float) -> Interval:
    """The first mean less the second, of what different users add, [users] each: two-sided.

    The two means are independent: their variances add up, and of their third moments the difference remains, so that
    Hall's transformation serves as for one mean.
    """
    one, other = (Spread.of(np.asarray(added, dtype=np.float64)) for added in (first, second))
    error = float(np.hypot(one.standard_error, other.standard_error))
    variance = _moment(one, 2) + _moment(other, 2)
    third = _moment(one, 3) - _moment(other, 3)
    lean: NDArray[np.float64] = np.asarray(third / variance**1.5 if variance > 0 else 0.0)
    gap = float(one.mean - other.mean)
    low, high = (float(studentised_quantile(chance, lean)) for chance in ((1 - confidence) / 2, (1 + confidence) / 2))
    return Interval(gap, gap - high * error, gap - low * error, error)


def _moment(spread: Spread, power: int) -> float:
    """A central moment of the mean of so many users."""
    return float((spread.squares if power == 2 else spread.cubes) / spread.users**power)


def assignment_doubt(first: int, second: int, share: float) -> float | None:
    """The chance of a share as far from the one that was meant as this, where it is too small to believe; else None."""
    users = first + second
    distance = abs(first - share * users) / np.sqrt(users * share * (1 - share))
    chance = 2 * float(ndtr(-distance))
    return chance if chance < _IMPOSSIBLE else None

"""Bounds for skewed money: a mean over users whose studentised error leans to one side.

Where a few users cost much, a mean that is too low comes with a standard error that is too low, and a normal bound
covers less than it says: about 0.95 − 0.11·γ/√n for a skewness of γ over n users. Hall's transformation (1992, "On the
removal of skewness by transformation") undoes that to the order of 1/n. It needs three sums, which merge over
partitions, where a bootstrap needs every user again, and it serves all prices at once.

Measured on 600 samples each, one-sided 95 % upper bounds of a weighted cost (standard error of a figure: 0.9 %):

    family            users   skewness   normal   studentised bootstrap   Hall
    finite            1,200        1.1    94.2%                   94.7%  94.7%
    log-normal        1,200        6.9    92.5%                   92.7%  95.2%
    log-normal        2,400        7.7    93.3%                   94.0%  94.8%
    whales            2,400       37.0    59.5%                   64.0%  70.7%

(150 samples for the bootstrap.) Nothing covers where a handful of users decides: that is what `concentration` refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from redenvelope.arrays import FloatArray

# Below this, the transformation and its limit differ by less than rounding.
_STRAIGHT = 1e-6


def skewness_of_mean(squares: ArrayLike, cubes: ArrayLike) -> FloatArray:
    """The skewness of a mean, γ/√n, from sums over users of squared and cubed deviations, any shape; 0 where nothing
    deviates."""
    width = np.asarray(squares, dtype=np.float64) ** 1.5
    known = (width > 0) & np.isfinite(width)
    return np.divide(cubes, width, out=np.zeros_like(width), where=known)


def studentised_quantile(chance: float, skewness: FloatArray) -> FloatArray:
    """What a studentised mean with this skewness [...] stays below with this chance, [...].

    Undoes `normal_score`.
    """
    straight = float(ndtri(chance))
    lean = np.where(np.abs(skewness) < _STRAIGHT, _STRAIGHT, skewness)
    return np.asarray(3 / lean * (np.cbrt(1 + lean * (straight - lean / 6)) - 1))


def normal_score(statistic: ArrayLike, skewness: ArrayLike) -> FloatArray:
    """A studentised mean [...] with this skewness of its mean [...] as a number that is normal by chance, [...].

    Hall's transformation g(T) = T + aT²/3 + a²T³/27 + a/6 with a = γ/√n is normal to the order of 1/n and rises
    everywhere, so that it can be undone.
    """
    lean, value = np.asarray(skewness, dtype=np.float64), np.asarray(statistic, dtype=np.float64)
    return np.asarray(value + lean * value**2 / 3 + lean**2 * value**3 / 27 + lean / 6)


def merged_cubes(sizes: tuple[int, int], gap: FloatArray, squares: Sums, cubes: Sums) -> FloatArray:
    """Sums of cubed deviations of two batches of so many users as that of both (Pébay), any shape.

    `gap` is the second mean less the first; `squares` and `cubes` are of the deviations from their own means.
    """
    first, second = sizes
    users = first + second
    return np.asarray(
        cubes[0]
        + cubes[1]
        + gap**3 * (first * second * (first - second) / users**2)
        + 3 * gap * (first * squares[1] - second * squares[0]) / users
    )


Sums = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class Spread:
    """Mean and spread over users of what each of them adds: sums that merge, and bounds made of them."""

    users: int
    mean: FloatArray
    """[...]."""
    squares: FloatArray
    """Sums of squared deviations from the mean, [...]."""
    cubes: FloatArray
    """Sums of cubed deviations from the mean, [...]."""

    @classmethod
    def of(cls, added: ArrayLike, axis: int = 0) -> Spread:
        """Of what users add, along an axis [users]; the other axes stay."""
        values = np.moveaxis(np.asarray(added, dtype=np.float64), axis, 0)
        mean = values.mean(axis=0)
        away = values - mean
        return cls(len(values), mean, (away**2).sum(axis=0), (away**3).sum(axis=0))

    def merge(self, other: Spread) -> Spread:
        """Two batches of users as one."""
        users, gap = self.users + other.users, other.mean - self.mean
        return Spread(
            users,
            self.mean + gap * (other.users / users),
            self.squares + other.squares + gap**2 * (self.users * other.users / users),
            merged_cubes((self.users, other.users), gap, (self.squares, other.squares), (self.cubes, other.cubes)),
        )

    @property
    def standard_error(self) -> FloatArray:
        """Of the mean, [...]; infinite with one user."""
        if self.users < 2:
            return np.full_like(self.squares, np.inf)
        return np.asarray(np.sqrt(self.squares / (self.users * (self.users - 1))))

    @property
    def skewness(self) -> FloatArray:
        """Of what a user adds, [...]."""
        return np.asarray(skewness_of_mean(self.squares, self.cubes) * np.sqrt(self.users))

    def lower(self, confidence: float) -> FloatArray:
        """One-sided lower bound of the mean, [...]."""
        return self._bound(confidence)

    def upper(self, confidence: float) -> FloatArray:
        """One-sided upper bound of the mean, [...]."""
        return self._bound(1 - confidence)

    def _bound(self, chance: float) -> FloatArray:
        quantile = studentised_quantile(chance, skewness_of_mean(self.squares, self.cubes))
        return np.asarray(self.mean - quantile * self.standard_error)

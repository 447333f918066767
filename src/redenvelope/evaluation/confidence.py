"""Confidence bounds for estimated means, at one price or simultaneously at all, and when no bound is valid.

Users are independent but the steps of one user are not, so all errors are over users. If a few users cost much, a mean
that is too low comes with a standard error that is too low, and a normal bound covers less than its level: about
0.95 − 0.11·γ/√n for a skewness of γ over n users. Hall's transformation (1992, "On the removal of skewness by
transformation") corrects that to the order of 1/n. It needs three sums, which merge over partitions, where a bootstrap
needs every user again, and it serves all prices at once.

Measured on 600 samples each, one-sided 95 % upper bounds of a weighted cost (standard error of each figure: 0.9 %; 150
samples for the bootstrap):

    family            users   skewness   normal   studentised bootstrap   Hall
    finite            1,200        1.1    94.2%                   94.7%  94.7%
    log-normal        1,200        6.9    92.5%                   92.7%  95.2%
    log-normal        2,400        7.7    93.3%                   94.0%  94.8%
    whales            2,400       37.0    59.5%                   64.0%  70.7%

No method covers if a handful of users dominates: `decided_by_few` refuses that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.merging import MAXIMUM, FieldwiseSums
from redenvelope.randomness import fraction
from redenvelope.serialization import to_plain

Side = Literal["both", "lower", "upper"]
"""Both bounds, or only one, with the whole error probability on it and the other bound infinite."""


@dataclass(frozen=True)
class Estimate:
    """An estimated mean per user with its bounds, as in certificates, comparisons and A/B tests."""

    estimate: float
    lower: float
    upper: float
    standard_error: float
    estimator: str
    """The estimator's name; "mean" and "difference" for plain means over users."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        content: dict[str, Any] = to_plain(self)
        return content


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds of all outcomes and prices."""

    lower: FloatArray
    """[outcomes, prices]."""
    upper: FloatArray
    """[outcomes, prices]."""


def bounds(
    value: FloatArray, standard_error: FloatArray, skewness: FloatArray, confidence: float, side: Side = "both"
) -> Bounds:
    """Bounds of means by Hall's transformation, from their standard errors and skewness (γ/√n), all of one shape.

    An infinite standard error, as with a single user, gives infinite bounds.
    """
    tail = _tail(confidence, side)
    if np.isinf(standard_error).all():
        infinite = np.full_like(value, np.inf)
        return Bounds(-infinite, infinite)
    low, high = (studentised_quantile(chance, skewness) for chance in (tail, 1 - tail))
    lower, upper = value - high * standard_error, value - low * standard_error
    if side == "lower":
        upper = np.full_like(upper, np.inf)
    if side == "upper":
        lower = np.full_like(lower, -np.inf)
    return Bounds(lower, upper)


def _tail(confidence: float, side: Side) -> float:
    """The error probability beyond each requested bound."""
    if side not in ("both", "lower", "upper"):
        raise UsageError(f"side must be 'both', 'lower' or 'upper', not {side!r}")
    require_confidence(confidence)
    return (1 - confidence) / 2 if side == "both" else 1 - confidence


def require_confidence(confidence: float) -> None:
    """Refuse a confidence that is not at least one half and below 1."""
    if not 0.5 <= confidence < 1:
        hint = "; it is a share, not a percentage" if 50 <= confidence < 100 else ""
        raise UsageError(f"confidence must be at least 0.5 and below 1, not {confidence}{hint}")


# Skewed means: Hall's transformation, and mergeable sums over users.

# Below this skewness, the transformation differs from its limit by less than rounding.
_STRAIGHT = 1e-6
_Pair = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class Spread:
    """Mean and centred sums of one number per user: they merge, and give bounds of the mean."""

    users: int
    mean: FloatArray
    """[...]."""
    squares: FloatArray
    """Sums of squared deviations from the mean, [...]."""
    cubes: FloatArray
    """Sums of cubed deviations from the mean, [...]."""

    @classmethod
    def of(cls, added: ArrayLike, axis: int = 0) -> Spread:
        """The spread of numbers along an axis [users]; the other axes stay."""
        values = np.moveaxis(np.asarray(added, dtype=np.float64), axis, 0)
        mean = values.mean(axis=0)
        away = values - mean
        return cls(len(values), mean, (away**2).sum(axis=0), (away**3).sum(axis=0))

    def merge(self, other: Spread) -> Spread:
        """Merge two batches of users."""
        users, gap = self.users + other.users, other.mean - self.mean
        return Spread(
            users,
            self.mean + gap * (other.users / users),
            self.squares + other.squares + gap**2 * (self.users * other.users / users),
            merged_cubes((self.users, other.users), gap, (self.squares, other.squares), (self.cubes, other.cubes)),
        )

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of the mean, [...]; infinite with one user."""
        if self.users < 2:
            return np.full_like(self.squares, np.inf)
        return np.asarray(np.sqrt(self.squares / (self.users * (self.users - 1))))

    @property
    def skewness(self) -> FloatArray:
        """Skewness over users, [...]."""
        return np.asarray(skewness_of_mean(self.squares, self.cubes) * np.sqrt(self.users))

    def lower(self, confidence: float) -> FloatArray:
        """One-sided lower bound of the mean, [...]."""
        return self._bound(confidence)

    def upper(self, confidence: float) -> FloatArray:
        """One-sided upper bound of the mean, [...]."""
        return self._bound(1 - confidence)

    def bounded_upper(self, confidence: float, largest: float) -> FloatArray:
        """One-sided upper bound of the mean of numbers from 0 to `largest`, [...], valid for any number of users and
        any tail (empirical Bernstein: Maurer and Pontil 2009, theorem 4); infinite with one user."""
        if self.users < 2:
            return np.full_like(self.squares, np.inf)
        reach = float(np.log(2 / (1 - confidence)))
        variance = self.squares / (self.users - 1)
        slack = 7 * largest * reach / (3 * (self.users - 1))
        return np.asarray(self.mean + np.sqrt(2 * variance * reach / self.users) + slack)

    def _bound(self, chance: float) -> FloatArray:
        quantile = studentised_quantile(chance, skewness_of_mean(self.squares, self.cubes))
        return np.asarray(self.mean - quantile * self.standard_error)

    def estimate(self, confidence: float) -> Estimate:
        """The mean with both bounds, each one-sided at this confidence; for a scalar mean."""
        lower, upper = float(self.lower(confidence)), float(self.upper(confidence))
        return Estimate(float(self.mean), lower, upper, float(self.standard_error), "mean")


def mean_estimate(added: ArrayLike, confidence: float) -> Estimate:
    """The mean of one number per user, [users], with a two-sided interval."""
    return Spread.of(added).estimate((1 + confidence) / 2)


def difference(first: ArrayLike, second: ArrayLike, confidence: float) -> Estimate:
    """The first mean minus the second, for different users, [users] each, with a two-sided interval.

    The means are independent: variances add up, third moments are subtracted, and Hall's transformation applies as to a
    single mean.
    """
    one, other = (Spread.of(added) for added in (first, second))
    error = float(np.hypot(one.standard_error, other.standard_error))
    variance = _mean_moment(one, 2) + _mean_moment(other, 2)
    third = _mean_moment(one, 3) - _mean_moment(other, 3)
    skewness: FloatArray = np.asarray(third / variance**1.5 if variance > 0 else 0.0)
    gap = float(one.mean - other.mean)
    low, high = (float(studentised_quantile(tail, skewness)) for tail in ((1 - confidence) / 2, (1 + confidence) / 2))
    return Estimate(gap, gap - high * error, gap - low * error, error, "difference")


def _mean_moment(spread: Spread, power: int) -> float:
    """The second or third central moment of the mean over users."""
    return float((spread.squares if power == 2 else spread.cubes) / spread.users**power)


def skewness_of_mean(squares: ArrayLike, cubes: ArrayLike) -> FloatArray:
    """The skewness of a mean, γ/√n, from sums over users of squared and cubed deviations, any shape; 0 without
    deviations."""
    width = np.asarray(squares, dtype=np.float64) ** 1.5
    known = (width > 0) & np.isfinite(width)
    return np.divide(cubes, width, out=np.zeros_like(width), where=known)


def studentised_quantile(chance: float, skewness: FloatArray) -> FloatArray:
    """The quantile of a studentised mean with this skewness, [...]: the inverse of `normal_score`."""
    straight = float(ndtri(chance))
    lean = np.where(np.abs(skewness) < _STRAIGHT, _STRAIGHT, skewness)
    return np.asarray(3 / lean * (np.cbrt(1 + lean * (straight - lean / 6)) - 1))


def normal_score(statistic: ArrayLike, skewness: ArrayLike) -> FloatArray:
    """Transform a studentised mean with this skewness to a standard normal score, [...].

    Hall's transformation g(T) = T + aT²/3 + a²T³/27 + a/6 with a = γ/√n is normal to the order of 1/n. It is
    increasing, so it has an inverse.
    """
    lean, value = np.asarray(skewness, dtype=np.float64), np.asarray(statistic, dtype=np.float64)
    return np.asarray(value + lean * value**2 / 3 + lean**2 * value**3 / 27 + lean / 6)


def merged_cubes(sizes: tuple[int, int], gap: FloatArray, squares: _Pair, cubes: _Pair) -> FloatArray:
    """Merge sums of cubed deviations of two batches of users (Pébay), any shape.

    `gap` is the second mean minus the first; `squares` and `cubes` are of deviations from the batches' own means.
    """
    first, second = sizes
    users = first + second
    return np.asarray(
        cubes[0]
        + cubes[1]
        + gap**3 * (first * second * (first - second) / users**2)
        + 3 * gap * (first * squares[1] - second * squares[0]) / users
    )


# Simultaneous bounds for all prices.
#
# Errors at neighbouring prices are strongly correlated, so a Bonferroni correction would be far too wide. Instead, the
# largest error is simulated by a multiplier bootstrap: users are given random signs, many times over (Chernozhukov,
# Chetverikov and Kato, 2013, for means over many users). The signs derive from the users' ids, so that the result does
# not depend on the partition.

_BITS = 48  # signs taken from one random number per user
_NUMBERS = 21
# 1,008 draws give the 95 % quantile of the largest error to about 0.06 standard errors.


def each_confidence(
    added: FloatArray, keys: NDArray[np.uint64], confidences: Sequence[float], seed: int, block: int = 4_096
) -> tuple[tuple[float, float], ...]:
    """For each joint confidence, the one-sided one at which the bounds of all outcomes and prices hold simultaneously.

    `added` holds users' influences, [outcomes, users, prices], and `keys` the users, [users], processed `block` at a
    time.
    """
    means = added.mean(axis=1)
    columns = means.size
    sums, squares = np.zeros((_BITS * _NUMBERS, columns)), np.zeros(columns)
    for first in range(0, len(keys), block):
        some = slice(first, first + block)
        deviations = np.moveaxis(added[:, some] - means[:, None], 1, 0).reshape(-1, columns)
        # Single precision suffices for random signs; sums over blocks are in double precision.
        sums += _signs(keys[some], seed).T @ deviations.astype(np.float32)
        squares += (deviations**2).sum(axis=0)
    known = squares > 0
    if not known.any():
        return tuple((float(level), float(level)) for level in confidences)
    largest = (sums[:, known] / np.sqrt(squares[known])).max(axis=1)
    return tuple((float(level), max(float(level), float(ndtr(np.quantile(largest, level))))) for level in confidences)


def _signs(keys: NDArray[np.uint64], seed: int) -> NDArray[np.float32]:
    """Random signs, −1 and +1 with equal probability, [users, draws]."""
    bits = np.arange(_BITS, dtype=np.uint64)
    signs = []
    for number in range(_NUMBERS):
        word = (fraction(keys, "signs", seed, number) * 2.0**53).astype(np.uint64)
        signs.append(((word[:, None] >> bits) & np.uint64(1)).astype(np.float32))
    return np.concatenate(signs, axis=1) * np.float32(2) - np.float32(1)


# Concentration: whether so few users dominate an estimate that no bound of it is valid.
#
# A standard error is itself an estimate. If one user alone moves the mean by a good part of it, the number of such
# users in the sample is chance, and no transformation or resampling accounts for those who were not drawn. What counts
# is the influence, weight × cost, at the price in question. It is computed for the check users and also for the user of
# *all* whose cost most exceeds the usual cost of their actions, as if the plan had agreed with the log on them, because
# a fold that happens to contain none of the few looks harmless.
#
# Of all samples of benchmarks/tails.py --samples 400, bounds below the truth without the rule, and with it:
#
#     users                  2,000                8,000               40,000
#     0.05 % × 20, 50     5, 9 →  4, 4 %      6, 11 →  3, 2 %       6, 9 →  5, 1 %
#     0.05 % × 90           13 →     6 %         22 →     2 %         13 →     0 %
#     log-normal, σ = 2     12 →     0 %         14 →     1 %          8 →     0 %
#     log-normal, σ = 0.8    5 →     5 %          5 →     5 %          7 →     7 %   (4, 0 and 0 % refused)

_LARGEST_MOVE = 0.7
"""Most standard errors by which a single user may move an estimate."""
_LEAST_SHARE = 0.001
"""Share of the estimate: if one user moves it by less, a few such users that were not drawn do not matter."""


@dataclass(frozen=True)
class Concentration(FieldwiseSums):
    """How concentrated logged costs are: mergeable sums over users, and the largest excess."""

    users: int
    total: float
    largest: float = field(metadata=MAXIMUM)
    """Largest cost beyond the usual cost of the user's actions, which baselines predict."""

    @classmethod
    def of(cls, amounts: ArrayLike, usual: ArrayLike | None = None) -> Concentration:
        """From users' (or clusters') costs and the usual cost of their actions, [users]; by default, the mean."""
        values = np.asarray(amounts, dtype=np.float64)
        excess = values - np.asarray(values.mean() if usual is None else usual, dtype=np.float64)
        return cls(len(values), float(values.sum()), float(excess.max()))

    def influence(self, mean: FloatArray, weight: FloatArray) -> FloatArray:
        """The influence of the user with the largest excess on estimates with these means, [...], under a policy with
        this typical weight that agrees with the log; scaled down if the policy spends less than was logged."""
        spent = np.clip(mean * self.users / self.total, 0.0, 1.0) if self.total > 0 else 0.0
        return np.asarray(mean + self.largest * weight * spent)


def decided_by_few(largest: float, spread: Spread, what: str = "cost", whom: str = "user") -> Reason | None:
    """Why no bound of a mean is valid, if one user (or cluster) with the influence `largest` moves it too far."""
    away, mean, width = largest - float(spread.mean), float(spread.mean), float(np.sqrt(spread.squares))
    if away <= _LARGEST_MOVE * width or away <= _LEAST_SHARE * spread.users * abs(mean):
        return None
    return Reason(
        "concentrated",
        Weight.REFUSAL,
        f"one {whom} alone moves the estimated {what} by {away / max(width, 1e-300):.1f} standard errors (at most "
        f"{_LARGEST_MOVE:g}): how many such {whom}s there are is chance, and no bound of the mean can be believed; cap "
        f"the amount per user with --most-per-user, treat such {whom}s separately, or bring a log with more of them",
    )

"""Terms: what each user adds to an estimate; and moments: the sums of terms that give value and error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError
from redenvelope.evaluation.skewness import merged_cubes

# Numbers in one block of columns: they stay in a second-level cache.
_BLOCK_NUMBERS = 2**17
# Up to so many columns, products one by one are faster than a product of matrices.
_FEW_COLUMNS = 6


@dataclass(frozen=True, eq=False)
class Terms:
    """An estimate as a mean over users, plus ratios of means over users:

        value = mean(plain) + Σ over parts of mean(numerators) / mean(weights)

    Estimators that are plain means have no parts; self-normalised ones have a part a step. A part may count only by
    a share, which is how estimates blend.
    """

    plain: FloatArray
    """[outcomes, users, prices]."""
    numerators: FloatArray
    """[outcomes, parts, users, prices]."""
    weights: FloatArray
    """[parts, users, prices]: 1 on average, when the propensities are right."""
    shares: FloatArray
    """How much each part counts, [outcomes, parts, prices]."""

    @classmethod
    def mean(cls, plain: FloatArray) -> Terms:
        """Terms of an estimate that is a plain mean of [outcomes, users, prices]."""
        outcomes, users, prices = plain.shape
        nothing = np.empty((outcomes, 0, users, prices))
        return cls(plain, nothing, nothing[0], np.empty((outcomes, 0, prices)))

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.plain.shape[1])

    @property
    def parts(self) -> int:
        """Number of parts."""
        return int(self.weights.shape[0])

    def stacked(self) -> FloatArray:
        """Plain terms, numerators and weights below each other: [columns, users, prices]."""
        if not self.parts:
            return self.plain
        _, users, prices = self.plain.shape
        return np.concatenate([self.plain, self.numerators.reshape(-1, users, prices), self.weights])

    def _fill(self, columns: FloatArray, users: slice, shift: FloatArray) -> None:
        """Put the columns of some users, less a shift [columns, prices], into [columns, users, prices]: in one pass."""
        outcomes, parts = len(self.plain), self.parts
        less = shift[:, None]
        np.subtract(self.plain[:, users], less[:outcomes], out=columns[:outcomes])
        for outcome, numerators in enumerate(self.numerators):
            here = slice(outcomes + outcome * parts, outcomes + (outcome + 1) * parts)
            np.subtract(numerators[:, users], less[here], out=columns[here])
        np.subtract(self.weights[:, users], less[outcomes * (1 + parts) :], out=columns[outcomes * (1 + parts) :])

    @cached_property
    def moments(self) -> Moments:
        """What is left of the terms when only value and error are asked for."""
        outcomes, users, prices = self.plain.shape
        count = outcomes * (1 + self.parts) + self.parts
        block = min(users, max(64, _BLOCK_NUMBERS // (prices * count)))
        room = np.empty((count, block, prices))
        # Money is far from zero: without a shift, the squares of its mean would swallow those of its spread.
        few = min(users, 64)
        self._fill(room[:, :few], slice(0, few), np.zeros((count, prices)))
        shift = room[:, :few].mean(axis=1)
        sums, products = np.zeros_like(shift), np.zeros((prices, count, count))
        cubes = np.zeros((outcomes, prices))
        for start in range(0, users, block):
            columns = room[:, : min(block, users - start)]
            self._fill(columns, slice(start, start + block), shift)
            sums += columns.sum(axis=1)
            products += _products(np.ascontiguousarray(columns.transpose(2, 0, 1)))
            if not self.parts:
                cubes += np.einsum("oup,oup,oup->op", columns, columns, columns)
        if not self.parts:
            # From cubes about the shift to cubes about the mean.
            squares, away = np.diagonal(products, axis1=1, axis2=2).T, sums / users
            cubes += 2 * users * away**3 - 3 * away * squares
        products -= sums.T[:, :, None] * sums.T[:, None, :] / users
        # The range matters to plain means alone; with parts there is none to tell.
        least, greatest = (self.plain[:, 0], self.plain[:, 0]) if self.parts else _extremes(self.plain)
        return Moments(users, shift + sums / users, products, cubes, self.shares, least, greatest)

    def influence(self, moments: Moments) -> FloatArray:
        """How far each user moves an estimate with the moments of all users, [outcomes, users, prices]: its mean is
        the value, its spread the standard error. Differences between prices (or policies) of the same users are
        paired."""
        result = self.plain.copy()
        for outcome in range(len(result)):
            for part in range(self.parts):
                mean, ratio = moments.mean_weights[part], moments.ratios[outcome, part]
                change = safe_ratio(self.numerators[outcome, part] - ratio * self.weights[part], mean)
                result[outcome] += moments.shares[outcome, part] * (ratio + change)
        return result


@dataclass(frozen=True, eq=False)
class Moments:
    """Counts, means and centred products of terms: they merge over batches of users."""

    users: int
    means: FloatArray
    """[columns, prices]; columns are plain terms, numerators, weights."""
    products: FloatArray
    """Sums over users of products of centred columns, [prices, columns, columns]."""
    cubes: FloatArray
    """Sums over users of cubed, centred plain terms, [outcomes, prices]; 0 and without meaning if there are parts."""
    shares: FloatArray
    """How much each part counts, [outcomes, parts, prices]."""
    least: FloatArray
    """Least plain term of a user, [outcomes, prices]; without meaning if there are parts."""
    greatest: FloatArray
    """Greatest plain term of a user, [outcomes, prices]; without meaning if there are parts."""

    @property
    def outcomes(self) -> int:
        """Number of outcomes."""
        return int(self.shares.shape[0])

    @property
    def parts(self) -> int:
        """Number of parts."""
        return int(self.shares.shape[1])

    @property
    def mean_weights(self) -> FloatArray:
        """[parts, prices]."""
        return self.means[self.outcomes * (1 + self.parts) :]

    @cached_property
    def ratios(self) -> FloatArray:
        """Mean numerators over mean weights, [outcomes, parts, prices]; not a number where no weight is left."""
        numerators = self.means[self.outcomes : self.outcomes * (1 + self.parts)].reshape(self.shares.shape)
        return safe_ratio(numerators, self.mean_weights)

    @cached_property
    def value(self) -> FloatArray:
        """The estimate, [outcomes, prices]."""
        return np.asarray(self.means[: self.outcomes] + (self.shares * self.ratios).sum(axis=1))

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance of the estimates of outcomes, [prices, outcomes, outcomes]; infinite with one user."""
        gradient = self._gradient()
        spread = gradient @ self.products @ gradient.transpose(0, 2, 1)
        if self.users < 2:
            return np.full_like(spread, np.inf)
        return np.asarray(spread / (self.users * (self.users - 1)))

    @cached_property
    def standard_error(self) -> FloatArray:
        """[outcomes, prices]."""
        variances = np.diagonal(self.covariance, axis1=1, axis2=2).T
        return np.sqrt(np.maximum(variances, 0.0))

    def widened(self, factor: float | FloatArray) -> Moments:
        """The same means, as if users were so many times as far from them; one factor, or one for each price."""
        each = np.broadcast_to(np.asarray(factor, dtype=np.float64), self.products.shape[:1])
        if (each == 1).all():
            return self
        return replace(self, products=self.products * each[:, None, None] ** 2, cubes=self.cubes * each**3)

    def _gradient(self) -> FloatArray:
        """How the estimates move with the means of the columns, [prices, outcomes, columns]."""
        outcomes, parts, prices = self.shares.shape
        gradient = np.zeros((prices, outcomes, self.means.shape[0]))
        slopes = safe_ratio(self.shares, self.mean_weights)
        for outcome in range(outcomes):
            gradient[:, outcome, outcome] = 1.0
            first = outcomes + outcome * parts
            gradient[:, outcome, first : first + parts] = slopes[outcome].T
            gradient[:, outcome, outcomes * (1 + parts) :] = -(slopes[outcome] * self.ratios[outcome]).T
        return gradient


def safe_ratio(numerators: FloatArray, weights: FloatArray) -> FloatArray:
    """Numerators over weights, not a number where a weight is 0: nobody is left to speak for the policy."""
    result = np.full(np.broadcast_shapes(numerators.shape, weights.shape), np.nan)
    np.divide(numerators, weights, out=result, where=weights > 0)
    return result


def _extremes(plain: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Least and greatest over users: [outcomes, users, prices] -> [outcomes, prices] each."""
    return plain.min(axis=1), plain.max(axis=1)


def _products(columns: FloatArray) -> FloatArray:
    """Products of all pairs of columns, summed over users: [prices, columns, users] -> [prices, columns, columns]."""
    count = columns.shape[1]
    if count > _FEW_COLUMNS:
        return np.asarray(columns @ columns.transpose(0, 2, 1))
    result = np.empty((len(columns), count, count))
    for first in range(count):
        for second in range(first, count):
            pair = columns[:, first : first + 1] @ columns[:, second, :, None]
            result[:, first, second] = result[:, second, first] = pair[:, 0, 0]
    return result


def merge_moments(first: Moments, second: Moments) -> Moments:
    """The moments of two batches of users as those of all (Chan, Golub and LeVeque)."""
    if first.means.shape != second.means.shape:
        raise UsageError("only moments of the same estimator, outcomes, steps and prices can be merged")
    users = first.users + second.users
    gap = second.means - first.means
    outer = gap.T[:, :, None] * gap.T[:, None, :]
    outcomes = first.outcomes
    squares = [np.diagonal(each.products, axis1=1, axis2=2).T[:outcomes] for each in (first, second)]
    cubes = merged_cubes(
        (first.users, second.users), gap[:outcomes], (squares[0], squares[1]), (first.cubes, second.cubes)
    )
    return Moments(
        users=users,
        means=first.means + gap * (second.users / users),
        products=first.products + second.products + outer * (first.users * second.users / users),
        cubes=cubes if not first.parts else first.cubes,
        shares=first.shares,
        least=np.minimum(first.least, second.least),
        greatest=np.maximum(first.greatest, second.greatest),
    )


# Sums of what users add to estimates at neighbouring prices: enough for bounds of each, and of mixtures of two.


_BLOCK_USERS = 4_096  # whose deviations stay in the cache


@dataclass(frozen=True, eq=False)
class NeighbourSums:
    """Means over users; deviations are what a user adds less the mean."""

    users: int
    means: FloatArray
    """[outcomes, prices]"""
    squares: FloatArray
    """Of deviations, [outcomes, prices]."""
    cubes: FloatArray
    """[outcomes, prices]"""
    products: FloatArray
    """Of deviations at a price, d, and at the next one, e: d·e, d²·e and d·e², [3, outcomes, prices − 1]."""


def neighbour_sums(added: FloatArray) -> NeighbourSums:
    """Of what users add to estimates, [outcomes, users, prices], the prices in their order."""
    outcomes, users, prices = added.shape
    means = added.mean(axis=1)
    squares, cubes = np.zeros((outcomes, prices)), np.zeros((outcomes, prices))
    products = np.zeros((3, outcomes, prices - 1))
    for first in range(0, users, _BLOCK_USERS):
        here = added[:, first : first + _BLOCK_USERS] - means[:, None]
        squared, both = here * here, here[..., :-1] * here[..., 1:]
        squares += squared.sum(axis=1)
        cubes += (squared * here).sum(axis=1)
        products += np.stack(
            [both.sum(axis=1), (both * here[..., :-1]).sum(axis=1), (both * here[..., 1:]).sum(axis=1)]
        )
    return NeighbourSums(users, means, squares / users, cubes / users, products / users)

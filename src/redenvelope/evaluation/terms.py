"""Terms: what each user adds to an estimate; and moments: the sums of terms that give value and error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError

__all__ = ["Moments", "Terms", "merge_moments", "merge_terms"]

FloatArray = NDArray[np.float64]

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
    """[targets, users, duals]."""
    numerators: FloatArray
    """[targets, parts, users, duals]."""
    weights: FloatArray
    """[parts, users, duals]: 1 on average, when the propensities are right."""
    shares: FloatArray
    """How much each part counts, [targets, parts, duals]."""

    @classmethod
    def mean(cls, plain: FloatArray) -> Terms:
        """Terms of an estimate that is a plain mean of [targets, users, duals]."""
        targets, users, duals = plain.shape
        nothing = np.empty((targets, 0, users, duals))
        return cls(plain, nothing, nothing[0], np.empty((targets, 0, duals)))

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.plain.shape[1])

    @property
    def parts(self) -> int:
        """Number of parts."""
        return int(self.weights.shape[0])

    def stacked(self) -> FloatArray:
        """Plain terms, numerators and weights below each other: [columns, users, duals]."""
        if not self.parts:
            return self.plain
        _, users, duals = self.plain.shape
        return np.concatenate([self.plain, self.numerators.reshape(-1, users, duals), self.weights])

    def _fill(self, columns: FloatArray, users: slice, shift: FloatArray) -> None:
        """Put the columns of some users, less a shift [columns, duals], into [columns, users, duals]: in one pass."""
        targets, parts = len(self.plain), self.parts
        less = shift[:, None]
        np.subtract(self.plain[:, users], less[:targets], out=columns[:targets])
        for target, numerators in enumerate(self.numerators):
            here = slice(targets + target * parts, targets + (target + 1) * parts)
            np.subtract(numerators[:, users], less[here], out=columns[here])
        np.subtract(self.weights[:, users], less[targets * (1 + parts) :], out=columns[targets * (1 + parts) :])

    @cached_property
    def moments(self) -> Moments:
        """What is left of the terms when only value and error are asked for."""
        targets, users, duals = self.plain.shape
        count = targets * (1 + self.parts) + self.parts
        block = min(users, max(64, _BLOCK_NUMBERS // (duals * count)))
        room = np.empty((count, block, duals))
        # Money is far from zero: without a shift, the squares of its mean would swallow those of its spread.
        few = min(users, 64)
        self._fill(room[:, :few], slice(0, few), np.zeros((count, duals)))
        shift = room[:, :few].mean(axis=1)
        sums, products = np.zeros_like(shift), np.zeros((duals, count, count))
        for start in range(0, users, block):
            columns = room[:, : min(block, users - start)]
            self._fill(columns, slice(start, start + block), shift)
            sums += columns.sum(axis=1)
            products += _products(np.ascontiguousarray(columns.transpose(2, 0, 1)))
        products -= sums.T[:, :, None] * sums.T[:, None, :] / users
        # The range matters to plain means alone; with parts there is none to tell.
        least, greatest = (self.plain[:, 0], self.plain[:, 0]) if self.parts else _extremes(self.plain)
        return Moments(users, shift + sums / users, products, self.shares, least, greatest)

    def influence(self) -> FloatArray:
        """How far each user moves the estimate, [targets, users, duals]: its mean is the value, its spread the
        standard error. Differences between duals (or policies) of the same users are paired."""
        moments = self.moments
        result = self.plain.copy()
        for target in range(len(result)):
            for part in range(self.parts):
                mean, ratio = moments.mean_weights[part], moments.ratios[target, part]
                share = self.shares[target, part]
                result[target] += share * (ratio + (self.numerators[target, part] - ratio * self.weights[part]) / mean)
        return result


@dataclass(frozen=True, eq=False)
class Moments:
    """Counts, means and centred products of terms: they merge over batches of users."""

    users: int
    means: FloatArray
    """[columns, duals]; columns are plain terms, numerators, weights."""
    products: FloatArray
    """Sums over users of products of centred columns, [duals, columns, columns]."""
    shares: FloatArray
    """How much each part counts, [targets, parts, duals]."""
    least: FloatArray
    """Least plain term of a user, [targets, duals]; without meaning if there are parts."""
    greatest: FloatArray
    """Greatest plain term of a user, [targets, duals]; without meaning if there are parts."""

    @property
    def targets(self) -> int:
        """Number of targets."""
        return int(self.shares.shape[0])

    @property
    def parts(self) -> int:
        """Number of parts."""
        return int(self.shares.shape[1])

    @property
    def mean_weights(self) -> FloatArray:
        """[parts, duals]."""
        return self.means[self.targets * (1 + self.parts) :]

    @cached_property
    def ratios(self) -> FloatArray:
        """Mean numerators over mean weights, [targets, parts, duals]; not a number where no weight is left."""
        numerators = self.means[self.targets : self.targets * (1 + self.parts)].reshape(self.shares.shape)
        return safe_ratio(numerators, self.mean_weights)

    @cached_property
    def value(self) -> FloatArray:
        """The estimate, [targets, duals]."""
        return np.asarray(self.means[: self.targets] + (self.shares * self.ratios).sum(axis=1))

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance of the estimates of targets, [duals, targets, targets]; infinite with one user."""
        gradient = self._gradient()
        spread = gradient @ self.products @ gradient.transpose(0, 2, 1)
        if self.users < 2:
            return np.full_like(spread, np.inf)
        return np.asarray(spread / (self.users * (self.users - 1)))

    @cached_property
    def standard_error(self) -> FloatArray:
        """[targets, duals]."""
        variances = np.diagonal(self.covariance, axis1=1, axis2=2).T
        return np.sqrt(np.maximum(variances, 0.0))

    def _gradient(self) -> FloatArray:
        """How the estimates move with the means of the columns, [duals, targets, columns]."""
        targets, parts, duals = self.shares.shape
        gradient = np.zeros((duals, targets, self.means.shape[0]))
        slopes = safe_ratio(self.shares, self.mean_weights)
        for target in range(targets):
            gradient[:, target, target] = 1.0
            first = targets + target * parts
            gradient[:, target, first : first + parts] = slopes[target].T
            gradient[:, target, targets * (1 + parts) :] = -(slopes[target] * self.ratios[target]).T
        return gradient


def safe_ratio(numerators: FloatArray, weights: FloatArray) -> FloatArray:
    """Numerators over weights, not a number where a weight is 0: nobody is left to speak for the policy."""
    result = np.full(np.broadcast_shapes(numerators.shape, weights.shape), np.nan)
    np.divide(numerators, weights, out=result, where=weights > 0)
    return result


def _extremes(plain: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Least and greatest over users: [targets, users, duals] -> [targets, duals] each."""
    return plain.min(axis=1), plain.max(axis=1)


def _products(columns: FloatArray) -> FloatArray:
    """Products of all pairs of columns, summed over users: [duals, columns, users] -> [duals, columns, columns]."""
    count = columns.shape[1]
    if count > _FEW_COLUMNS:
        return np.asarray(columns @ columns.transpose(0, 2, 1))
    result = np.empty((len(columns), count, count))
    for first in range(count):
        for second in range(first, count):
            pair = columns[:, first : first + 1] @ columns[:, second, :, None]
            result[:, first, second] = result[:, second, first] = pair[:, 0, 0]
    return result


def merge_terms(parts: Sequence[Terms]) -> Terms:
    """The terms of batches of users, in their order, as one."""
    if len(parts) == 1:
        return parts[0]
    return Terms(
        plain=np.concatenate([part.plain for part in parts], axis=1),
        numerators=np.concatenate([part.numerators for part in parts], axis=2),
        weights=np.concatenate([part.weights for part in parts], axis=1),
        shares=parts[0].shares,
    )


def merge_moments(first: Moments, second: Moments) -> Moments:
    """The moments of two batches of users as those of all (Chan, Golub and LeVeque)."""
    if first.means.shape != second.means.shape:
        raise UsageError("only moments of the same estimator, targets, steps and duals can be merged")
    users = first.users + second.users
    gap = second.means - first.means
    outer = gap.T[:, :, None] * gap.T[:, None, :]
    return Moments(
        users=users,
        means=first.means + gap * (second.users / users),
        products=first.products + second.products + outer * (first.users * second.users / users),
        shares=first.shares,
        least=np.minimum(first.least, second.least),
        greatest=np.maximum(first.greatest, second.greatest),
    )

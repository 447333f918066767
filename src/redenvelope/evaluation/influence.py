"""Influence: each user's contribution to an estimate (terms), and its sums, which give value, error and skewness.

`Moments` serve estimates at any number of prices. `GroupSums` also give the skewness of ratios of means.
`NeighbourSums` give bounds at each price of a ladder, and for mixtures of two neighbours. Moments and group sums merge
over partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, KeyArray
from redenvelope.errors import UsageError
from redenvelope.evaluation.confidence import merged_cubes, skewness_of_mean
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.partitions import Partitions
from redenvelope.log.log import begins_of
from redenvelope.merging import FieldwiseSums
from redenvelope.randomness import fold, fraction

# Block size for columns, so that they stay in the second-level cache.
_BLOCK_NUMBERS = 2**17
# Up to this number of columns, products of pairs are faster than one matrix product.
_FEW_COLUMNS = 6


@dataclass(frozen=True, eq=False)
class Terms:
    """An estimate as a mean over users, plus ratios of means over users:

        value = mean(plain) + Σ over parts of mean(numerators) / mean(weights)

    Estimators that are plain means have no parts; self-normalised ones have one part per step. A part may count with a
    share, which is how estimates are blended.
    """

    plain: FloatArray
    """[outcomes, users, prices]."""
    numerators: FloatArray
    """[outcomes, parts, users, prices]."""
    weights: FloatArray
    """[parts, users, prices]; their mean is 1 in expectation if the propensities are right."""
    shares: FloatArray
    """The share with which each part counts, [outcomes, parts, prices]."""

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
        """Plain terms, numerators and weights stacked, [columns, users, prices]."""
        if not self.parts:
            return self.plain
        _, users, prices = self.plain.shape
        return np.concatenate([self.plain, self.numerators.reshape(-1, users, prices), self.weights])

    def _fill(self, columns: FloatArray, users: slice, shift: FloatArray) -> None:
        """Write the columns of some users minus a shift [columns, prices] to `columns`, [columns, users, prices]."""
        outcomes, parts = len(self.plain), self.parts
        less = shift[:, None]
        np.subtract(self.plain[:, users], less[:outcomes], out=columns[:outcomes])
        for outcome, numerators in enumerate(self.numerators):
            here = slice(outcomes + outcome * parts, outcomes + (outcome + 1) * parts)
            np.subtract(numerators[:, users], less[here], out=columns[here])
        np.subtract(self.weights[:, users], less[outcomes * (1 + parts) :], out=columns[outcomes * (1 + parts) :])

    @cached_property
    def moments(self) -> Moments:
        """The moments of the terms, from which value and error follow."""
        outcomes, users, prices = self.plain.shape
        count = outcomes * (1 + self.parts) + self.parts
        block = min(users, max(64, _BLOCK_NUMBERS // (prices * count)))
        room = np.empty((count, block, prices))
        # Amounts are far from zero: without a shift, the squares of their mean would swamp those of their spread.
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
            # Convert cubes about the shift to cubes about the mean.
            squares, away = np.diagonal(products, axis1=1, axis2=2).T, sums / users
            cubes += 2 * users * away**3 - 3 * away * squares
        products -= sums.T[:, :, None] * sums.T[:, None, :] / users
        return Moments(users, shift + sums / users, products, cubes, self.shares)

    def influence(self, moments: Moments) -> FloatArray:
        """Influence of each user on an estimate with the moments of all users, [outcomes, users, prices]: its mean is
        the value, its spread gives the standard error. Differences between prices (or policies) are paired by user."""
        result = self.plain.copy()
        for outcome in range(len(result)):
            for part in range(self.parts):
                mean, ratio = moments.mean_weights[part], moments.ratios[outcome, part]
                change = safe_ratio(self.numerators[outcome, part] - ratio * self.weights[part], mean)
                result[outcome] += moments.shares[outcome, part] * (ratio + change)
        return result


@dataclass(frozen=True, eq=False)
class Moments:
    """Counts, means and centred products of terms; they merge over batches of users."""

    users: int
    means: FloatArray
    """[columns, prices]; the columns are plain terms, numerators, weights."""
    products: FloatArray
    """Sums over users of products of centred columns, [prices, columns, columns]."""
    cubes: FloatArray
    """Sums over users of cubed, centred plain terms, [outcomes, prices]; undefined if there are parts."""
    shares: FloatArray
    """The share with which each part counts, [outcomes, parts, prices]."""

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
        """Mean weights, [parts, prices]."""
        return self.means[self.outcomes * (1 + self.parts) :]

    @cached_property
    def ratios(self) -> FloatArray:
        """Mean numerators over mean weights, [outcomes, parts, prices]; NaN where no weight is left."""
        numerators = self.means[self.outcomes : self.outcomes * (1 + self.parts)].reshape(self.shares.shape)
        return safe_ratio(numerators, self.mean_weights)

    @cached_property
    def value(self) -> FloatArray:
        """The estimate, [outcomes, prices]."""
        return np.asarray(self.means[: self.outcomes] + (self.shares * self.ratios).sum(axis=1))

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance of the outcomes' estimates, [prices, outcomes, outcomes]; infinite with one user."""
        gradient = self._gradient()
        spread = gradient @ self.products @ gradient.transpose(0, 2, 1)
        if self.users < 2:
            return np.full_like(spread, np.inf)
        return np.asarray(spread / (self.users * (self.users - 1)))

    @cached_property
    def standard_error(self) -> FloatArray:
        """Standard errors of the estimates, [outcomes, prices]."""
        variances = np.diagonal(self.covariance, axis1=1, axis2=2).T
        return np.sqrt(np.maximum(variances, 0.0))

    @property
    def skewness(self) -> FloatArray:
        """Skewness of the estimates (γ/√n), [outcomes, prices]; undefined if there are parts."""
        return skewness_of_mean(self._squares, self.cubes)

    @property
    def _squares(self) -> FloatArray:
        """Sums over users of squared, centred plain terms, [outcomes, prices]."""
        return np.diagonal(self.products, axis1=1, axis2=2).T[: self.outcomes]

    def merge(self, other: Moments) -> Moments:
        """Merge the moments of two batches of users (Chan, Golub and LeVeque)."""
        if self.means.shape != other.means.shape:
            raise UsageError("only moments of the same estimator, outcomes, steps and prices can be merged")
        users = self.users + other.users
        gap = other.means - self.means
        outer = gap.T[:, :, None] * gap.T[:, None, :]
        cubes = merged_cubes(
            (self.users, other.users), gap[: self.outcomes], (self._squares, other._squares), (self.cubes, other.cubes)
        )
        return Moments(
            users=users,
            means=self.means + gap * (other.users / users),
            products=self.products + other.products + outer * (self.users * other.users / users),
            cubes=cubes if not self.parts else self.cubes,
            shares=self.shares,
        )

    def widened(self, factor: float | FloatArray) -> Moments:
        """The same means with all deviations from them multiplied by a factor, or by one factor per price."""
        each = np.broadcast_to(np.asarray(factor, dtype=np.float64), self.products.shape[:1])
        if (each == 1).all():
            return self
        return replace(self, products=self.products * each[:, None, None] ** 2, cubes=self.cubes * each**3)

    def _gradient(self) -> FloatArray:
        """Gradient of the estimates with respect to the means of the columns, [prices, outcomes, columns]."""
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
    """Numerators over weights; NaN where a weight is 0, because no logged user represents the policy."""
    result = np.full(np.broadcast_shapes(numerators.shape, weights.shape), np.nan)
    np.divide(numerators, weights, out=result, where=weights > 0)
    return result


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


# Sums by group of users.
#
# The influences behind the skewness of a ratio of means depend on the means of all users, so they take a second pass
# over users, or sums by group. Users are hashed into groups. Groups differ in size, but a group's deviation from its
# share of the mean has, in expectation, the variance and the skewness of as many users.

GROUPS = 2048
"""Number of groups; the spread of so many gives the standard error to within 2 %."""
_STREAM, _SEED = "bootstrap group", 0


@dataclass(frozen=True, eq=False)
class GroupSums(FieldwiseSums):
    """Sums of terms by group of users."""

    sizes: FloatArray
    """Number of users in each group, [groups]."""
    sums: FloatArray
    """[groups, columns, prices]; the columns are plain terms, numerators, weights."""

    def skewness(self, moments: Moments) -> FloatArray:
        """Skewness (γ/√n) of estimates with the moments of all users, [outcomes, prices]."""
        influence = group_influence(self, moments)
        return skewness_of_mean((influence**2).sum(axis=0), (influence**3).sum(axis=0))


def sums_by_group(partitions: Partitions, terms: Callable[[OffPolicyData], Terms], users: int) -> GroupSums:
    """Sum the terms of all users by group in one pass; if there are few users, each is a group."""
    if users > GROUPS:
        return partitions.reduce_parts(lambda part: _hashed(part, terms))
    parts = list(partitions.each(lambda batch: (batch.keys, terms(batch).stacked())))
    # Ordered by a hash of the users' keys, so that the result does not depend on the partition.
    order = np.argsort(fraction(np.concatenate([keys for keys, _ in parts]), _STREAM, _SEED), kind="stable")
    columns = np.concatenate([columns for _, columns in parts], axis=1)
    return GroupSums(np.ones(users), np.moveaxis(columns, 1, 0)[order])


def group_sums(terms: Terms, groups: NDArray[np.int64], count: int) -> GroupSums:
    """Sum terms by group, given the group of each user [users], one of `count`."""
    columns = len(terms.plain) * (1 + terms.parts) + terms.parts
    result = GroupSums(np.zeros(count), np.zeros((count, columns, terms.plain.shape[2])))
    _add(result, terms, groups)
    return result


def group_influence(groups: GroupSums, moments: Moments) -> FloatArray:
    """Influence of each group on the estimates, [groups, outcomes, prices]; sums to 0."""
    outcomes, parts, prices = moments.shares.shape
    centred = groups.sums - groups.sizes[:, None, None] * moments.means
    result = centred[:, :outcomes].copy()
    slopes = safe_ratio(moments.shares, moments.mean_weights)
    numerators = centred[:, outcomes : outcomes * (1 + parts)].reshape(len(centred), outcomes, parts, prices)
    weights = centred[:, None, outcomes * (1 + parts) :]
    result += (slopes * (numerators - moments.ratios * weights)).sum(axis=2)
    return result


def _hashed(part: OffPolicyData, terms: Callable[[OffPolicyData], Terms]) -> GroupSums:
    """The sums of one partition; batches are added to the same array, which is large compared with a batch."""
    batches = part.in_batches
    first = next(batches)
    sums = group_sums(terms(first), fold(first.keys, GROUPS, _STREAM, _SEED), GROUPS)
    for batch in batches:
        _add(sums, terms(batch), fold(batch.keys, GROUPS, _STREAM, _SEED))
    return sums


def _add(sums: GroupSums, terms: Terms, groups: NDArray[np.int64]) -> None:
    """Add users' terms to sums in place, given the users' groups [users]."""
    order = np.argsort(groups, kind="stable")
    found, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    sums.sizes[found] += sizes
    for place, column in enumerate(terms.stacked()):
        sums.sums[found, place] += np.add.reduceat(column[order], starts, axis=0)


# Sums at neighbouring prices.


@dataclass(frozen=True, eq=False)
class NeighbourSums:
    """Moments of users' influences at neighbouring prices; deviations are influences minus their mean."""

    users: int
    means: FloatArray
    """[outcomes, prices]"""
    squares: FloatArray
    """Mean squared deviation, [outcomes, prices]."""
    cubes: FloatArray
    """Mean cubed deviation, [outcomes, prices]."""
    products: FloatArray
    """Means of d·e, d²·e and d·e² for deviations d at a price and e at the next one, [3, outcomes, prices − 1]."""


def neighbour_sums(added: FloatArray, block: int = 4_096) -> NeighbourSums:
    """The moments of influences [outcomes, users, prices], with the prices in order.

    Users are processed in blocks whose deviations stay in the processor's cache.
    """
    outcomes, users, prices = added.shape
    means = added.mean(axis=1)
    squares, cubes = np.zeros((outcomes, prices)), np.zeros((outcomes, prices))
    products = np.zeros((3, outcomes, prices - 1))
    for first in range(0, users, block):
        here = added[:, first : first + block] - means[:, None]
        squared, both = here * here, here[..., :-1] * here[..., 1:]
        squares += squared.sum(axis=1)
        cubes += (squared * here).sum(axis=1)
        products += np.stack(
            [both.sum(axis=1), (both * here[..., :-1]).sum(axis=1), (both * here[..., 1:]).sum(axis=1)]
        )
    return NeighbourSums(users, means, squares / users, cubes / users, products / users)


# Clustered standard errors. Episodes of one person have dependent errors, so errors, bounds and tests count people;
# users who share a draw or a shock have dependent errors too, so they count clusters (`--cluster`). The estimate stays
# the mean over episodes. A person, or a cluster, contributes the sum of its episodes' deviations from that mean, scaled
# so that the mean over people is the same (the linearised ratio of two sums over people). A `Log` has the keys of its
# clusters, or of its users, with equal keys adjacent.


def person_keys(keys: KeyArray) -> KeyArray:
    """The distinct people, [people], from the keys of episodes [users], where equal keys are adjacent."""
    return keys[begins_of(keys)]


def by_person(added: FloatArray, keys: KeyArray, axis: int = 1) -> FloatArray:
    """Aggregate influences of episodes along an axis [users] to influences of people; unchanged if every person has one
    episode."""
    begins = begins_of(keys)
    people, episodes = int(np.count_nonzero(begins)), len(keys)
    if people == episodes:
        return added
    mean = added.mean(axis=axis, keepdims=True)
    sums = np.add.reduceat(added - mean, np.flatnonzero(begins), axis=axis)
    return np.asarray(mean + sums * (people / episodes))


def design_effect(added: FloatArray, keys: KeyArray) -> FloatArray:
    """Factor by which clustering widens standard errors, [prices]: the largest over outcomes, and at least 1. `added`
    holds influences, [outcomes, users, prices]."""
    people = by_person(added, keys)
    if people.shape == added.shape:
        return np.ones(added.shape[-1])
    clustered = people.std(axis=1, ddof=1) / np.sqrt(people.shape[1])
    plain = added.std(axis=1, ddof=1) / np.sqrt(added.shape[1])
    ratio = np.divide(clustered, plain, out=np.ones_like(plain), where=plain > 0)
    return np.asarray(np.maximum(ratio.max(axis=0), 1.0))

"""Doubly robust estimators: a baseline's prediction, corrected by its weighted errors on the log.

Sequential doubly robust (Jiang and Li, 2016); weighted doubly robust and MAGIC (Thomas and Brunskill, 2016), which
blends it with the baseline step by step; and more robust doubly robust (Farajtabar, Chow and Ghavamzadeh, 2018), which
scales the baseline so that the estimate's own variance is least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.estimators import Estimator, Prepared
from redenvelope.evaluation.importance_sampling import empty_parts, per_decision
from redenvelope.evaluation.influence import Moments, Terms
from redenvelope.evaluation.partitions import Folds, Partitions
from redenvelope.merging import merged


def doubly_robust(data: OffPolicyData, discount: float = 1.0) -> Terms:
    """Sequential doubly robust: unbiased if the weights are right, whatever the baseline; close to the direct method if
    the baseline is right. The weights are those of the data: cumulative products of ratios, or marginalised ratios."""
    values, action_values = data.baseline()
    weights = data.weights
    first = data.positions[0][1]
    plain = data.outcomes[:, first, None] - action_values[:, first]  # in double precision, as outcomes are
    plain *= weights[0]
    plain += values[:, first]
    for position, (users, rows) in enumerate(data.positions[1:], start=1):
        before, here = weights[position - 1, users], weights[position, users]
        if discount != 1:
            before, here = before * discount**position, here * discount**position
        for place, outcome in enumerate(data.outcomes):
            surprise = outcome[rows, None] - action_values[place, rows]
            surprise *= here
            surprise += before * values[place, rows]
            plain[place, users] += surprise
    return Terms.mean(plain)


def weighted_doubly_robust(data: OffPolicyData, discount: float = 1.0) -> Terms:
    """Doubly robust with weights divided, at each step, by their mean: a little bias for much less variance.

    Also known as self-normalised doubly robust.
    """
    values, action_values = data.baseline()
    outcomes, prices = len(data.outcomes), data.prices
    numerators = empty_parts(data)
    weights = data.weights
    for position, (users, rows) in enumerate(data.positions):
        factor = discount**position
        weight = weights[position, users] if discount == 1 else weights[position, users] * factor
        for place, outcome in enumerate(data.outcomes):
            # What follows a step is weighted, and normalised, by that step's weight.
            if position:
                following = values[place, rows] if discount == 1 else values[place, rows] * factor
                numerators[place, position - 1, users] += weights[position - 1, users] * following
            # A view of the numerators if all users still have steps, so that nothing is copied.
            surprise = numerators[place, position, users]
            np.subtract(outcome[rows, None], action_values[place, rows], out=surprise)
            surprise *= weight
            if not isinstance(users, slice):
                numerators[place, position, users] = surprise
    plain = np.array(values[:, data.positions[0][1]], dtype=np.float64)
    return Terms(plain, numerators, weights, np.ones((outcomes, data.steps, prices)))


# Confidence of the interval within which a shorter return counts as unbiased (10 % in Thomas and Brunskill).
_MAGIC_CONFIDENCE = 0.1


class Magic(Estimator):
    """MAGIC: weighted doubly robust for the first j steps and the baseline for the rest, averaged over j with the
    weights that minimise squared bias plus variance."""

    name = "magic"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(weighted_doubly_robust)

    def shares(self, moments: Moments) -> FloatArray:
        """See Estimator."""
        return magic_shares(moments)


def magic_shares(moments: Moments) -> FloatArray:
    """The share with which each step of a weighted doubly robust estimate counts, [outcomes, parts, prices]."""
    outcomes, parts, prices = moments.shares.shape
    shares = np.ones((outcomes, parts, prices))
    if moments.users < 2 or not parts:
        return shares
    steps = np.tri(parts + 1, parts, -1)  # the return that uses the log for j steps is the sum of j parts
    margin = ndtri(0.5 + _MAGIC_CONFIDENCE / 2)
    for outcome in range(outcomes):
        for price in range(prices):
            covariance = _return_covariance(moments, outcome, price, steps)
            returns = steps @ moments.ratios[outcome, :, price]
            if not (np.isfinite(returns).all() and np.isfinite(covariance).all()):
                continue
            reach = float(margin) * np.sqrt(max(covariance[-1, -1], 0.0))
            gap = returns - returns[-1]
            bias = np.sign(gap) * np.maximum(np.abs(gap) - reach, 0.0)
            shares[outcome, :, price] = _simplex_minimum(covariance + np.outer(bias, bias)) @ steps
    return shares


def _return_covariance(moments: Moments, outcome: int, price: int, steps: FloatArray) -> FloatArray:
    """Covariance of the returns that use the log for 0, 1, … steps, [parts + 1, parts + 1]."""
    outcomes, parts, _ = moments.shares.shape
    mean = np.where(moments.mean_weights[:, price] > 0, moments.mean_weights[:, price], np.nan)
    numerators = outcomes + outcome * parts
    weights = outcomes * (1 + parts)
    gradient = np.zeros((parts + 1, moments.means.shape[0]))
    gradient[:, outcome] = 1.0
    gradient[:, numerators : numerators + parts] = steps / mean
    gradient[:, weights:] = -steps * moments.ratios[outcome, :, price] / mean
    spread = gradient @ moments.products[price] @ gradient.T
    return np.asarray(spread / (moments.users * (moments.users - 1)))


def _simplex_minimum(matrix: FloatArray) -> FloatArray:
    """The shares x ≥ 0 that sum to 1 and minimise x' matrix x.

    Least squares with x ≥ 0 of [root; 1'] x against [0; 1] has the same direction: along any direction of shares it
    attains m / (1 + m), where m is the form's value there.
    """
    scale = float(np.trace(matrix))
    if not scale > 0:
        return np.asarray(np.eye(len(matrix))[-1])
    roots, vectors = np.linalg.eigh(matrix / scale)
    root = np.sqrt(np.maximum(roots, 0.0))[:, None] * vectors.T
    system = np.vstack([root, np.ones(len(matrix))])
    found, _ = nnls(system, np.append(np.zeros(len(matrix)), 1.0))
    return np.asarray(found / found.sum())


# Columns are left out if their spread is rounding error next to the largest, or if they depend on others.
_SPREAD_TOLERANCE, _RANK_TOLERANCE = 1e-10, 1e-12


@dataclass(frozen=True)
class MoreRobust(Estimator):
    """More robust doubly robust: the baseline is scaled to minimise variance, so a bad one is scaled down to nothing.

    The scales are learned on other users than those they are applied to, so the estimate stays unbiased.
    """

    folds: int = 5
    seed: int = 0
    name: str = "more_robust"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator; one pass sums the moments of the scaled columns, by fold."""
        folds = Folds(self.folds, self.seed)
        by_fold = users.reduce(lambda data: _moments_by_fold(data, folds, discount)).folds
        present = [moments for moments in by_fold if moments is not None]
        folds.check(sum(moments[0].users for moments in present))
        columns, prices = present[0][0].means.shape
        scales = np.zeros((folds.count, len(present[0]), columns - 1, prices))
        for fold in range(folds.count):
            others = [part for number, part in enumerate(by_fold) if number != fold and part is not None]
            for outcome, moments in enumerate(zip(*others, strict=True)):
                scales[fold, outcome] = _least_variance(merged(moments))
        return Prepared(ScaledBaseline(folds, scales).terms)


@dataclass(frozen=True, eq=False)
class ScaledBaseline:
    """Per-decision importance sampling plus the baseline's columns, with scales learned on the users of other folds."""

    folds: Folds
    scales: FloatArray
    """[folds, outcomes, steps, prices]."""

    def terms(self, data: OffPolicyData, discount: float) -> Terms:
        """The terms of each user."""
        fold = self.folds.of(data.keys)
        plain = per_decision(data, discount).plain
        for outcome, columns in enumerate(_columns(data, discount)):
            for step, column in enumerate(columns):
                plain[outcome] += column * self.scales[fold, outcome, step]
        return Terms.mean(plain)


def _columns(data: OffPolicyData, discount: float) -> FloatArray:
    """The baseline's columns of doubly robust, one per step, [outcomes, steps, users, prices]; their mean is 0 for any
    baseline if the propensities are right."""
    values, action_values = data.baseline()
    columns = np.zeros((len(data.outcomes), data.steps, data.users, data.prices))
    weights = data.weights
    for position, (users, rows) in enumerate(data.positions):
        change = -weights[position, users] * action_values[:, rows]
        change += weights[position - 1, users] * values[:, rows] if position else values[:, rows]
        columns[:, position, users] = change if discount == 1 else change * discount**position
    return columns


@dataclass(frozen=True, eq=False)
class _FoldMoments:
    """Moments of importance sampling and of the baseline's columns, by fold and outcome; None for an empty fold."""

    folds: tuple[tuple[Moments, ...] | None, ...]

    def merge(self, other: _FoldMoments) -> _FoldMoments:
        """Merge the moments of two batches of users."""
        return _FoldMoments(
            tuple(
                tuple(map(Moments.merge, one, two)) if one is not None and two is not None else one or two
                for one, two in zip(self.folds, other.folds, strict=True)
            )
        )


def _moments_by_fold(data: OffPolicyData, folds: Folds, discount: float) -> _FoldMoments:
    plain, columns = per_decision(data, discount).plain, _columns(data, discount)
    tables = [np.concatenate([plain[outcome][None], columns[outcome]]) for outcome in range(len(plain))]
    members = folds.members(data.keys)
    return _FoldMoments(
        tuple(tuple(Terms.mean(table[:, mine]).moments for table in tables) if len(mine) else None for mine in members)
    )


def _least_variance(moments: Moments) -> FloatArray:
    """Scales that minimise the variance of the first column plus the other columns scaled, [columns − 1, prices]."""
    products, outcome = moments.products[:, 1:, 1:], moments.products[:, 1:, 0]
    spread = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
    known = spread > _SPREAD_TOLERANCE * spread.max(axis=1, keepdims=True)
    inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=known)
    # All columns are scaled to the same spread, so eigenvalues near 0 mean linear dependence.
    roots, vectors = np.linalg.eigh(inverse[:, :, None] * products * inverse[:, None, :])
    used = roots > _RANK_TOLERANCE * len(spread.T)
    along = np.einsum("pcr,pc->pr", vectors, inverse * outcome)
    along = np.divide(along, roots, out=np.zeros_like(along), where=used)
    return np.asarray(-inverse * np.einsum("pcr,pr->pc", vectors, along)).T

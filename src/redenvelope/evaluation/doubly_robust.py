"""Doubly robust: a baseline's prediction, corrected by the weighted errors that it makes on the log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.estimators import Estimator, Prepared, empty_parts, per_decision
from redenvelope.evaluation.influence import Moments, Terms, merge_moments
from redenvelope.evaluation.partitions import Folds, Partitions


def doubly_robust(evidence: OffPolicyData, discount: float = 1.0) -> Terms:
    """Sequential doubly robust: unbiased if the weights are right, whatever the baseline; close to the direct method
    if the baseline is right. The weights are those of the evidence: products of ratios, or marginalised ones."""
    values, action_values = evidence.baseline()
    weights = evidence.weights
    first = evidence.positions[0][1]
    plain = evidence.outcomes[:, first, None] - action_values[:, first]  # in double precision, as outcomes are
    plain *= weights[0]
    plain += values[:, first]
    for position, (users, rows) in enumerate(evidence.positions[1:], start=1):
        before, here = weights[position - 1, users], weights[position, users]
        if discount != 1:
            before, here = before * discount**position, here * discount**position
        for place, outcome in enumerate(evidence.outcomes):
            surprise = outcome[rows, None] - action_values[place, rows]
            surprise *= here
            surprise += before * values[place, rows]
            plain[place, users] += surprise
    return Terms.mean(plain)


def weighted_doubly_robust(evidence: OffPolicyData, discount: float = 1.0) -> Terms:
    """Doubly robust with weights divided, step by step, by their mean: a little bias for much less variance.

    Also known as self-normalised doubly robust.
    """
    values, action_values = evidence.baseline()
    outcomes, prices = len(evidence.outcomes), evidence.prices
    numerators = empty_parts(evidence)
    weights = evidence.weights
    for position, (users, rows) in enumerate(evidence.positions):
        factor = discount**position
        weight = weights[position, users] if discount == 1 else weights[position, users] * factor
        for place, outcome in enumerate(evidence.outcomes):
            # What follows a step is weighed, and normalised, with the weight of that step.
            if position:
                following = values[place, rows] if discount == 1 else values[place, rows] * factor
                numerators[place, position - 1, users] += weights[position - 1, users] * following
            # A view of the numerators where everybody is there, so that nothing is copied.
            surprise = numerators[place, position, users]
            np.subtract(outcome[rows, None], action_values[place, rows], out=surprise)
            surprise *= weight
            if not isinstance(users, slice):
                numerators[place, position, users] = surprise
    plain = np.array(values[:, evidence.positions[0][1]], dtype=np.float64)
    return Terms(plain, numerators, weights, np.ones((outcomes, evidence.steps, prices)))


# MAGIC: how far to believe the baseline, step by step, chosen from the data.


# Of the interval within which a shorter return is not called biased (Thomas and Brunskill use 10 %).
_MAGIC_CONFIDENCE = 0.1


class Magic(Estimator):
    """Weighted doubly robust for the first steps and the baseline for the rest, blended over all numbers of first
    steps so that squared bias plus variance is least."""

    name = "magic"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(weighted_doubly_robust)

    def shares(self, moments: Moments) -> FloatArray:
        """See Estimator."""
        return magic_shares(moments)


def magic_shares(moments: Moments) -> FloatArray:
    """How much each step of a weighted doubly robust estimate should count, [outcomes, parts, prices]."""
    outcomes, parts, prices = moments.shares.shape
    shares = np.ones((outcomes, parts, prices))
    if moments.users < 2 or not parts:
        return shares
    steps = np.tri(parts + 1, parts, -1)  # the return that trusts the log for j steps adds up j parts
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
    """Covariance of the returns that trust the log for 0, 1, … steps, [parts + 1, parts + 1]."""
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
    """The shares x ≥ 0 that sum to 1 and make x' matrix x least.

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


# More robust doubly robust: the baseline scaled, step by step, so that the estimate's own variance is least.

OfFold = tuple[Moments, ...] | None
"""For each outcome, moments of importance sampling and of the baseline's columns; None of a fold without users."""

# A column whose spread is rounding next to the largest is left out, and so is what other columns say already.
_SPREAD_TOLERANCE, _RANK_TOLERANCE = 1e-10, 1e-12


@dataclass(frozen=True)
class MoreRobust(Estimator):
    """A bad baseline is scaled to nothing and does no harm; the scales come from other users than those they are
    applied to, so the estimate stays unbiased."""

    folds: int = 5
    seed: int = 0
    name: str = "more_robust"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator: one pass gives the moments of what is scaled, by fold."""
        folds = Folds(self.folds, self.seed)

        def by_fold(evidence: OffPolicyData) -> list[OfFold]:
            return _by_fold(evidence, folds, discount)

        found = users.reduce(by_fold, _merged)
        present = [part for part in found if part is not None]
        folds.check(sum(part[0].users for part in present))
        columns, prices = present[0][0].means.shape
        scales = np.zeros((folds.count, len(present[0]), columns - 1, prices))
        for fold in range(folds.count):
            others = [part for number, part in enumerate(found) if number != fold and part is not None]
            for outcome, moments in enumerate(zip(*others, strict=True)):
                scales[fold, outcome] = _least_variance(reduce(merge_moments, moments))
        return Prepared(ScaledBaseline(folds, scales).terms)


@dataclass(frozen=True, eq=False)
class ScaledBaseline:
    """Per-decision importance sampling, less the baseline's columns scaled as the other folds' users say."""

    folds: Folds
    scales: FloatArray
    """[folds, outcomes, steps, prices]."""

    def terms(self, evidence: OffPolicyData, discount: float) -> Terms:
        """What each user adds."""
        fold = self.folds.of(evidence.keys)
        plain = per_decision(evidence, discount).plain
        for outcome, columns in enumerate(_columns(evidence, discount)):
            for step, column in enumerate(columns):
                plain[outcome] += column * self.scales[fold, outcome, step]
        return Terms.mean(plain)


def _columns(evidence: OffPolicyData, discount: float) -> FloatArray:
    """What the baseline adds to doubly robust at each step, [outcomes, steps, users, prices]: mean 0, whatever the
    baseline, when the propensities are right."""
    values, action_values = evidence.baseline()
    columns = np.zeros((len(evidence.outcomes), evidence.steps, evidence.users, evidence.prices))
    weights = evidence.weights
    for position, (users, rows) in enumerate(evidence.positions):
        change = -weights[position, users] * action_values[:, rows]
        change += weights[position - 1, users] * values[:, rows] if position else values[:, rows]
        columns[:, position, users] = change if discount == 1 else change * discount**position
    return columns


def _by_fold(evidence: OffPolicyData, folds: Folds, discount: float) -> list[OfFold]:
    """The moments of each fold, [folds]."""
    fold = folds.of(evidence.keys)
    plain, columns = per_decision(evidence, discount).plain, _columns(evidence, discount)
    tables = [np.concatenate([plain[outcome][None], columns[outcome]]) for outcome in range(len(plain))]
    members = [np.flatnonzero(fold == number) for number in range(folds.count)]
    return [tuple(Terms.mean(table[:, mine]).moments for table in tables) if len(mine) else None for mine in members]


def _merged(first: list[OfFold], second: list[OfFold]) -> list[OfFold]:
    """The moments of two batches of users as those of all, [folds]."""
    return [
        tuple(map(merge_moments, one, other)) if one is not None and other is not None else one or other
        for one, other in zip(first, second, strict=True)
    ]


def _least_variance(moments: Moments) -> FloatArray:
    """The scales that make the variance of the first column plus the scaled others least, [columns − 1, prices]."""
    products, outcome = moments.products[:, 1:, 1:], moments.products[:, 1:, 0]
    spread = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
    told = spread > _SPREAD_TOLERANCE * spread.max(axis=1, keepdims=True)
    inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=told)
    # Of columns with one and the same spread, the roots tell which say what others say already.
    roots, vectors = np.linalg.eigh(inverse[:, :, None] * products * inverse[:, None, :])
    kept = roots > _RANK_TOLERANCE * len(spread.T)
    along = np.einsum("pcr,pc->pr", vectors, inverse * outcome)
    along = np.divide(along, roots, out=np.zeros_like(along), where=kept)
    return np.asarray(-inverse * np.einsum("pcr,pr->pc", vectors, along)).T

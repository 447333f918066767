"""More robust doubly robust: the baseline scaled, step by step, so that the estimate's own variance is least."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.estimator import Estimator, Prepared
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.folds import Folds
from redenvelope.evaluation.importance import per_decision
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.terms import Moments, Terms, merge_moments

__all__ = ["MoreRobust", "ScaledBaseline"]

FloatArray = NDArray[np.float64]
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

        def by_fold(evidence: Evidence) -> list[OfFold]:
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

    def terms(self, evidence: Evidence, discount: float) -> Terms:
        """What each user adds."""
        fold = self.folds.of(evidence.keys)
        plain = per_decision(evidence, discount).plain
        for outcome, columns in enumerate(_columns(evidence, discount)):
            for step, column in enumerate(columns):
                plain[outcome] += column * self.scales[fold, outcome, step]
        return Terms.mean(plain)


def _columns(evidence: Evidence, discount: float) -> FloatArray:
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


def _by_fold(evidence: Evidence, folds: Folds, discount: float) -> list[OfFold]:
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

"""Doubly robust with marginalised ratios: how much likelier the policy meets a state, whatever led there.

Products of ratios grow with every step; the ratio of a state's probabilities does not. Where users meet the same
states, this is the estimate with the least variance (double reinforcement learning, Kallus and Uehara).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.folds import user_folds
from redenvelope.evaluation.tabular import cell_means
from redenvelope.evaluation.terms import Terms

__all__ = ["Regression", "by_cell", "by_features", "marginal_ratios", "marginalised"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

Regression = Callable[[IndexArray, FloatArray, IndexArray], FloatArray]
"""Rows to learn from [n], what is regressed on their states [n, duals], rows to predict [m] -> [m, duals]; not a
number where nothing is known."""


def marginalised(evidence: Evidence, state_ratio: FloatArray, discount: float = 1.0) -> Terms:
    """Doubly robust with ratios of state probabilities [rows, duals] in place of products of ratios.

    Right if either these ratios (with the propensities) or the baseline are right.
    """
    values, action_values = evidence.baseline()
    if state_ratio.shape != evidence.ratio.shape:
        raise UsageError(f"state_ratio must be [rows, duals] = {evidence.ratio.shape}, not {state_ratio.shape}")
    plain = np.zeros((len(evidence.targets), evidence.users, evidence.duals))
    before = np.ones((evidence.users, evidence.duals))
    for position, (users, rows) in enumerate(evidence.positions):
        weight = state_ratio[rows] * evidence.ratio[rows]
        for target, outcome in enumerate(evidence.outcomes):
            surprise = weight * (outcome[rows, None] - action_values[target, rows])
            plain[target, users] += discount**position * (before[users] * values[target, rows] + surprise)
        before[users] = weight
    return Terms.mean(plain)


def marginal_ratios(evidence: Evidence, regression: Regression, folds: int = 5, seed: int = 0) -> FloatArray:
    """Ratios of state probabilities, policy over logger, [rows, duals], cross-fitted over users.

    The ratio of a state is the mean weight with which users arrive there: a regression on states, step after step.
    """
    fold = user_folds(evidence.users, folds, seed)
    result = np.ones_like(evidence.ratio)
    for number in range(folds):
        fitted = _arrivals(evidence, regression, fold != number)
        held = np.repeat(fold == number, evidence.lengths)
        result[held] = fitted[held]
    return result


def by_cell(cells: NDArray[np.integer]) -> Regression:
    """Means by cell [rows]."""
    places = np.unique(cells, return_inverse=True)[1]
    count = int(places.max()) + 1

    def regress(known: IndexArray, values: FloatArray, asked: IndexArray) -> FloatArray:
        means, sizes = cell_means(places[known], count, values)
        means[sizes == 0] = np.nan
        return np.asarray(means[places[asked]])

    return regress


def by_features(features: NDArray[np.floating], penalty: float = 1.0) -> Regression:
    """Ridge regression on features [rows, features]; ratios are never negative."""
    inputs = np.column_stack([np.ones(len(features)), np.asarray(features, dtype=np.float64)])

    def regress(known: IndexArray, values: FloatArray, asked: IndexArray) -> FloatArray:
        train = inputs[known]
        ridge = penalty * np.eye(train.shape[1])
        ridge[0, 0] = 0.0  # the mean itself is not shrunk
        scales = np.linalg.lstsq(train.T @ train + ridge, train.T @ values, rcond=None)[0]
        return np.asarray(np.maximum(inputs[asked] @ scales, 0.0))

    return regress


def _arrivals(evidence: Evidence, regression: Regression, train: NDArray[np.bool_]) -> FloatArray:
    """Ratios of all rows [rows, duals], learned from the users of `train` [users]."""
    everyone = np.arange(evidence.users)
    result = np.ones_like(evidence.ratio)
    arriving = np.ones((evidence.users, evidence.duals))
    for position, (users, rows) in enumerate(evidence.positions):
        if position:
            index = np.arange(evidence.rows)[rows]
            known = train[users]
            weight = arriving[users]
            fitted = regression(index[known], weight[known], index) if known.any() else np.full_like(weight, np.nan)
            # A state that no other user met: the user's own arrival is all there is.
            arrived = np.where(np.isnan(fitted), weight, fitted)
            result[rows] = _with_mean_of(weight, arrived, known)
        arriving[everyone[users]] = result[rows] * evidence.ratio[rows]
    return result


def _with_mean_of(weight: FloatArray, fitted: FloatArray, known: NDArray[np.bool_]) -> FloatArray:
    """Fitted ratios [n, duals], scaled to the mean of the weights [n, duals] over the users learned from [n].

    A regression bounded below does not keep the mean of what it is fitted to, and step after step the errors multiply.
    """
    if not known.any():
        return fitted
    wanted, given = weight[known].mean(axis=0), fitted[known].mean(axis=0)
    return np.asarray(fitted * np.divide(wanted, given, out=np.ones_like(wanted), where=given > 0))

"""How the logger chose: a multinomial logistic model of the action, always applied to users it did not see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fold, user_keys
from redenvelope.log.encoding import Encoder
from redenvelope.log.findings import Findings
from redenvelope.log.layout import StateLayout
from redenvelope.log.log import Log

__all__ = ["can_estimate", "estimate_propensities", "fold_of_rows", "with_estimated_propensities"]

_FOLDS = 5
_FIT_ROWS = 100_000  # a linear model of a few hundred weights learns little more from further rows
_PREDICT_ROWS = 100_000
_MOST_CODES = 50  # static categories with more labels stay out: their one-hots would outnumber the evidence
_RIDGE = 1e-4
_TINY_PROPENSITY = 0.001  # as for logged ones, see checks.py


def can_estimate(log: Log) -> bool:
    """Whether every user has others to be estimated from: the users fall into two folds at least."""
    return len(np.unique(fold_of_rows(log))) > 1


def estimate_propensities(log: Log) -> NDArray[np.float64]:
    """The probability of each logged action given its state, cross-fitted by user, [rows]."""
    fold_of_row = fold_of_rows(log)
    states, layout = _states(log)
    propensity = np.empty(len(log))
    for number in range(_FOLDS):
        held_out = np.flatnonzero(fold_of_row == number)
        if not len(held_out):
            continue
        weights = _fit(states, layout, log.action, np.flatnonzero(fold_of_row != number), len(log.catalogue))
        for rows in np.array_split(held_out, max(1, len(held_out) // _PREDICT_ROWS)):
            logits = _design(states[rows], layout) @ weights
            propensity[rows] = _softmax(logits)[np.arange(len(rows)), log.action[rows]]
    return propensity


def with_estimated_propensities(log: Log, findings: Findings) -> Log:
    """The log with cross-fitted propensities, labelled as estimated."""
    findings.add("propensity_estimated", column="propensity", count=len(log))
    propensity = estimate_propensities(log)
    tiny = int((propensity < _TINY_PROPENSITY).sum())
    if tiny:
        findings.add("propensity_tiny", column="propensity", count=tiny)
    return replace(
        log,
        propensity=propensity,
        propensity_source="estimated",
        findings=findings.sorted(),
    )


def fold_of_rows(log: Log) -> NDArray[np.int64]:
    """The cross-fitting fold of each row, by user, [rows]."""
    return np.repeat(fold(user_keys(log.users), _FOLDS, "propensity", seed=0), log.lengths)


def _states(log: Log) -> tuple[NDArray[np.float32], StateLayout]:
    encoder = Encoder.fit(log)
    return encoder.encode(log), encoder.layout


def _design(states: NDArray[np.float32], layout: StateLayout) -> NDArray[np.float64]:
    """States as regressors [rows, width]: codes become one-hots, and the step gets a bend and a constant."""
    step = states[:, [layout.step]].astype(np.float64)
    columns: list[NDArray[np.float64]] = [np.ones_like(step), step**2]
    columns.append(states[:, len(layout.static_categories) :].astype(np.float64))
    for place, size in enumerate(layout.static_categories):
        if size <= _MOST_CODES:
            columns.append((states[:, [place]] == np.arange(size)).astype(np.float64))
    return np.concatenate(columns, axis=1)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


def _fit(
    states: NDArray[np.float32],
    layout: StateLayout,
    action: NDArray[np.int32],
    rows: NDArray[np.int64],
    actions: int,
) -> NDArray[np.float64]:
    """Ridge-penalised maximum likelihood: weights [width, actions]."""
    from scipy.optimize import minimize

    if len(rows) > _FIT_ROWS:
        rows = rows[:: len(rows) // _FIT_ROWS + 1]
    design = _design(states[rows], layout)
    chosen = np.zeros((len(rows), actions))
    chosen[np.arange(len(rows)), action[rows]] = 1.0

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(design.shape[1], actions)
        probabilities = _softmax(design @ weights)
        likelihood = np.log(np.maximum((probabilities * chosen).sum(axis=1), 1e-300)).mean()
        gradient = design.T @ (probabilities - chosen) / len(rows) + 2 * _RIDGE * weights
        return float(_RIDGE * (weights**2).sum() - likelihood), gradient.ravel()

    start = np.zeros((design.shape[1], actions))
    start[0] = np.log(np.maximum(chosen.mean(axis=0), 1e-6))
    result = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 200, "ftol": 1e-7})
    weights: NDArray[np.float64] = result.x.reshape(start.shape)
    return weights

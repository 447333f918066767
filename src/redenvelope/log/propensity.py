"""Estimating propensities: a multinomial logistic model of the behaviour policy, cross-fitted by user.

The regressors are the states; the propensities of a user come from the model trained on the other folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.engine.engine import LocalEngine
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.findings import Findings
from redenvelope.log.limits import LEAST_PROPENSITY, TINY_PROPENSITY
from redenvelope.log.log import FeatureTable, Log, join_logs
from redenvelope.randomness import fold, fraction

FOLDS = 5
"""Folds of the cross-fitting: a user's propensities are estimated from the other folds."""

_FIT_ROWS = 125_000  # approximate: a linear model of a few hundred weights learns little from more rows
_BLOCK = 1 << 14  # rows
_MOST_CODES = 50  # static categories with more labels are left out: too many one-hots for the data


@dataclass(frozen=True, eq=False)
class AssignmentModel:
    """One logistic model for each fold of users, trained on the other folds."""

    encoder: Encoder
    weights: tuple[NDArray[np.float64] | None, ...]
    """[width, actions] for each fold; None if the sample has no users outside it."""

    def applied(self, log: Log) -> Log:
        """The log with estimated propensities, and `propensity_source` set accordingly."""
        return replace(log, propensity=self.propensities(log), propensity_source="estimated")

    def propensities(self, log: Log) -> NDArray[np.float64]:
        """The estimated probability of each logged action given its state, [rows]."""
        fold_of_row = fold_of_rows(log)
        propensity = np.empty(len(log))
        for first in range(0, len(log), _BLOCK):
            block = slice(first, first + _BLOCK)
            found = self._chances(log.features.rows(block), log.step[block], fold_of_row[block])
            propensity[block] = np.maximum(found[np.arange(len(found)), log.action[block]], LEAST_PROPENSITY)
        return propensity

    def probabilities(self, log: Log) -> NDArray[np.float64]:
        """The probability of every action given the state, [rows, actions]."""
        return self._chances(log.features, log.step, fold_of_rows(log))

    def _chances(
        self, features: FeatureTable, step: NDArray[np.int32], folds: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Probabilities of all actions for rows whose folds are known, [rows, actions]."""
        design = _design(self.encoder.encode_table(features, step), self.encoder, step)
        parts = {number: np.flatnonzero(folds == number) for number in np.unique(folds).tolist()}
        found = np.concatenate(
            [np.exp(log_probabilities(design[:, rows], self._weights(number))).T for number, rows in parts.items()]
        )
        return found[np.argsort(np.concatenate(list(parts.values())))]

    def _weights(self, number: int) -> NDArray[np.float64]:
        known = self.weights[number]
        assert known is not None  # fitted for every fold that has users
        return known


def fold_of_rows(log: Log) -> NDArray[np.int64]:
    """The cross-fitting fold of each row, by user, [rows]."""
    return np.repeat(fold(log.keys, FOLDS, "propensity", seed=0), log.lengths)


def estimate_propensities(parts: Iterable[Log], rows: int, users: int, findings: Findings) -> AssignmentModel | None:
    """The model that estimates the propensities of a log with so many rows and users; reports what it finds.

    The parts are iterated over twice. None, with an error reported, if they have users in one fold only.
    """
    model = learn_assignment(parts, rows)
    if model is None:
        findings.add("propensity_not_estimable", column="propensity", count=users)
        return None
    findings.add("propensity_estimated", column="propensity", count=rows)
    tiny = sum(int((model.propensities(log) < TINY_PROPENSITY).sum()) for log in parts)
    if tiny:
        findings.add("propensity_tiny", column="propensity", count=tiny)
    return model


def learn_assignment(parts: Iterable[Log], rows: int) -> AssignmentModel | None:
    """The model of a log in parts with so many rows in total; None if all users are in one fold.

    It is trained on a sample of users by id, large enough, so that any partition into parts gives the same model.
    """
    chosen = []
    folds: set[int] = set()
    for part in parts:
        folds |= set(np.unique(fold_of_rows(part)).tolist())
        users = fraction(part.keys, "propensity sample", 0) < _FIT_ROWS / rows
        if users.any():
            chosen.append(part if users.all() else part.select(users))
    return fit_assignment(join_logs(chosen)) if len(folds) > 1 else None


def fit_assignment(log: Log) -> AssignmentModel:
    """A model for each fold, trained on the users of the other folds; users must be in at least two folds."""
    encoder = Encoder.fit(log)
    design = _design(encoder.encode(log), encoder, log.step)
    fold_of_row = fold_of_rows(log)

    def fitted(number: int) -> NDArray[np.float64] | None:
        rows = np.flatnonzero(fold_of_row != number)
        return fit_logistic(design[:, rows], log.action[rows], len(log.catalogue)) if len(rows) else None

    return AssignmentModel(encoder, tuple(LocalEngine().map(fitted, range(FOLDS))))


def _design(states: NDArray[np.float32], encoder: Encoder, steps: NDArray[np.integer]) -> NDArray[np.float64]:
    """States as regressors [width, rows], with a constant. Codes become one-hots, and so does the step, because
    campaigns follow calendars; the step of a long campaign gets a quadratic term instead."""
    layout = encoder.layout
    codes = len(layout.static_categories)
    step = states[:, layout.step].astype(np.float64)
    bend = step[None] ** 2
    if encoder.campaign_steps <= _MOST_CODES:
        bend = (steps - encoder.first_step == np.arange(1, encoder.campaign_steps)[:, None]).astype(np.float64)
    columns: list[NDArray[np.float64]] = [np.ones((1, len(states))), bend]
    columns.append(states[:, codes:].T.astype(np.float64))
    for place, size in enumerate(layout.static_categories):
        if size <= _MOST_CODES:
            columns.append((states[:, place] == np.arange(size)[:, None]).astype(np.float64))
    return np.concatenate(columns)


# Multinomial logistic regression by ridge-penalised maximum likelihood.


_RIDGE = 1e-4
_ACCURACY = 1e-8  # relative, of the mean log-likelihood
# Smaller matrix products start no threads, and their inputs fit into a core's cache.
_PRODUCT = 200_000


def log_probabilities(design: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-probabilities of all actions: regressors [width, rows] and weights [width, actions] -> [actions, rows]."""
    logits = weights.T @ design
    logits -= logits.max(axis=0)
    logits -= np.log(np.exp(logits).sum(axis=0))
    return np.asarray(logits)


def fit_logistic(design: NDArray[np.float64], action: NDArray[np.int32], actions: int) -> NDArray[np.float64]:
    """The ridge-penalised maximum likelihood weights [width, actions] for actions [rows] and design [width, rows].

    The first regressor must be the constant.
    """
    from scipy.optimize import minimize

    width, rows = design.shape
    shares = np.bincount(action, minlength=actions) / rows
    turn = _even_coordinates(design, float((shares * (1 - shares)).mean()))
    blocks = [(np.ascontiguousarray(design[:, block]), action[block]) for block in _blocks(rows, width * actions)]

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = turn.T @ flat.reshape(width, actions)
        likelihood, gradient = 0.0, np.zeros((width, actions))
        for regressors, chosen in blocks:
            logs = log_probabilities(regressors, weights)
            places = np.arange(len(chosen))
            likelihood += float(logs[chosen, places].sum())
            excess = np.exp(logs, out=logs)
            excess[chosen, places] -= 1.0
            gradient += regressors @ excess.T
        gradient = gradient / rows + 2 * _RIDGE * weights
        return float(_RIDGE * (weights**2).sum()) - likelihood / rows, (turn @ gradient).ravel()

    start = np.zeros((width, actions))
    start[0] = np.log(np.maximum(shares, 1e-6))
    start[0] -= start[0].mean()  # a common shift changes no probability, and the penalty removes it
    result = minimize(
        loss,
        np.linalg.solve(turn.T, start).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 200, "ftol": _ACCURACY, "gtol": 1e-6},
    )
    weights: NDArray[np.float64] = turn.T @ result.x.reshape(width, actions)
    return weights


def _even_coordinates(design: NDArray[np.float64], uncertainty: float) -> NDArray[np.float64]:
    """The matrix [width, width] that transforms gradients so that the loss has about equal curvature in all directions.

    Then a few iterations suffice. Near the marginal shares of the actions, the curvature is that of the regressors'
    squares, times the mean uncertainty of an action, plus that of the penalty.
    """
    width, rows = design.shape
    squares = np.zeros((width, width))
    for block in _blocks(rows, width**2):
        squares += design[:, block] @ design[:, block].T
    root = np.linalg.cholesky(uncertainty / rows * squares + 2 * _RIDGE * np.eye(width))
    return np.linalg.inv(root)


def _blocks(rows: int, cells: int) -> Iterator[slice]:
    """Slices of rows, so short that a product with `cells` cells per row is small."""
    size = max(_PRODUCT // cells, 32)
    return (slice(first, first + size) for first in range(0, rows, size))

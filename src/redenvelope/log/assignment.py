"""How the logger chose: a multinomial logistic model of the action, always applied to users it did not see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fold, fraction
from redenvelope.engine.local import LocalEngine
from redenvelope.log.encoding import Encoder
from redenvelope.log.findings import Findings
from redenvelope.log.join import join_logs
from redenvelope.log.layout import StateLayout
from redenvelope.log.limits import LEAST_PROPENSITY
from redenvelope.log.log import Log
from redenvelope.log.logistic import fit_logistic, log_probabilities

__all__ = [
    "FOLDS",
    "AssignmentModel",
    "fit_assignment",
    "fold_of_rows",
    "learn_assignment",
    "report_estimates",
]

FOLDS = 5
"""Users are estimated from the other folds' alone."""

_FIT_ROWS = 125_000  # about: a linear model of a few hundred weights learns little more from further rows
_BLOCK = 1 << 14  # rows
_MOST_CODES = 50  # static categories with more labels stay out: their one-hots would outnumber the evidence


@dataclass(frozen=True, eq=False)
class AssignmentModel:
    """One logistic model for each fold of users, learned from the others."""

    encoder: Encoder
    weights: tuple[NDArray[np.float64] | None, ...]
    """[width, actions] for each fold; None where the sample had no such users."""

    def applied(self, log: Log) -> Log:
        """The log with estimated propensities, labelled so."""
        return replace(log, propensity=self.propensities(log), propensity_source="estimated")

    def propensities(self, log: Log) -> NDArray[np.float64]:
        """The probability of each logged action given its state, [rows]."""
        fold_of_row = fold_of_rows(log)
        propensity = np.empty(len(log))
        for first in range(0, len(log), _BLOCK):
            block = slice(first, first + _BLOCK)
            states = self.encoder.encode_table(log.features.rows(block), log.step[block])
            design, folds, action = _design(states, self.encoder.layout), fold_of_row[block], log.action[block]
            for number in np.unique(folds):
                rows = np.flatnonzero(folds == number)
                logs = log_probabilities(design[:, rows], self._weights(int(number)))
                chances = np.exp(logs[action[rows], np.arange(len(rows))])
                propensity[rows + first] = np.maximum(chances, LEAST_PROPENSITY)
        return propensity

    def _weights(self, number: int) -> NDArray[np.float64]:
        known = self.weights[number]
        assert known is not None  # a model of whoever it is asked about
        return known


def fold_of_rows(log: Log) -> NDArray[np.int64]:
    """The cross-fitting fold of each row, by user, [rows]."""
    return np.repeat(fold(log.keys, FOLDS, "propensity", seed=0), log.lengths)


def learn_assignment(parts: Iterable[Log], rows: int) -> AssignmentModel | None:
    """The model of a log of so many rows in parts; None where some user has no others to be estimated from.

    It learns from users with about as many rows as it needs, chosen by their ids, so that any parts give the same.
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
    """A model for each fold from the users of the other folds; they fall into two at least."""
    encoder = Encoder.fit(log)
    design = _design(encoder.encode(log), encoder.layout)
    fold_of_row = fold_of_rows(log)

    def fitted(number: int) -> NDArray[np.float64] | None:
        rows = np.flatnonzero(fold_of_row != number)
        return fit_logistic(design[:, rows], log.action[rows], len(log.catalogue)) if len(rows) else None

    return AssignmentModel(encoder, tuple(LocalEngine().map(fitted, range(FOLDS))))


def report_estimates(rows: int, tiny: int, findings: Findings) -> None:
    """Report that the propensities of so many rows were estimated, so many of them below `TINY_PROPENSITY`."""
    findings.add("propensity_estimated", column="propensity", count=rows)
    if tiny:
        findings.add("propensity_tiny", column="propensity", count=tiny)


def _design(states: NDArray[np.float32], layout: StateLayout) -> NDArray[np.float64]:
    """States as regressors [width, rows]: codes become one-hots, and the step gets a bend and a constant."""
    codes = len(layout.static_categories)
    step = states[:, layout.step].astype(np.float64)
    columns: list[NDArray[np.float64]] = [np.ones((1, len(states))), step[None] ** 2]
    columns.append(states[:, codes:].T.astype(np.float64))
    for place, size in enumerate(layout.static_categories):
        if size <= _MOST_CODES:
            columns.append((states[:, place] == np.arange(size)[:, None]).astype(np.float64))
    return np.concatenate(columns)

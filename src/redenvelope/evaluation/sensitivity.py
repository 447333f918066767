"""Sensitivity to hidden confounding: the smallest odds ratio Γ at which hidden causes could bring a cost to its budget.

The marginal sensitivity model (Tan 2006): given all that decided, the odds of the logged action may differ from the
logged ones by a factor of at most Γ, so its weight 1/p lies between 1 + (1/p − 1)/Γ and 1 + (1/p − 1)·Γ. Given the
state, true weights of an action are 1 on average as the logged ones are; so a quantile of the errors that they weigh
can be taken from these without changing a mean (quantile balancing, Dorn and Guo 2023), and the bound is far narrower
than one that lets every error have its worst weight. Over several steps the shifts of single steps are added, the
others as logged: exact for one step, of the first order for more. Chance is not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.evaluate import Evaluation
from redenvelope.log.log import Log

LARGEST_ODDS = 20.0
"""No larger ratio is looked for."""
_HALVINGS = 30


@dataclass(frozen=True, eq=False)
class WeighedErrors:
    """The errors of one outcome's baseline at the rows of one action, rising, and what hidden causes could add."""

    errors: FloatArray
    """[rows]"""
    free: FloatArray
    """Weight of each error times 1 − p: the part that odds can change, per user, [rows]."""

    def shift(self, odds: float) -> float:
        """The most that the mean per user could rise."""
        reached = np.cumsum(self.free)
        place = int(np.searchsorted(reached, odds / (1 + odds) * reached[-1])) if len(reached) else 0
        if not len(reached) or reached[-1] <= 0:
            return 0.0
        away = self.errors - self.errors[min(place, len(reached) - 1)]
        return float((self.free * away * np.where(away > 0, odds - 1, 1 / odds - 1)).sum())


def hidden_odds(evaluation: Evaluation, log: Log, shares: FloatArray, rooms: Sequence[float]) -> float:
    """The smallest odds ratio at which the cost of a mixture of the evaluated prices, shares [prices], could exceed its
    budget; `rooms` are what each budget leaves, per user. `LARGEST_ODDS` where none up to that does."""
    parts = weighed_errors(evaluation, log, shares)
    found = [_least_odds(parts[1 + budget], room) for budget, room in enumerate(rooms)]
    return min(found, default=LARGEST_ODDS)


def weighed_errors(evaluation: Evaluation, log: Log, shares: FloatArray) -> list[list[WeighedErrors]]:
    """For each outcome, the errors at the rows of each action and each price that has a share."""
    used, first = np.flatnonzero(shares), 0
    errors, free = [], []
    prepared = evaluation.estimator.prepare(evaluation.partitions, 1.0)
    for part in evaluation.partitions.parts():
        rows = slice(first, first + part.rows)
        weights = _row_weights(prepared.weigh(part))[:, used] * shares[used] / evaluation.users
        free.append((1 - log.propensity[rows])[:, None] * weights)
        errors.append(_errors(part)[..., used])
        first += part.rows
    every, changeable = np.concatenate(errors, axis=1), np.concatenate(free)
    actions = [np.flatnonzero(log.action == action) for action in range(len(log.catalogue))]
    places = [(rows, price) for rows in actions for price in range(len(used))]
    return [[_rising(outcome[place], changeable[place]) for place in places] for outcome in every]


def _rising(errors: FloatArray, free: FloatArray) -> WeighedErrors:
    order = np.argsort(errors, kind="stable")
    return WeighedErrors(np.asarray(errors[order], np.float64), np.asarray(free[order], np.float64))


def _least_odds(parts: list[WeighedErrors], room: float) -> float:
    """By halving: the shift rises with the odds ratio."""
    if room <= 0:
        return 1.0
    if sum(part.shift(LARGEST_ODDS) for part in parts) <= room:
        return LARGEST_ODDS
    low, high = 1.0, LARGEST_ODDS
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if sum(part.shift(middle) for part in parts) > room else (middle, high)
    return high


def _row_weights(weighed: OffPolicyData) -> FloatArray:
    """Importance weights of each row's step, [rows, prices]."""
    weights = np.empty((weighed.rows, weighed.prices))
    for position, (users, rows) in enumerate(weighed.positions):
        weights[rows] = weighed.weights[position, users]
    return weights


def _errors(part: OffPolicyData) -> NDArray[np.floating]:
    """Outcome and value to go of each row, less the baseline of its action, [outcomes, rows, prices]."""
    if part.values is None or part.action_values is None:
        return np.broadcast_to(part.outcomes[..., None], (*part.outcomes.shape, part.prices))
    ahead = np.zeros_like(part.values)
    ahead[:, :-1] = part.values[:, 1:]
    ahead[:, part.starts[1:] - 1] = 0.0  # nothing follows a user's last row
    return part.outcomes[..., None] + ahead - part.action_values

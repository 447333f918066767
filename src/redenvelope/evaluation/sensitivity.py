"""Sensitivity to hidden confounding: the smallest odds ratio Γ at which hidden causes could bring a cost to its budget.

The marginal sensitivity model (Tan 2006): given everything that determined it, the odds of the logged action may differ
from the logged odds by a factor of at most Γ, so its weight 1/p lies between 1 + (1/p − 1)/Γ and 1 + (1/p − 1)·Γ. Given
the state, an action's true weights have mean 1, as the logged ones do; so a quantile of the errors can be subtracted
from them without changing the weighted mean (quantile balancing, Dorn and Guo 2023), which gives a far tighter bound
than the worst weight for every error. Over several steps, the shifts of single steps, each with the other steps as
logged, are added: exact for one step, first order for more. Sampling error is not included.
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
"""The largest odds ratio that is searched."""
_HALVINGS = 30


@dataclass(frozen=True, eq=False)
class WeighedErrors:
    """The baseline's errors for one outcome in rows of one action, ascending, and the weights that odds can change."""

    errors: FloatArray
    """[rows]"""
    free: FloatArray
    """Weight of each error times 1 − p, the part of the weight that odds can change, per user, [rows]."""

    def shift(self, odds: float) -> float:
        """The largest possible increase of the mean per user at these odds."""
        reached = np.cumsum(self.free)
        place = int(np.searchsorted(reached, odds / (1 + odds) * reached[-1])) if len(reached) else 0
        if not len(reached) or reached[-1] <= 0:
            return 0.0
        away = self.errors - self.errors[min(place, len(reached) - 1)]
        return float((self.free * away * np.where(away > 0, odds - 1, 1 / odds - 1)).sum())


def hidden_odds(evaluation: Evaluation, log: Log, shares: FloatArray, rooms: Sequence[float]) -> float:
    """The smallest odds ratio at which the cost of a mixture of the evaluated prices, with shares [prices], could
    exceed its budget; `LARGEST_ODDS` if none up to that does. `rooms` are the budgets minus the costs, per user."""
    parts = weighed_errors(evaluation, log, shares)
    found = [_least_odds(parts[1 + budget], room) for budget, room in enumerate(rooms)]
    return min(found, default=LARGEST_ODDS)


def weighed_errors(evaluation: Evaluation, log: Log, shares: FloatArray) -> list[list[WeighedErrors]]:
    """For each outcome, the errors in the rows of each action, at each price with a share."""
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
    """Bisect: the shift rises with the odds ratio."""
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
    """Outcome plus value to go of each row minus the baseline of its action, [outcomes, rows, prices]."""
    if part.values is None or part.action_values is None:
        return np.broadcast_to(part.outcomes[..., None], (*part.outcomes.shape, part.prices))
    ahead = np.zeros_like(part.values)
    ahead[:, :-1] = part.values[:, 1:]
    ahead[:, part.starts[1:] - 1] = 0.0  # nothing follows a user's last row
    return part.outcomes[..., None] + ahead - part.action_values

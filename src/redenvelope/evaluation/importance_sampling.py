"""Importance sampling and the direct method.

Importance sampling weights logged outcomes by how much likelier the policy makes the actions that led to them; the
direct method uses the baseline's prediction alone.
"""

from __future__ import annotations

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.diagnostics import Diagnostics, Reason, Weight
from redenvelope.evaluation.estimators import Estimator, Prepared
from redenvelope.evaluation.influence import Terms
from redenvelope.evaluation.partitions import Partitions


def trajectory(data: OffPolicyData, discount: float = 1.0) -> Terms:
    """Trajectory importance sampling: each user's total, weighted by the ratio of the complete trajectory."""
    totals, weight = _totals(data, discount)
    return Terms.mean(totals * weight)


def self_normalised_trajectory(data: OffPolicyData, discount: float = 1.0) -> Terms:
    """As `trajectory`, divided by the mean weight."""
    totals, weight = _totals(data, discount)
    outcomes, prices = len(totals), data.prices
    return Terms(
        plain=np.broadcast_to(0.0, (outcomes, *weight.shape)),
        numerators=(totals * weight)[:, None],
        weights=weight[None],
        shares=np.ones((outcomes, 1, prices)),
    )


def per_decision(data: OffPolicyData, discount: float = 1.0) -> Terms:
    """Per-decision importance sampling: each outcome is weighted by the cumulative ratio up to its step."""
    weights = data.weights
    plain = weights[0] * data.outcomes[:, data.positions[0][1], None]
    for position, (users, rows) in enumerate(data.positions[1:], start=1):
        weight = weights[position, users]
        here = weight if discount == 1 else weight * discount**position
        for place, outcome in enumerate(data.outcomes):
            plain[place, users] += here * outcome[rows, None]
    return Terms.mean(plain)


def self_normalised_per_decision(data: OffPolicyData, discount: float = 1.0) -> Terms:
    """As `per_decision`, divided at each step by the mean weight.

    A user who has left keeps the last weight: users leave under the policy too, and the weights with mean 1 are those
    of all users, not of those still in the campaign.
    """
    outcomes, prices = len(data.outcomes), data.prices
    numerators = empty_parts(data)
    weights = data.weights
    for position, (users, rows) in enumerate(data.positions):
        for place, outcome in enumerate(data.outcomes):
            later = outcome[rows, None] if discount == 1 else outcome[rows, None] * discount**position
            if isinstance(users, slice):
                np.multiply(weights[position], later, out=numerators[place, position])
            else:
                numerators[place, position, users] = weights[position, users] * later
    plain = np.broadcast_to(0.0, (outcomes, data.users, prices))
    return Terms(plain, numerators, weights, np.ones((outcomes, data.steps, prices)))


def empty_parts(data: OffPolicyData) -> FloatArray:
    """An array of numerators to fill step by step, [outcomes, steps, users, prices]; zero for users who have left."""
    shape = (len(data.outcomes), data.steps, data.users, data.prices)
    is_filled = int(data.lengths.min()) == data.steps
    return np.empty(shape) if is_filled else np.zeros(shape)


def _totals(data: OffPolicyData, discount: float) -> tuple[FloatArray, FloatArray]:
    """Discounted totals [outcomes, users, 1], and the weights of complete trajectories [users, prices]."""
    totals = np.array(data.outcomes[:, data.positions[0][1]])
    for position, (users, rows) in enumerate(data.positions[1:], start=1):
        later = data.outcomes[:, rows]
        totals[:, users] += later if discount == 1 else later * discount**position
    return totals[:, :, None], data.weights[-1]


_BELIEVED = Reason(
    "baseline_believed",
    Weight.WARNING,
    "the direct method relies on its baseline: its interval includes the spread of users, not the baseline's error",
)


class Direct(Estimator):
    """The direct method; it uses no weights, so their diagnostics do not apply."""

    name = "direct"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(direct)

    def reasons(self, diagnostics: Diagnostics, price: int) -> tuple[Reason, ...]:
        """See Estimator."""
        return (_BELIEVED,)


def direct(data: OffPolicyData, discount: float = 1.0) -> Terms:
    """The direct method: the baseline of the first state.

    Its error is the baseline's, which no interval includes. The baseline already contains the discount.
    """
    values, _ = data.baseline()
    return Terms.mean(values[:, data.positions[0][1]].astype(np.float64, copy=False))

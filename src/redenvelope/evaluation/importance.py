"""Importance sampling: logged outcomes, weighted by how much likelier the policy makes what led to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.terms import Terms

__all__ = [
    "empty_parts",
    "per_decision",
    "self_normalised_per_decision",
    "self_normalised_trajectory",
    "trajectory",
]

FloatArray = NDArray[np.float64]


def trajectory(evidence: Evidence, discount: float = 1.0) -> Terms:
    """Each user's total, weighted by the ratio of the user's whole trajectory."""
    totals, weight = _totals(evidence, discount)
    return Terms.mean(totals * weight)


def self_normalised_trajectory(evidence: Evidence, discount: float = 1.0) -> Terms:
    """As `trajectory`, divided by the mean weight."""
    totals, weight = _totals(evidence, discount)
    outcomes, prices = len(totals), evidence.prices
    return Terms(
        plain=np.broadcast_to(0.0, (outcomes, *weight.shape)),
        numerators=(totals * weight)[:, None],
        weights=weight[None],
        shares=np.ones((outcomes, 1, prices)),
    )


def per_decision(evidence: Evidence, discount: float = 1.0) -> Terms:
    """Each outcome, weighted by the ratio of the trajectory up to it: later choices do not matter to it."""
    weights = evidence.weights
    plain = weights[0] * evidence.outcomes[:, evidence.positions[0][1], None]
    for position, (users, rows) in enumerate(evidence.positions[1:], start=1):
        weight = weights[position, users]
        here = weight if discount == 1 else weight * discount**position
        for place, outcome in enumerate(evidence.outcomes):
            plain[place, users] += here * outcome[rows, None]
    return Terms.mean(plain)


def self_normalised_per_decision(evidence: Evidence, discount: float = 1.0) -> Terms:
    """As `per_decision`, divided step by step by the mean weight.

    A user who has left keeps the last weight: leaving is something that happens under the policy too, and the weights
    of all users, not of those still there, have mean 1.
    """
    outcomes, prices = len(evidence.outcomes), evidence.prices
    numerators = empty_parts(evidence)
    weights = evidence.weights
    for position, (users, rows) in enumerate(evidence.positions):
        for place, outcome in enumerate(evidence.outcomes):
            later = outcome[rows, None] if discount == 1 else outcome[rows, None] * discount**position
            if isinstance(users, slice):
                np.multiply(weights[position], later, out=numerators[place, position])
            else:
                numerators[place, position, users] = weights[position, users] * later
    plain = np.broadcast_to(0.0, (outcomes, evidence.users, prices))
    return Terms(plain, numerators, weights, np.ones((outcomes, evidence.steps, prices)))


def empty_parts(evidence: Evidence) -> FloatArray:
    """Numerators to be filled step by step, [outcomes, steps, users, prices]; zero for users who have left."""
    shape = (len(evidence.outcomes), evidence.steps, evidence.users, evidence.prices)
    is_filled = int(evidence.lengths.min()) == evidence.steps
    return np.empty(shape) if is_filled else np.zeros(shape)


def _totals(evidence: Evidence, discount: float) -> tuple[FloatArray, FloatArray]:
    """Discounted totals [outcomes, users, 1] and the weights of whole trajectories [users, prices]."""
    totals = np.array(evidence.outcomes[:, evidence.positions[0][1]])
    for position, (users, rows) in enumerate(evidence.positions[1:], start=1):
        later = evidence.outcomes[:, rows]
        totals[:, users] += later if discount == 1 else later * discount**position
    return totals[:, :, None], evidence.weights[-1]

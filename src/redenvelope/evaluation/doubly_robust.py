"""Doubly robust: a baseline's prediction, corrected by the weighted errors that it makes on the log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.importance import empty_parts
from redenvelope.evaluation.terms import Terms

__all__ = ["doubly_robust", "weighted_doubly_robust"]

FloatArray = NDArray[np.float64]


def doubly_robust(evidence: Evidence, discount: float = 1.0) -> Terms:
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


def weighted_doubly_robust(evidence: Evidence, discount: float = 1.0) -> Terms:
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

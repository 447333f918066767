"""Doubly robust: a baseline's prediction, corrected by the weighted errors that it makes on the log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.importance import empty_parts
from redenvelope.evaluation.terms import Terms

__all__ = ["direct", "doubly_robust", "weighted_doubly_robust"]

FloatArray = NDArray[np.float64]


def direct(evidence: Evidence, discount: float = 1.0) -> Terms:
    """The direct method: the baseline of the first state, believed as it is.

    Its error is that of the baseline, and no interval knows it. The discount is in the baseline already.
    """
    values, _ = evidence.baseline()
    return Terms.mean(values[:, evidence.positions[0][1]])


def doubly_robust(evidence: Evidence, discount: float = 1.0) -> Terms:
    """Sequential doubly robust: unbiased if the propensities are right, whatever the baseline; close to the direct
    method if the baseline is right."""
    values, action_values = evidence.baseline()
    weights = evidence.weights
    first = evidence.positions[0][1]
    plain = evidence.outcomes[:, first, None] - action_values[:, first]
    plain *= weights[0]
    plain += values[:, first]
    for position, (users, rows) in enumerate(evidence.positions[1:], start=1):
        before, here = weights[position - 1, users], weights[position, users]
        if discount != 1:
            before, here = before * discount**position, here * discount**position
        for target, outcome in enumerate(evidence.outcomes):
            surprise = outcome[rows, None] - action_values[target, rows]
            surprise *= here
            surprise += before * values[target, rows]
            plain[target, users] += surprise
    return Terms.mean(plain)


def weighted_doubly_robust(evidence: Evidence, discount: float = 1.0) -> Terms:
    """Doubly robust with weights divided, step by step, by their mean: a little bias for much less variance.

    Also known as self-normalised doubly robust.
    """
    values, action_values = evidence.baseline()
    targets, duals = len(evidence.targets), evidence.duals
    numerators = empty_parts(evidence)
    weights = evidence.weights
    for position, (users, rows) in enumerate(evidence.positions):
        factor = discount**position
        weight = weights[position, users] if discount == 1 else weights[position, users] * factor
        for target, outcome in enumerate(evidence.outcomes):
            # What follows a step is weighed, and normalised, with the weight of that step.
            if position:
                following = values[target, rows] if discount == 1 else values[target, rows] * factor
                numerators[target, position - 1, users] += weights[position - 1, users] * following
            # A view of the numerators where everybody is there, so that nothing is copied.
            surprise = numerators[target, position, users]
            np.subtract(outcome[rows, None], action_values[target, rows], out=surprise)
            surprise *= weight
            if not isinstance(users, slice):
                numerators[target, position, users] = surprise
    plain = np.array(values[:, evidence.positions[0][1]])
    return Terms(plain, numerators, weights, np.ones((targets, evidence.steps, duals)))

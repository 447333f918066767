"""Did the logger look at the user? Whether features predict the action on users the model did not see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redenvelope.chance import user_fraction
from redenvelope.log.assignment import can_estimate, estimate_propensities, fold_of_rows
from redenvelope.log.log import Log

__all__ = ["AssignmentEvidence", "assignment_evidence"]

_USERS = 10_000  # enough to see a gain of a thousandth of a nat


@dataclass(frozen=True)
class AssignmentEvidence:
    """What the features tell about the action, beyond how often it is given at that step."""

    gain: float
    """Mean log-likelihood gained, in nats a row."""
    standard_error: float
    """By user."""

    @property
    def looks_random(self) -> bool:
        """No gain beyond chance, or none worth the name."""
        return self.gain < 2 * self.standard_error or self.gain < 1e-3


def assignment_evidence(log: Log) -> AssignmentEvidence:
    """Compare the features' prediction of the action with its plain frequency at each step, cross-fitted."""
    if not can_estimate(log):
        return AssignmentEvidence(0.0, float("inf"))
    if len(log.users) > _USERS:
        log = log.select(user_fraction(log.users, "assignment evidence", 0) < _USERS / len(log.users))
    explained = np.log(estimate_propensities(log))
    fold = fold_of_rows(log)
    step = log.step - log.first_step
    plain = np.empty(len(log))
    for number in np.unique(fold):
        seen, held_out = fold != number, fold == number
        counts = np.ones((int(step.max()) + 1, len(log.catalogue)))
        np.add.at(counts, (step[seen], log.action[seen]), 1.0)
        frequency = counts / counts.sum(axis=1, keepdims=True)
        plain[held_out] = np.log(frequency[step[held_out], log.action[held_out]])
    gains = log.sums_by_user(explained - plain) / log.lengths.mean()
    return AssignmentEvidence(float(gains.mean()), float(gains.std() / np.sqrt(len(gains))))

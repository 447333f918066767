"""Did the logger look at the user? Whether features predict the action on users the model did not see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fraction
from redenvelope.log.assignment import FOLDS, fit_assignment, fold_of_rows
from redenvelope.log.log import Log

__all__ = ["AssignmentEvidence", "assignment_evidence", "evidence_sample"]

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


def evidence_sample(log: Log, users: int) -> Log | None:
    """The users of a part who stand for the whole log of so many, chosen by their ids; None where there is none."""
    chosen = fraction(log.keys, "assignment evidence", 0) < _USERS / users
    return log if chosen.all() else log.select(chosen) if chosen.any() else None


def assignment_evidence(log: Log) -> AssignmentEvidence:
    """Compare the features' prediction of the action with its plain frequency at each step, cross-fitted."""
    if len(np.unique(fold_of_rows(log))) < 2:
        return AssignmentEvidence(0.0, float("inf"))
    explained = np.log(fit_assignment(log).propensities(log))
    gains = log.sums_by_user(explained - np.log(_frequencies(log))) / log.lengths.mean()
    return AssignmentEvidence(float(gains.mean()), float(gains.std() / np.sqrt(len(gains))))


def _frequencies(log: Log) -> NDArray[np.float64]:
    """How often users of the other folds got the logged action at that step, each action once more, [rows]."""
    fold = fold_of_rows(log)
    step = log.step - log.first_step
    shape = (FOLDS, log.campaign_steps, len(log.catalogue))
    own = np.bincount(np.ravel_multi_index((fold, step, log.action), shape), minlength=int(np.prod(shape)))
    counts = own.reshape(shape)
    others = counts.sum(axis=0) - counts + 1
    return np.asarray((others / others.sum(axis=2, keepdims=True))[fold, step, log.action])

"""Can another policy be weighed against this log? Propensities, their calibration, and weights by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.log import Log

__all__ = [
    "LEAST_EFFECTIVE_USERS",
    "Calibration",
    "StepOverlap",
    "calibration",
    "effective_size",
    "overlap_by_step",
    "steps_alive",
]

LEAST_EFFECTIVE_USERS = 50
"""A certificate refuses fewer: an average over them has no error worth quoting."""

_MOST_STEPS = 20


@dataclass(frozen=True)
class Calibration:
    """Whether an action's propensities add up: 1/p over its rows should count every row once."""

    label: str
    ratio: float
    z: float

    @property
    def is_off(self) -> bool:
        """Off by more than chance and by more than 2 %."""
        return abs(self.z) > 4 and abs(self.ratio - 1) > 0.02


@dataclass(frozen=True)
class StepOverlap:
    """How many users are left to speak for a policy after so many steps."""

    step: int
    """Number of steps weighed, from 1."""
    users: int
    """Users with at least so many steps."""
    uniform: float
    """Effective number of users for the uniform policy."""
    greedy: float
    """Effective number of users for giving always the action with the highest mean reward, all steps so far weighed."""
    alone: float
    """The same with this step weighed alone, users who have left by their last one: the most a certificate can have,
    which weighs states and not histories."""
    matching: int
    """Users whose logged actions are all that action."""


def effective_size(weights: NDArray[np.float64]) -> float:
    """Kish's effective sample size of some weights."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def calibration(log: Log) -> tuple[Calibration, ...]:
    """For each action, the mean of 1/p over all rows (0 where another action was logged): 1 if p is right."""
    users = len(log.users)
    results = []
    for action, label in enumerate(log.catalogue.labels):
        inverse = np.where(log.action == action, 1.0 / log.propensity, 0.0)
        by_user = log.sums_by_user(inverse - 1.0)
        mean = by_user.mean() / log.lengths.mean()
        error = by_user.std(ddof=1) / np.sqrt(users) / log.lengths.mean() if users > 1 else np.inf
        results.append(Calibration(label, float(1 + mean), float(mean / error) if error > 0 else 0.0))
    return tuple(results)


def overlap_by_step(log: Log, greedy_action: int) -> tuple[StepOverlap, ...]:
    """Effective number of users by step, for the uniform policy and for one fixed action."""
    users = len(log.users)
    uniform, greedy, alone = np.ones(users), np.ones(users), np.ones(users)
    overlaps = []
    for position in range(min(int(log.lengths.max()), _MOST_STEPS)):
        present = np.flatnonzero(log.lengths > position)
        rows = log.starts[present] + position
        uniform[present] /= len(log.catalogue) * log.propensity[rows]
        alone[present] = (log.action[rows] == greedy_action) / log.propensity[rows]
        greedy[present] *= alone[present]
        overlaps.append(
            StepOverlap(
                step=position + 1,
                users=len(present),
                uniform=effective_size(uniform[present]),
                greedy=effective_size(greedy[present]),
                alone=effective_size(alone),
                matching=int(np.count_nonzero(greedy[present])),
            )
        )
    return tuple(overlaps)


def steps_alive(overlaps: tuple[StepOverlap, ...], certify_share: float) -> int:
    """For how many steps a fixed action still has enough effective users among those who certify."""
    needed = LEAST_EFFECTIVE_USERS / certify_share
    return next((place for place, overlap in enumerate(overlaps) if overlap.greedy < needed), len(overlaps))

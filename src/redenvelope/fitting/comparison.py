"""One table for people: the plan beside what was logged, chance, and the bandit, on the same users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from redenvelope.fitting.certify import check
from redenvelope.log.log import Log
from redenvelope.plan.policy import DeployedPolicy

__all__ = ["ComparedPolicy", "added_by_user", "compare", "logged_by_user"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ComparedPolicy:
    """A policy's cost and reward a user, and what it differs by from the logged behaviour on the same users."""

    policy: str
    cost: float
    cost_error: float
    reward: float
    reward_error: float
    cost_difference: float
    cost_difference_lower: float
    cost_difference_upper: float
    reward_difference: float
    reward_difference_lower: float
    reward_difference_upper: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def logged_by_user(log: Log) -> FloatArray:
    """What each user earned and cost as logged, [2, users]: reward, then cost."""
    return np.stack([log.sums_by_user(log.reward), log.sums_by_user(log.cost)])


def added_by_user(policy: DeployedPolicy, log: Log, seed: int) -> FloatArray:
    """What each user adds to the estimates of a policy, [2, users]: reward, then cost."""
    return np.asarray(check(policy, log, seed).influence() @ np.asarray(policy.specification.shares))


def compare(added: Mapping[str, FloatArray], confidence: float) -> tuple[ComparedPolicy, ...]:
    """Compare policies by what each user adds, [2, users]; the first is what the others are compared with."""
    reference = next(iter(added.values()))
    reach = float(ndtri((1 + confidence) / 2))
    return tuple(_compared(name, users, users - reference, reach) for name, users in added.items())


def _compared(name: str, users: FloatArray, difference: FloatArray, reach: float) -> ComparedPolicy:
    count = users.shape[1]
    mean, error = users.mean(axis=1), users.std(axis=1, ddof=1) / np.sqrt(count)
    # Paired: what is common to a user under both policies cancels before the spread is taken.
    gap, gap_error = difference.mean(axis=1), difference.std(axis=1, ddof=1) / np.sqrt(count)
    lower, upper = gap - reach * gap_error, gap + reach * gap_error
    figures = (mean[1], error[1], mean[0], error[0], gap[1], lower[1], upper[1], gap[0], lower[0], upper[0])
    return ComparedPolicy(name, *(float(figure) for figure in figures))

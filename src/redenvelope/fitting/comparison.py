"""One table for people: the plan beside what was logged, chance, and the bandit, on the same users."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from redenvelope.evaluation.people import by_person
from redenvelope.log.log import Log
from redenvelope.plan.record import ComparedPolicy

__all__ = ["compare", "logged_by_user"]

FloatArray = NDArray[np.float64]


def logged_by_user(log: Log) -> FloatArray:
    """What each user earned and cost as logged, [outcomes, users]; one with several episodes counts once."""
    return by_person(np.stack([log.sums_by_user(outcome) for outcome in log.outcomes]), log.keys)


def compare(added: Mapping[str, FloatArray], confidence: float) -> tuple[ComparedPolicy, ...]:
    """Compare policies by what each user adds, [outcomes, users]; the first is what the others are compared with."""
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

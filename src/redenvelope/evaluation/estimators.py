"""The estimators that need nothing but evidence, by name."""

from __future__ import annotations

from redenvelope.errors import UsageError
from redenvelope.evaluation.direct import Direct
from redenvelope.evaluation.doubly_robust import doubly_robust, weighted_doubly_robust
from redenvelope.evaluation.estimator import Estimator, OnePass
from redenvelope.evaluation.importance import (
    per_decision,
    self_normalised_per_decision,
    self_normalised_trajectory,
    trajectory,
)
from redenvelope.evaluation.magic import Magic
from redenvelope.evaluation.more_robust import MoreRobust

__all__ = ["ESTIMATORS", "estimator_named"]

_KNOWN: tuple[Estimator, ...] = (
    Direct(),
    OnePass("trajectory", trajectory),
    OnePass("per_decision", per_decision),
    OnePass("self_normalised_trajectory", self_normalised_trajectory),
    OnePass("self_normalised_per_decision", self_normalised_per_decision),
    OnePass("doubly_robust", doubly_robust),
    OnePass("weighted_doubly_robust", weighted_doubly_robust),
    Magic(),
    MoreRobust(),
)

ESTIMATORS: dict[str, Estimator] = {estimator.name: estimator for estimator in _KNOWN}
"""Estimators by name; `Marginalised` needs features with the evidence, and is made with its regression."""


def estimator_named(name: str) -> Estimator:
    """The estimator of this name."""
    if name not in ESTIMATORS:
        raise UsageError(f"there is no estimator {name!r}; choose among {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]

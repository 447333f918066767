"""The one path of every estimate: partitions of users → sums → merged in order → value, error, bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.engine.engine import Engine
from redenvelope.errors import UsageError
from redenvelope.evaluation.clustering import design_effect, person_keys
from redenvelope.evaluation.confidence import Bounds, GroupSums, Interval, Side, Skewed, sums_by_group
from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.diagnostics import Diagnostics, Reason, Weight, diagnose, merge_diagnostics
from redenvelope.evaluation.doubly_robust import Magic, MoreRobust, doubly_robust, weighted_doubly_robust
from redenvelope.evaluation.estimators import (
    Direct,
    Estimator,
    OnePass,
    Prepared,
    per_decision,
    self_normalised_per_decision,
    self_normalised_trajectory,
    trajectory,
)
from redenvelope.evaluation.influence import Moments, Terms, merge_moments
from redenvelope.evaluation.partitions import Partitions, as_partitions
from redenvelope.log.log import Log
from redenvelope.policies.policy import Policy


def evaluate_partitions(
    partitions: Sequence[OffPolicyData] | Callable[[], Iterable[OffPolicyData]],
    estimators: Sequence[Estimator | str] = ("doubly_robust",),
    discount: float = 1.0,
    engine: Engine | None = None,
) -> dict[str, Evaluation]:
    """What each estimator says, by name, about the policies of the evidence: all outcomes and prices at once.

    Partitions hold whole users; any number of them gives the same. They are a list, or are made anew for every pass:
    one for most estimators, before which some need others, and one more for a bootstrap or for what each user adds.
    """
    if not 0 < discount <= 1:
        raise UsageError(f"discount must be above 0 and at most 1, not {discount}")
    chosen = [estimator_named(item) if isinstance(item, str) else item for item in estimators]
    if len({item.name for item in chosen}) < len(chosen):
        raise UsageError("estimators are told apart by their names: give each another one")
    users = as_partitions(partitions, engine)
    prepared = [item.prepare(users, discount) for item in chosen]
    distinct = tuple(dict.fromkeys(prepared))
    found = users.reduce(lambda batch: _sums(batch, distinct, discount), _merged)
    keys = np.concatenate(found.keys)
    repeated = len(person_keys(keys)) < len(keys)
    results = {}
    for item, ready in zip(chosen, prepared, strict=True):
        moments, diagnostics = found.moments[ready], found.diagnostics[ready.weigh]
        moments, again = replace(moments, shares=item.shares(moments)), _again(ready, discount)
        if repeated:
            moments = moments.widened(design_effect(_influence(users, again, moments), keys))
        moments = moments.widened(item.caution)
        results[item.name] = Evaluation(item, found.outcome_names, moments, diagnostics, users, again)
    return results


def _influence(users: Partitions, terms: Callable[[OffPolicyData], Terms], moments: Moments) -> NDArray[np.float64]:
    """How far each sequence moves the estimates, [outcomes, users, prices]."""
    return np.concatenate(list(users.each(lambda batch: terms(batch).influence(moments))), axis=1)


def evaluate(
    evidence: OffPolicyData, estimator: Estimator | str = "doubly_robust", discount: float = 1.0
) -> Evaluation:
    """What one estimator says about evidence that is a single partition."""
    (found,) = evaluate_partitions([evidence], [estimator], discount).values()
    return found


@dataclass(frozen=True, eq=False)
class _Sums:
    """What is kept of a batch of users."""

    outcome_names: tuple[str, ...]
    keys: tuple[NDArray[np.uint64], ...]
    """Of the users, batch by batch."""
    moments: dict[Prepared, Moments]
    diagnostics: dict[Callable[[OffPolicyData], OffPolicyData], Diagnostics]


def _sums(batch: OffPolicyData, prepared: tuple[Prepared, ...], discount: float) -> _Sums:
    """All that all estimators need of a batch, while it is in the cache."""
    weighed = {weigh: weigh(batch) for weigh in dict.fromkeys(item.weigh for item in prepared)}
    return _Sums(
        batch.outcome_names,
        (batch.keys,),
        {item: item.terms(weighed[item.weigh], discount).moments for item in prepared},
        {weigh: diagnose(evidence) for weigh, evidence in weighed.items()},
    )


def _merged(first: _Sums, second: _Sums) -> _Sums:
    """The sums of two batches of users as those of all."""
    return _Sums(
        first.outcome_names,
        first.keys + second.keys,
        {item: merge_moments(moments, second.moments[item]) for item, moments in first.moments.items()},
        {weigh: merge_diagnostics(kept, second.diagnostics[weigh]) for weigh, kept in first.diagnostics.items()},
    )


def _again(prepared: Prepared, discount: float) -> Callable[[OffPolicyData], Terms]:
    """What each user adds, made anew."""
    return lambda batch: prepared.terms(prepared.weigh(batch), discount)


# What an estimator says: value, error, bounds, diagnostics and the reasons against.


@dataclass(frozen=True)
class Estimate:
    """What one policy is estimated to earn, or to cost, a user."""

    outcome: str
    value: float
    standard_error: float
    lower: float
    upper: float
    confidence: float
    estimator: str
    users: int
    reasons: tuple[Reason, ...]

    @property
    def is_refused(self) -> bool:
        """Whether any reason says that it must not be relied on."""
        return any(reason.weight is Weight.REFUSAL for reason in self.reasons)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, as in a certificate."""
        return {
            "estimate": self.value,
            "lower": self.lower,
            "upper": self.upper,
            "standard_error": self.standard_error,
            "estimator": self.estimator,
        }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one estimator says about all outcomes and prices."""

    estimator: Estimator
    outcome_names: tuple[str, ...]
    moments: Moments
    diagnostics: Diagnostics
    partitions: Partitions
    """The evidence, for what takes another pass: the bootstrap, and what each user adds."""
    terms: Callable[[OffPolicyData], Terms]
    """What each user of a partition adds."""

    @property
    def users(self) -> int:
        """Number of users."""
        return self.moments.users

    @property
    def value(self) -> FloatArray:
        """[outcomes, prices]."""
        return self.moments.value

    @property
    def standard_error(self) -> FloatArray:
        """[outcomes, prices]."""
        return self.moments.standard_error

    @cached_property
    def groups(self) -> GroupSums:
        """Sums of terms by group of users, for the bootstrap: one pass."""
        return sums_by_group(self.partitions, self.terms, self.users)

    def influence(self) -> FloatArray:
        """How far each user moves the estimates, [outcomes, users, prices], users in the order of the partitions: one
        pass. Its mean is the value, its spread the error; differences between prices, or policies, are paired, and
        prices that users are drawn to mix."""
        parts = list(self.partitions.each(lambda batch: self.terms(batch).influence(self.moments)))
        return np.concatenate(parts, axis=1)

    def bounds(self, confidence: float = 0.95, side: Side = "both", interval: Interval | None = None) -> Bounds:
        """Bounds of all outcomes and prices; skewed as their terms are unless another interval is given."""
        return (interval or Skewed()).bounds(self, confidence, side)

    def place(self, outcome: str) -> int:
        """Where an outcome is among all."""
        if outcome not in self.outcome_names:
            raise UsageError(f"there is no estimate of {outcome!r}, only of {', '.join(self.outcome_names)}")
        return self.outcome_names.index(outcome)

    def reasons(self, outcome: str, price: int = 0) -> tuple[Reason, ...]:
        """What speaks against the estimate of an outcome at one of the prices."""
        place = self.place(outcome)
        value, error = float(self.value[place, price]), float(self.standard_error[place, price])
        found = list(self.estimator.reasons(self.diagnostics, price))
        if self.users < 2:
            found.append(_ONE_USER)
        elif error <= _ROUNDING * abs(value):
            found.append(Reason("no_variance", Weight.WARNING, f"every user adds the same {outcome}: {_CONSTANT}"))
        if not np.isfinite(value):
            found.append(_NO_WEIGHT)
        return tuple(found)

    def estimate(
        self,
        outcome: str,
        price: int = 0,
        confidence: float = 0.95,
        side: Side = "both",
        interval: Interval | None = None,
    ) -> Estimate:
        """The estimate of one outcome at one of the prices."""
        place = self.place(outcome)
        bounds = self.bounds(confidence, side, interval)
        return Estimate(
            outcome=outcome,
            value=float(self.value[place, price]),
            standard_error=float(self.standard_error[place, price]),
            lower=float(bounds.lower[place, price]),
            upper=float(bounds.upper[place, price]),
            confidence=confidence,
            estimator=self.estimator.name,
            users=self.users,
            reasons=self.reasons(outcome, price),
        )


# A standard error this small next to its value is the rounding of a sum, not a spread.
_ROUNDING = 1e-12
_CONSTANT = "its interval has no width; check that the column varies in the log"
_ONE_USER = Reason("one_user", Weight.REFUSAL, "one user has no spread: no error can be told; bring at least 2 users")
_NO_WEIGHT = Reason(
    "no_overlap", Weight.REFUSAL, "no logged user did anything that the policy would do: there is no estimate"
)


# Evaluating a log: its evidence in partitions, so that tables of all actions are there for a few users at a time.


Decide = Callable[[Log], tuple[NDArray[np.floating], NDArray[np.floating] | None]]
"""A log -> probabilities [rows, prices, actions], and outcomes to go of every action, the policy followed afterwards,
[outcomes, rows, prices, actions], or None."""
Featurise = Callable[[Log], NDArray[np.floating]]
"""A log -> what ratios of states are regressed on, [rows, features]."""

# Trees and tables of all actions are large; what is kept of them is not.
_USERS_PER_BATCH = 2_048


@dataclass(frozen=True, eq=False)
class Extent:
    """What a partition cannot know of the whole log."""

    steps: int
    """Steps of the longest user."""
    logged: NDArray[np.bool_]
    """Which actions the log holds, [actions]."""

    @classmethod
    def of(cls, log: Log) -> Extent:
        """The extent of a log that is whole."""
        return cls(int(log.lengths.max()), np.bincount(log.action, minlength=len(log.catalogue)) > 0)


def off_policy_data(
    log: Log, decide: Decide, features: Featurise | None = None, extent: Extent | None = None
) -> OffPolicyData:
    """The evidence of a log; `extent` is that of the whole log of which this is a partition."""
    _refuse_gaps(log)
    extent = extent or Extent.of(log)
    probabilities, to_go = decide(log)
    logged = np.zeros(probabilities.shape[-1], dtype=bool)
    logged[: len(extent.logged)] = extent.logged
    return gather(
        starts=log.starts,
        keys=log.keys,
        action=log.action,
        propensity=log.propensity,
        outcomes=log.outcomes,
        outcome_names=log.outcome_names,
        probabilities=probabilities,
        to_go=to_go,
        features=None if features is None else features(log),
        logged_actions=logged,
        steps=extent.steps,
        estimated=log.propensity_source == "estimated",
    )


def partitions_of(
    log: Log, decide: Decide, features: Featurise | None = None, users: int = _USERS_PER_BATCH
) -> list[OffPolicyData]:
    """The evidence of a log, `users` at a time."""
    _refuse_gaps(log)
    extent = Extent.of(log)
    return [off_policy_data(batch, decide, features, extent) for batch in log.batches(users)]


def evaluate_log(
    log: Log,
    decide: Decide,
    estimators: Sequence[Estimator | str] = ("doubly_robust",),
    *,
    features: Featurise | None = None,
    discount: float = 1.0,
    users: int = _USERS_PER_BATCH,
    engine: Engine | None = None,
) -> dict[str, Evaluation]:
    """Evaluations of a log by name of estimator, decided on once and `users` at a time."""
    return evaluate_partitions(partitions_of(log, decide, features, users), estimators, discount, engine)


def decide_by(policy: Policy, encode: Callable[[Log], NDArray[np.float32]], last_step: int) -> Decide:
    """How a policy decides on logged rows: `encode` makes their states [rows, width]; `last_step` is the campaign's."""

    def decide(log: Log) -> tuple[NDArray[np.floating], None]:
        return policy.probabilities(encode(log), last_step - log.step + 1, log.eligible)[:, None], None

    return decide


def _refuse_gaps(log: Log) -> None:
    if log.has_gaps:
        raise UsageError(
            "steps of some users are missing from the log: what the missing rows cost and earned, and how likely they "
            "were, is unknown, so no sequence can be weighed; bring every step, or number the steps without gaps"
        )


# The estimators that need nothing but evidence, by name.


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

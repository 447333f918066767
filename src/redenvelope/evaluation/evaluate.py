"""Off-policy evaluation of policies by any estimators, on a log or on partitions of off-policy data.

Every estimate takes one path: partitions of users → sums → merged in order → value, error, bounds, diagnostics and
reasons against it. `ESTIMATORS` lists the estimators by name. `agreement` and `choose_estimator` say which of two
estimates to rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.engine.engine import Engine
from redenvelope.errors import UsageError
from redenvelope.evaluation.confidence import Bounds, Estimate, Side, Spread, bounds, normal_score, skewness_of_mean
from redenvelope.evaluation.data import Extent, OffPolicyData, off_policy_data, refuse_gaps
from redenvelope.evaluation.diagnostics import Diagnostics, Reason, Weight, diagnose
from redenvelope.evaluation.doubly_robust import Magic, MoreRobust, doubly_robust, weighted_doubly_robust
from redenvelope.evaluation.estimators import Estimator, OnePass, Prepared
from redenvelope.evaluation.importance_sampling import (
    Direct,
    per_decision,
    self_normalised_per_decision,
    self_normalised_trajectory,
    trajectory,
)
from redenvelope.evaluation.influence import (
    GroupSums,
    Moments,
    Terms,
    by_person,
    design_effect,
    person_keys,
    sums_by_group,
)
from redenvelope.evaluation.jackknife import SparsePrices
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.partitions import Partitions, as_partitions
from redenvelope.log.log import Log
from redenvelope.merging import SAME, FieldwiseSums
from redenvelope.policies.policy import Policy

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
"""Estimators by name; `Marginalised`, which needs features with the data, is made with its regression instead."""

Decide = Callable[[Log], tuple[NDArray[np.floating], NDArray[np.floating] | None]]
"""A log -> probabilities [rows, prices, actions], and the outcomes to go of every action with the policy followed
afterwards, [outcomes, rows, prices, actions], or None."""
Featurise = Callable[[Log], NDArray[np.floating]]
"""A log -> the features that state ratios are regressed on, [rows, features]."""

# Bounds the memory of trees and of arrays over all actions; the resulting off-policy data is small.
_USERS_PER_BATCH = 2_048


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
    """Evaluate a policy on a log, by estimator name; `decide` is called once per batch of `users` users."""
    return evaluate_partitions(partitions_of(log, decide, features, users), estimators, discount, engine)


def partitions_of(
    log: Log, decide: Decide, features: Featurise | None = None, users: int = _USERS_PER_BATCH
) -> list[OffPolicyData]:
    """The off-policy data of a log, in parts of `users` users."""
    refuse_gaps(log)
    extent = Extent.of(log)
    return [
        off_policy_data(batch, *decide(batch), extent=extent, features=None if features is None else features(batch))
        for batch in log.batches(users)
    ]


def decide_by(policy: Policy, encode: Callable[[Log], NDArray[np.float32]], last_step: int) -> Decide:
    """A policy's decisions in logged rows; `encode` makes the states [rows, width], `last_step` is the campaign's."""

    def decide(log: Log) -> tuple[NDArray[np.floating], None]:
        return policy.probabilities(encode(log), last_step - log.step + 1, log.eligible)[:, None], None

    return decide


def evaluate(data: OffPolicyData, estimator: Estimator | str = "doubly_robust", discount: float = 1.0) -> Evaluation:
    """Evaluate off-policy data that is a single partition by one estimator."""
    (found,) = evaluate_partitions([data], [estimator], discount).values()
    return found


def evaluate_partitions(
    partitions: Sequence[OffPolicyData] | Callable[[], Iterable[OffPolicyData]],
    estimators: Sequence[Estimator | str] = ("doubly_robust",),
    discount: float = 1.0,
    engine: Engine | None = None,
    sparse: SparsePrices | None = None,
) -> dict[str, Evaluation]:
    """Evaluate the policies in the data by each estimator, by name: all outcomes and prices at once.

    Partitions consist of complete users; the result does not depend on their number. They are a list, or a function
    that makes them again for every pass: one pass for most estimators, more for those that first learn from all users,
    and one more for the skewness of self-normalised estimates or for users' influences. The error of what estimators
    learn is computed at `sparse` prices, by default at all of them.
    """
    if not 0 < discount <= 1:
        raise UsageError(f"discount must be above 0 and at most 1, not {discount}")
    chosen = [estimator_named(item) if isinstance(item, str) else item for item in estimators]
    if len({item.name for item in chosen}) < len(chosen):
        raise UsageError("results are by the estimators' names: give each estimator a different name")
    users = as_partitions(partitions, engine)
    prepared = [item.prepare(users, discount) for item in chosen]
    distinct = tuple(dict.fromkeys(prepared))
    found = users.reduce(lambda batch: _sums(batch, distinct, discount))
    keys = np.concatenate(found.keys)
    repeated = len(person_keys(keys)) < len(keys)
    results = {}
    for item, ready in zip(chosen, prepared, strict=True):
        moments = replace(found.moments[ready], shares=item.shares(found.moments[ready]))
        terms, learning = _terms(ready, discount), _learning(item, users, discount, sparse)
        diagnostics = found.diagnostics[ready.weigh]
        evaluation = Evaluation(item, found.outcome_names, moments, diagnostics, users, terms, learning)
        if repeated:
            evaluation = replace(evaluation, moments=moments.widened(design_effect(evaluation.influence(), keys)))
        results[item.name] = evaluation
    return results


def estimator_named(name: str) -> Estimator:
    """The estimator of this name."""
    if name not in ESTIMATORS:
        raise UsageError(f"there is no estimator {name!r}; choose among {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]


@dataclass(frozen=True, eq=False)
class _Sums(FieldwiseSums):
    """Sums over a batch of users that all estimators need."""

    outcome_names: tuple[str, ...] = field(metadata=SAME)
    keys: tuple[NDArray[np.uint64], ...]
    """The users' keys, batch by batch."""
    moments: dict[Prepared, Moments]
    diagnostics: dict[Callable[[OffPolicyData], OffPolicyData], Diagnostics]


def _sums(batch: OffPolicyData, prepared: tuple[Prepared, ...], discount: float) -> _Sums:
    """The sums of a batch for all estimators, computed while the batch is in the cache."""
    weighed = {weigh: weigh(batch) for weigh in dict.fromkeys(item.weigh for item in prepared)}
    return _Sums(
        batch.outcome_names,
        (batch.keys,),
        {item: item.terms(weighed[item.weigh], discount).moments for item in prepared},
        {weigh: diagnose(data) for weigh, data in weighed.items()},
    )


def _terms(prepared: Prepared, discount: float) -> Callable[[OffPolicyData], Terms]:
    """The function that gives each user's terms, for another pass."""
    return lambda batch: prepared.terms(prepared.weigh(batch), discount)


def _learning(
    estimator: Estimator, users: Partitions, discount: float, sparse: SparsePrices | None
) -> Callable[[int], FloatArray]:
    """The function that gives the factor for the error of what an estimator learns, from the number of prices."""
    return lambda prices: estimator.learning_factor(users, discount, sparse or SparsePrices.all_of(prices))


# A standard error this small relative to its value is rounding error of a sum, not a spread.
_ROUNDING = 1e-12
_CONSTANT = "its interval has no width; check that the column varies in the log"
_ONE_USER = Reason("one_user", Weight.REFUSAL, "one user has no spread, so there is no error; bring at least 2 users")
_NO_WEIGHT = Reason(
    "no_overlap", Weight.REFUSAL, "no logged user did anything that the policy would do: there is no estimate"
)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The evaluation of all outcomes and prices by one estimator."""

    estimator: Estimator
    outcome_names: tuple[str, ...]
    moments: Moments
    diagnostics: Diagnostics
    partitions: Partitions
    """The data, for results that need another pass: the skewness of self-normalised estimates, and influences."""
    terms: Callable[[OffPolicyData], Terms]
    """The terms of each user of a partition."""
    learning: Callable[[int], FloatArray]
    """Number of prices -> `learning_factor`."""

    @property
    def users(self) -> int:
        """Number of users."""
        return self.moments.users

    @property
    def value(self) -> FloatArray:
        """Estimates, [outcomes, prices]."""
        return self.moments.value

    @cached_property
    def learning_factor(self) -> FloatArray:
        """Factor from the moments' standard errors to those that include the error of what the estimator learned from
        the users, [outcomes, prices]; takes a few passes at some prices."""
        return np.broadcast_to(self.learning(self.value.shape[1]), self.value.shape)

    @cached_property
    def standard_error(self) -> FloatArray:
        """Standard errors, [outcomes, prices]."""
        return self.moments.standard_error * self.learning_factor

    @cached_property
    def groups(self) -> GroupSums:
        """Sums of terms by group of users; takes one pass."""
        return sums_by_group(self.partitions, self.terms, self.users)

    def influence(self) -> FloatArray:
        """Influence of each user on the estimates, [outcomes, users, prices], in the order of the partitions; takes one
        pass. Its mean is the value, its spread gives the standard error. Differences between prices or policies are
        paired by user, and a mixture of prices has the mixture of their influences."""
        parts = list(self.partitions.each(lambda batch: self.terms(batch).influence(self.moments)))
        return np.concatenate(parts, axis=1)

    def bounds(self, confidence: float = 0.95, side: Side = "both") -> Bounds:
        """Bounds of all outcomes and prices, corrected for skewness."""
        # Only ratios of means need the sums by group, which take another pass.
        by_group = self.moments.parts and self.users > 1
        skewness = self.groups.skewness(self.moments) if by_group else self.moments.skewness
        return bounds(self.value, self.standard_error, skewness, confidence, side)

    def place(self, outcome: str) -> int:
        """The index of an outcome."""
        if outcome not in self.outcome_names:
            raise UsageError(f"there is no estimate of {outcome!r}, only of {', '.join(self.outcome_names)}")
        return self.outcome_names.index(outcome)

    def reasons(self, outcome: str, price: int = 0) -> tuple[Reason, ...]:
        """The reasons against the estimate of an outcome at one of the prices."""
        place = self.place(outcome)
        value, error = float(self.value[place, price]), float(self.moments.standard_error[place, price])
        found = list(self.estimator.reasons(self.diagnostics, price))
        if self.users < 2:
            found.append(_ONE_USER)
        elif error <= _ROUNDING * abs(value):
            found.append(Reason("no_variance", Weight.WARNING, f"every user adds the same {outcome}: {_CONSTANT}"))
        if not np.isfinite(value):
            found.append(_NO_WEIGHT)
        return tuple(found)

    def estimate(self, outcome: str, price: int = 0, confidence: float = 0.95, side: Side = "both") -> Estimate:
        """The estimate of one outcome at one of the prices."""
        place = self.place(outcome)
        found = self.bounds(confidence, side)
        numbers = (self.value, found.lower, found.upper, self.standard_error)
        estimate, lower, upper, error = (float(each[place, price]) for each in numbers)
        return Estimate(estimate, lower, upper, error, self.estimator.name)


# Agreement of estimators: whether two estimates from the same users differ by more than chance.
#
# Marginalised ratios know of the past only what the state shows; products of ratios know all of it. If the state is
# complete, both estimate the same and differ by noise. If it is not (a habit that no column shows, a cost that comes
# late), the marginalised estimate is biased and the sequential one is not. Both use the same users, so most of their
# noise is shared, and the spread of users' contributions to the difference gives its standard error.
#
# Over several steps the sequential estimate is noisy, so it misses biases that matter. Ratios marginalised only up to a
# few steps before (`Marginalised.window`) know part of the past with a fraction of the noise; effects of the past that
# are regressed on logged rows without weights (`models.past_effects`) have the least noise of all.
#
# The rule: |z| above 3 is not noise. Chance exceeds that once in 370 times, and in any of eight comparisons at most
# once in 46. The sequential estimate is then used if its own overlap allows, else neither is. A smaller difference
# proves nothing in either direction, so the certifying estimate is corrected by the estimated effects of the past,
# whose standard error enters its bound (`fitting.certify`).

LARGEST_Z = 3.0
"""Standard errors by which two estimates from the same users may differ by chance."""

_WINDOWS = (1, 2, 3)

# A difference this small relative to the estimate does not matter, however precisely it is known.
NEGLIGIBLE = 0.005


@dataclass(frozen=True)
class Agreement:
    """The difference between two estimates of one outcome from the same users."""

    outcome: str
    first: str
    """Name of the estimator that is checked."""
    second: str
    """Name of the estimator that it is checked against."""
    value: float
    """The first estimate."""
    difference: float
    """The first estimate minus the second."""
    standard_error: float
    """Standard error of the difference, paired by user."""
    skewness: float
    """Skewness of the mean difference, γ/√n; rare, heavy weights cause it."""
    users: int

    @property
    def z(self) -> float:
        """The difference in standard errors, corrected for skewness: if the few users with heavy weights happen to be
        missing, the plain ratio looks larger than it is."""
        if self.standard_error > 0:
            return float(normal_score(self.difference / self.standard_error, self.skewness))
        return float(np.copysign(np.inf, self.difference)) if self.difference else 0.0

    @property
    def is_noise(self) -> bool:
        """Whether chance explains the difference, or it is too small to matter."""
        return abs(self.z) <= LARGEST_Z or abs(self.difference) <= NEGLIGIBLE * abs(self.value)

    @property
    def is_safe(self) -> bool:
        """Whether a bias of the first estimate is on the safe side: a cost too high, or a reward too low."""
        return self.difference < 0 if self.outcome == "reward" else self.difference > 0


@dataclass(frozen=True)
class EstimatorChoice:
    """Which estimate to rely on, and why."""

    rely_on: Literal["first", "sequential", "neither"]
    agreements: tuple[Agreement, ...]
    """For every outcome and every estimate that the first was checked against."""
    reasons: tuple[Reason, ...]
    """A warning if the sequential estimate is used, or the first on the safe side; a refusal if neither is."""


def checking_estimators(checked: Marginalised, steps: int, knows_past: bool = False) -> tuple[Estimator, ...]:
    """The estimators that check a marginalised one in a campaign of `steps` steps; the last is the sequential one.

    Evaluate them in one call with the estimate itself. Set `knows_past` if the data include the past, which adds the
    least noise. A window of all steps would be the sequential estimator again.
    """
    shorter = [checked.looking_back(window) for window in _WINDOWS if checked.window < window < steps - 1]
    past = (replace(checked, knows_past=True, name="marginalised, past known"),) if knows_past else ()
    return (*past, *shorter, estimator_named("doubly_robust"))


def paired_agreement(first: ArrayLike, second: ArrayLike, outcome: str, names: tuple[str, str]) -> Agreement:
    """The agreement of two estimates of one policy from users' influences on each, both [users], in one order."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 1:
        raise UsageError(f"estimates are paired by user: pass two arrays [users], not {one.shape} and {other.shape}")
    gap = Spread.of(one - other)
    skewness = float(skewness_of_mean(gap.squares, gap.cubes))
    difference, error = float(gap.mean), float(gap.standard_error)
    return Agreement(outcome, *names, float(one.mean()), difference, error, skewness, gap.users)


def agreement(first: Evaluation, second: Evaluation) -> tuple[tuple[Agreement, ...], ...]:
    """The agreement of two evaluations from one call, for each outcome and price, [outcomes][prices]; two passes."""
    one, other = first.influence(), second.influence()
    if one.shape != other.shape:
        raise UsageError(f"evaluations must have the same users and prices, not {one.shape} and {other.shape}")
    keys = np.concatenate([part.keys for part in first.partitions.parts()])
    one, other = by_person(one, keys), by_person(other, keys)
    names = (first.estimator.name, second.estimator.name)
    return tuple(
        tuple(
            paired_agreement(one[place, :, price], other[place, :, price], outcome, names)
            for price in range(one.shape[2])
        )
        for place, outcome in enumerate(first.outcome_names)
    )


def choose_estimator(agreements: Sequence[Agreement], sequential: Sequence[Reason]) -> EstimatorChoice:
    """Which estimate to rely on at one price: the first, unless it differs from another one by more than noise.

    `agreements` compare the first with every checking estimate, for all outcomes; `sequential` are the reasons against
    the sequential estimate itself (`Evaluation.reasons`).
    """
    found = tuple(agreements)
    worst = max((each for each in found if not each.is_noise), key=lambda each: abs(each.z), default=None)
    if worst is None:
        return EstimatorChoice("first", found, ())
    said = (
        f"on the same {worst.users:,} users, the estimate of the {worst.outcome} from the state alone is "
        f"{worst.difference:+.3g} away from the one that uses earlier steps, {abs(worst.z):.1f} standard errors: "
        "what happened earlier matters in ways that the features do not show"
    )
    refusals = [reason for reason in sequential if reason.weight is Weight.REFUSAL]
    if not refusals:
        advice = "so the estimate by all earlier steps certifies, with wider bounds; add columns that describe the past"
        return EstimatorChoice("sequential", found, (Reason("hidden_past", Weight.WARNING, f"{said}; {advice}"),))
    if all(each.is_safe for each in found if not each.is_noise):
        advice = "on the safe side, so the estimate from the state certifies; add columns that describe the past"
        return EstimatorChoice("first", found, (Reason("hidden_past", Weight.WARNING, f"{said}; {advice}"),))
    advice = "add columns that describe the past, or let the log's own history be used; by all earlier steps"
    reason = Reason("hidden_past", Weight.REFUSAL, f"{said}; {advice}, {refusals[0].message}")
    return EstimatorChoice("neither", found, (reason,))

"""Estimators by name, and what they say: value, error, bounds, diagnostics and the reasons against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.blended import magic_shares, more_robust
from redenvelope.evaluation.diagnostics import Diagnostics, Reason, Weight, diagnose, merge_diagnostics
from redenvelope.evaluation.doubly_robust import direct, doubly_robust, weighted_doubly_robust
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.importance import (
    per_decision,
    self_normalised_per_decision,
    self_normalised_trajectory,
    trajectory,
)
from redenvelope.evaluation.intervals import Bounds, Interval, Normal, Side
from redenvelope.evaluation.marginalised import Regression, marginal_ratios, marginalised
from redenvelope.evaluation.resampling import GROUPS, GroupSums, add_to_groups, merge_group_sums, user_groups
from redenvelope.evaluation.terms import Moments, Terms, merge_moments, merge_terms

__all__ = [
    "ESTIMATORS",
    "Estimate",
    "Estimator",
    "Evaluation",
    "estimator_named",
    "evaluate",
    "marginalised_by",
    "terms_in_batches",
]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Estimator:
    """A way to estimate what a policy earns and costs."""

    name: str
    terms: Callable[[Evidence, float], Terms]
    """Evidence and discount -> what each user adds."""
    blend: Callable[[Moments], FloatArray] | None = None
    """How much each part counts, decided when the moments of all users are known."""
    state_ratio: Callable[[Evidence], FloatArray] | None = None
    """Ratios of state probabilities [rows, duals], where these take the place of products of ratios."""
    weighs: bool = True
    """Whether it weighs logged outcomes, and so needs overlap."""
    mergeable: bool = True
    """Whether batches of users can be estimated one by one; else it needs all users at once."""


ESTIMATORS: dict[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        Estimator("direct", direct, weighs=False),
        Estimator("trajectory", trajectory),
        Estimator("per_decision", per_decision),
        Estimator("self_normalised_trajectory", self_normalised_trajectory),
        Estimator("self_normalised_per_decision", self_normalised_per_decision),
        Estimator("doubly_robust", doubly_robust),
        Estimator("weighted_doubly_robust", weighted_doubly_robust),
        Estimator("magic", weighted_doubly_robust, blend=magic_shares),
        Estimator("more_robust", more_robust, mergeable=False),
    )
}
"""The estimators that need nothing but evidence, by name."""


def marginalised_by(regression: Regression, folds: int = 5, seed: int = 0) -> Estimator:
    """Doubly robust with marginalised ratios, learned by a regression on states (`by_cell`, `by_features`)."""

    def state_ratio(evidence: Evidence) -> FloatArray:
        return marginal_ratios(evidence, regression, folds, seed)

    def terms(evidence: Evidence, discount: float) -> Terms:
        return marginalised(evidence, state_ratio(evidence), discount)

    return Estimator("marginalised", terms, state_ratio=state_ratio, mergeable=False)


def estimator_named(name: str) -> Estimator:
    """The estimator of this name."""
    if name not in ESTIMATORS:
        raise UsageError(f"there is no estimator {name!r}; choose among {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]


@dataclass(frozen=True)
class Estimate:
    """What one policy is estimated to earn, or to cost, a user."""

    target: str
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
    """What one estimator says about all targets and duals."""

    estimator: Estimator
    targets: tuple[str, ...]
    moments: Moments
    diagnostics: Diagnostics
    kept: Callable[[], Iterable[Terms]] | GroupSums | None
    """How to make the terms of all users again, batch by batch, or their sums by group: for the bootstrap."""

    @property
    def users(self) -> int:
        """Number of users."""
        return self.moments.users

    @property
    def value(self) -> FloatArray:
        """[targets, duals]."""
        return self.moments.value

    @property
    def standard_error(self) -> FloatArray:
        """[targets, duals]."""
        return self.moments.standard_error

    @cached_property
    def groups(self) -> GroupSums:
        """Sums of terms by group of users, for the bootstrap."""
        if isinstance(self.kept, GroupSums):
            return self.kept
        if self.kept is None:
            raise UsageError("a bootstrap needs sums by group of users, which this evaluation was told not to keep")
        groups = user_groups(self.users, seed=0)
        columns, duals = self.moments.means.shape
        sums = GroupSums(np.zeros(min(self.users, GROUPS)), np.zeros((min(self.users, GROUPS), columns, duals)))
        first = 0
        for part in self.kept():
            add_to_groups(sums, part, groups[first : first + part.users])
            first += part.users
        return sums

    @property
    def terms(self) -> Terms:
        """What each user adds: for differences between duals, or policies, of the same users."""
        if self.kept is None or isinstance(self.kept, GroupSums):
            raise UsageError("the terms of users were not kept by this evaluation; use `evaluate` on their evidence")
        return replace(merge_terms(list(self.kept())), shares=self.moments.shares)

    def bounds(self, confidence: float = 0.95, side: Side = "both", interval: Interval | None = None) -> Bounds:
        """Bounds of all targets and duals; `Normal()` unless another interval is given."""
        return (interval or Normal()).bounds(self, confidence, side)

    def reasons(self, target: str, dual: int = 0) -> tuple[Reason, ...]:
        """What speaks against the estimate of a target at one of the duals."""
        place = self.targets.index(target)
        value, error = float(self.value[place, dual]), float(self.standard_error[place, dual])
        found = list(self.diagnostics.reasons(dual)) if self.estimator.weighs else [_BELIEVED]
        if self.users < 2:
            found.append(_ONE_USER)
        elif error <= _ROUNDING * abs(value):
            found.append(Reason("no_variance", Weight.WARNING, f"every user adds the same {target}: {_CONSTANT}"))
        if not np.isfinite(value):
            found.append(_NO_WEIGHT)
        return tuple(found)

    def estimate(
        self,
        target: str,
        dual: int = 0,
        confidence: float = 0.95,
        side: Side = "both",
        interval: Interval | None = None,
    ) -> Estimate:
        """The estimate of one target at one of the duals."""
        if target not in self.targets:
            raise UsageError(f"there is no estimate of {target!r}, only of {', '.join(self.targets)}")
        place = self.targets.index(target)
        bounds = self.bounds(confidence, side, interval)
        return Estimate(
            target=target,
            value=float(self.value[place, dual]),
            standard_error=float(self.standard_error[place, dual]),
            lower=float(bounds.lower[place, dual]),
            upper=float(bounds.upper[place, dual]),
            confidence=confidence,
            estimator=self.estimator.name,
            users=self.users,
            reasons=self.reasons(target, dual),
        )

    def merge(self, other: Evaluation) -> Evaluation:
        """This evaluation with that of other users; both must have kept sums by the same groups, or none."""
        if self.estimator != other.estimator or not self.estimator.mergeable:
            raise UsageError(f"evaluations by {self.estimator.name} cannot be merged: evaluate all users at once")
        moments = merge_moments(self.moments, other.moments)
        if self.estimator.blend is not None:
            moments = replace(moments, shares=self.estimator.blend(moments))
        kept = None
        if isinstance(self.kept, GroupSums) and isinstance(other.kept, GroupSums):
            kept = merge_group_sums(self.kept, other.kept)
        return replace(
            self,
            moments=moments,
            diagnostics=merge_diagnostics(self.diagnostics, other.diagnostics),
            kept=kept,
        )


def evaluate(
    evidence: Evidence,
    estimator: Estimator | str = "doubly_robust",
    discount: float = 1.0,
    diagnostics: Diagnostics | None = None,
) -> Evaluation:
    """What an estimator says about the policies of the evidence: all targets and duals at once.

    `diagnostics` of the same evidence, if known already, are not made again.
    """
    chosen = estimator_named(estimator) if isinstance(estimator, str) else estimator
    if not 0 < discount <= 1:
        raise UsageError(f"discount must be above 0 and at most 1, not {discount}")
    ratio = None if chosen.state_ratio is None else chosen.state_ratio(evidence)
    if ratio is not None:
        whole, diagnostics = marginalised(evidence, ratio, discount), diagnose(evidence, ratio)
        return Evaluation(chosen, evidence.targets, whole.moments, diagnostics, lambda: [whole])
    diagnostics = diagnostics or diagnose(evidence)
    if not chosen.mergeable:
        whole = chosen.terms(evidence, discount)
        return Evaluation(chosen, evidence.targets, whole.moments, diagnostics, lambda: [whole])
    make = partial(terms_in_batches, chosen, evidence, discount)
    moments = reduce(merge_moments, (part.moments for part in make()))
    if chosen.blend is not None:
        moments = replace(moments, shares=chosen.blend(moments))
    return Evaluation(chosen, evidence.targets, moments, diagnostics, make)


def terms_in_batches(estimator: Estimator, evidence: Evidence, discount: float) -> Iterator[Terms]:
    """The terms of all users, batch by batch: never all there at once."""
    for batch in evidence.in_batches:
        yield estimator.terms(batch, discount)


# A standard error this small next to its value is the rounding of a sum, not a spread.
_ROUNDING = 1e-12
_CONSTANT = "its interval has no width; check that the column varies in the log"
_BELIEVED = Reason(
    "baseline_believed",
    Weight.WARNING,
    "the direct method believes its baseline: its interval knows the spread of users, not the baseline's error",
)
_ONE_USER = Reason("one_user", Weight.REFUSAL, "one user has no spread: no error can be told; bring at least 2 users")
_NO_WEIGHT = Reason(
    "no_overlap", Weight.REFUSAL, "no logged user did anything that the policy would do: there is no estimate"
)

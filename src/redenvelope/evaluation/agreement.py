"""Agreement of estimators: whether two estimates of the same users differ by more than chance.

Marginalised ratios know of the past what the state shows; products of ratios know all of it. Where the state is
complete, both estimate the same and differ by noise. Where it is not (a habit that no column shows, a cost that comes
late), the marginalised estimate is biased and the sequential one is not. Both are made of the same users, so most of
their noise is shared; the spread of what each user adds to their difference gives the error of the difference.

Over several steps the sequential estimate is noisy itself, and misses biases that matter. Ratios that are marginalised
only up to a few steps before (`Marginalised.window`) know part of the past at a fraction of the noise. Measured with
hard plans over 4 or 5 steps, where marginalised costs are 7 to 23 % too low because the past is hidden:

    family          users   caught, of   by all steps alone
    hidden habit   20,000     10 of 10              8 of 10
    hidden habit    8,000      9 of 10              6 of 10
    delayed cost    8,000       4 of 5               3 of 5
    control         8,000      0 of 10              0 of 10
    groups          8,000       0 of 5               0 of 5

This is a property of the campaign more than of a plan: the test is sharper with more users than a certificate has.

The rule: |z| above 3 is not noise. Chance exceeds that once in 370 times, and in any of eight comparisons at most once
in 46. Then the sequential estimate is used where its own overlap allows, and neither where it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.errors import UsageError
from redenvelope.evaluation.clustering import by_person
from redenvelope.evaluation.confidence import Spread, normal_score, skewness_of_mean
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import Evaluation, estimator_named
from redenvelope.evaluation.marginalised import Marginalised

LARGEST_Z = 3.0
"""Standard errors by which two estimates of the same users may differ by chance."""

_WINDOWS = (1, 2, 3)

# A difference this small relative to the estimate changes no decision, however precisely it is known.
_NEGLIGIBLE = 0.005
# A difference with a larger standard error than this share of the estimate comes from a few users with heavy weights:
# the error itself is a guess, and three of it prove nothing.
_TOO_NOISY = 0.05


@dataclass(frozen=True)
class Agreement:
    """The difference between two estimates of one outcome, on the same users."""

    outcome: str
    first: str
    """The estimator that is checked."""
    second: str
    """The one that it is checked against."""
    value: float
    """The first estimate."""
    difference: float
    """The first less the second."""
    standard_error: float
    """Of the difference, from what each user adds to it."""
    skewness: float
    """Of the mean difference, γ/√n: rare, heavy weights skew it."""
    users: int

    @property
    def z(self) -> float:
        """The difference in standard errors, corrected for skewness: where the few users with heavy weights happen to
        be missing, the plain ratio looks larger than it is."""
        if self.standard_error > 0:
            return float(normal_score(self.difference / self.standard_error, self.skewness))
        return float(np.copysign(np.inf, self.difference)) if self.difference else 0.0

    @property
    def is_noise(self) -> bool:
        """Whether the difference is explained by chance, too small to matter, or too imprecise to be relied on."""
        size = abs(self.value)
        is_small, is_vague = abs(self.difference) <= _NEGLIGIBLE * size, self.standard_error > _TOO_NOISY * size
        return abs(self.z) <= LARGEST_Z or is_small or is_vague

    def as_dict(self) -> dict[str, float | int | str]:
        """Plain data for JSON."""
        return {
            "outcome": self.outcome,
            "first": self.first,
            "second": self.second,
            "difference": self.difference,
            "standard_error": self.standard_error,
            "z": self.z,
            "users": self.users,
        }


@dataclass(frozen=True)
class EstimatorChoice:
    """Which estimate to rely on, and why."""

    rely_on: Literal["first", "sequential", "neither"]
    agreements: tuple[Agreement, ...]
    """Of every outcome with every estimate that the first was checked against."""
    reasons: tuple[Reason, ...]
    """A warning where it is the sequential one, a refusal where it is neither."""


def checking_estimators(checked: Marginalised, steps: int, knows_past: bool = False) -> tuple[Estimator, ...]:
    """The estimators that check a marginalised one in a campaign of `steps` steps; the last is the sequential one.

    Evaluate them in one call with the estimate itself. `knows_past` where the data include what happened before, which
    adds the least noise. A window of all steps would be the sequential estimator again.
    """
    shorter = [checked.looking_back(window) for window in _WINDOWS if checked.window < window < steps - 1]
    past = (replace(checked, knows_past=True, name="marginalised, past known"),) if knows_past else ()
    return (*past, *shorter, estimator_named("doubly_robust"))


def paired_agreement(first: ArrayLike, second: ArrayLike, outcome: str, names: tuple[str, str]) -> Agreement:
    """The agreement of two estimates of one policy from what each user adds to them, both [users], in one order."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 1:
        raise UsageError(f"estimates are paired by user: pass two arrays [users], not {one.shape} and {other.shape}")
    gap = Spread.of(one - other)
    skewness = float(skewness_of_mean(gap.squares, gap.cubes))
    difference, error = float(gap.mean), float(gap.standard_error)
    return Agreement(outcome, *names, float(one.mean()), difference, error, skewness, gap.users)


def agreement(first: Evaluation, second: Evaluation) -> tuple[tuple[Agreement, ...], ...]:
    """The agreement of two evaluations of one call, for every outcome and price, [outcomes][prices]: two passes."""
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
    """Which estimate to rely on at one price: the first, unless it differs from any other by more than noise.

    `agreements` are those of all outcomes with all estimates that check the first; `sequential` are the reasons against
    the sequential estimate itself (`Evaluation.reasons`).
    """
    found = tuple(agreements)
    worst = max((each for each in found if not each.is_noise), key=lambda each: abs(each.z), default=None)
    if worst is None:
        return EstimatorChoice("first", found, ())
    said = (
        f"on the same {worst.users:,} users, the {worst.outcome} that trusts the state alone is "
        f"{worst.difference:+.3g} off the one that knows what was done before, {abs(worst.z):.1f} standard errors: "
        "what happened earlier matters in ways that the features do not show"
    )
    refusals = [reason for reason in sequential if reason.weight is Weight.REFUSAL]
    if not refusals:
        advice = "so the estimate by all earlier steps certifies, with wider bounds; add columns that tell the past"
        return EstimatorChoice("sequential", found, (Reason("hidden_past", Weight.WARNING, f"{said}; {advice}"),))
    advice = "add columns that tell the past, or let the log's own history be used; by all earlier steps"
    reason = Reason("hidden_past", Weight.REFUSAL, f"{said}; {advice}, {refusals[0].message}")
    return EstimatorChoice("neither", found, (reason,))

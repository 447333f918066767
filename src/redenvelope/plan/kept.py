"""What a roll-out says of a plan: what was promised beside what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from redenvelope.evaluation.arms import Interval, difference, mean_interval
from redenvelope.evaluation.skewness import Spread
from redenvelope.log.arms import Arm
from redenvelope.plan.plan import Plan

__all__ = ["Kept", "Promise", "compare_with_promise"]

Verdict = Literal["as promised", "more", "less"]


@dataclass(frozen=True)
class Promise:
    """One figure of a plan beside what happened."""

    what: str
    """reward, cost, reward_difference or cost_difference: a user's, and beside the other arm."""
    promised: float
    promised_error: float
    """Standard error of what was promised."""
    found: Interval
    verdict: Verdict
    """Whether the two differ by more than chance allows, at the confidence of the comparison."""


@dataclass(frozen=True)
class Kept:
    """Whether a plan did what it promised."""

    status: Literal["kept", "open", "contradicted"]
    """kept: the bound of what happened keeps to the budget (or reaches the target). contradicted: it is beyond it for
    sure. open: too few users to say."""
    sentence: str
    promises: tuple[Promise, ...]
    notes: tuple[str, ...]


def compare_with_promise(plan: Plan, first: Arm, second: Arm, confidence: float) -> Kept:
    """The users of the first arm, who followed the plan, beside its certificate, and their gain beside the promised."""
    certificate = plan.certificate
    promises = [
        _promise("reward", certificate.reward.estimate, certificate.reward.standard_error, first, None, confidence),
        _promise("cost", certificate.cost.estimate, certificate.cost.standard_error, first, None, confidence),
    ]
    row = next((row for row in plan.record.comparison if row.policy == "plan"), None)
    if row is not None:
        reach = 2 * float(ndtri((1 + certificate.confidence) / 2))
        errors = (
            (row.reward_difference_upper - row.reward_difference_lower) / reach,
            (row.cost_difference_upper - row.cost_difference_lower) / reach,
        )
        promises += [
            _promise("reward_difference", row.reward_difference, errors[0], first, second, confidence),
            _promise("cost_difference", row.cost_difference, errors[1], first, second, confidence),
        ]
    status, sentence = _verdict(plan, first)
    return Kept(status, sentence, tuple(promises), tuple(_notes(plan, first)))


def _promise(what: str, promised: float, error: float, first: Arm, second: Arm | None, confidence: float) -> Promise:
    outcome = 0 if what.startswith("reward") else 1
    if second is None:
        found = mean_interval(first.sums[outcome], confidence)
    else:
        found = difference(first.sums[outcome], second.sums[outcome], confidence)
    reach = float(ndtri((1 + confidence) / 2)) * float(np.hypot(error, found.standard_error))
    gap = found.estimate - promised
    verdict: Verdict = "as promised" if abs(gap) <= reach else "more" if gap > 0 else "less"
    return Promise(what, promised, error, found, verdict)


def _verdict(plan: Plan, first: Arm) -> tuple[Literal["kept", "open", "contradicted"], str]:
    """By one-sided bounds at the certificate's own confidence."""
    certificate = plan.certificate
    level = f"{certificate.confidence:.0%} confidence"
    if certificate.target_reward is not None:
        spread, limit, what = Spread.of(first.sums[0]), certificate.target_reward, "the target"
        low, high = float(spread.lower(certificate.confidence)), float(spread.upper(certificate.confidence))
        status: Literal["kept", "open", "contradicted"] = (
            "kept" if low >= limit else "contradicted" if high < limit else "open"
        )
        found = f"its users earned {float(spread.mean):.4g} each, {low:.4g} to {high:.4g} with {level} either side"
    else:
        spread, limit, what = Spread.of(first.sums[1]), certificate.budget, "the budget"
        low, high = float(spread.lower(certificate.confidence)), float(spread.upper(certificate.confidence))
        status = "kept" if high <= limit else "contradicted" if low > limit else "open"
        found = f"its users cost {float(spread.mean):.4g} each, {low:.4g} to {high:.4g} with {level} either side"
    ends = {
        "kept": "the plan kept to",
        "contradicted": "the plan broke",
        "open": "too few users to say whether it kept to",
    }
    return status, f"{found}: {ends[status]} {what} of {limit:.4g}"


def _notes(plan: Plan, first: Arm) -> list[str]:
    steps, notes = plan.policy.specification.steps, []
    if first.steps is not None and first.steps < steps:
        notes.append(
            f"the plan is for {steps} steps and its arm has {first.steps}: compare again when the campaign is over; "
            "until then its cost is only what was spent so far"
        )
    if not plan.certificate.is_certified:
        notes.append("this plan's certificate was refused: it promised nothing")
    return notes

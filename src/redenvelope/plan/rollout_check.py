"""What a roll-out says of a plan: what was promised beside what happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from redenvelope.arrays import FloatArray
from redenvelope.campaign.costs import is_plain
from redenvelope.evaluation.ab_test import Interval, assignment_doubt, difference, mean_interval
from redenvelope.evaluation.skewness import Spread
from redenvelope.log.ab_test import Arm
from redenvelope.plan.plan import Plan
from redenvelope.serialization import to_plain

Verdict = Literal["as promised", "more", "less"]
Status = Literal["kept", "open", "contradicted"]
_WORST_FIRST: tuple[Status, ...] = ("contradicted", "open", "kept")


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
    budget: str | None = None
    """Which budget a cost is of, where there are several, or one that is not the cost itself."""


@dataclass(frozen=True)
class PromiseCheck:
    """Whether a plan did what it promised."""

    status: Status
    """kept: the bound of what happened keeps to the budget (or reaches the target). contradicted: it is beyond it for
    sure. open: too few users to say."""
    sentence: str
    promises: tuple[Promise, ...]
    notes: tuple[str, ...]


def compare_with_promise(plan: Plan, first: Arm, second: Arm, confidence: float) -> PromiseCheck:
    """The users of the first arm, who followed the plan, beside its certificate, and their gain beside the promised."""
    certificate, named = plan.certificate, not is_plain(plan.record.budgets)
    reward = certificate.reward
    promises = [_promise("reward", reward.estimate, reward.standard_error, (first.sums[0],), confidence)]
    for budget in certificate.budgets if named else ():
        if budget.name in first.charged:
            cost, spent = budget.cost, (first.charged[budget.name],)
            promises.append(_promise("cost", cost.estimate, cost.standard_error, spent, confidence, budget.name))
    if not named:
        cost = certificate.cost
        promises.append(_promise("cost", cost.estimate, cost.standard_error, (first.sums[1],), confidence))
    row = next((row for row in plan.record.comparison if row.policy == "plan"), None)
    if row is not None:
        reach = 2 * float(ndtri((1 + certificate.confidence) / 2))
        errors = (
            (row.reward_difference_upper - row.reward_difference_lower) / reach,
            (row.cost_difference_upper - row.cost_difference_lower) / reach,
        )
        gap = (first.sums[0], second.sums[0])
        promises.append(_promise("reward_difference", row.reward_difference, errors[0], gap, confidence))
        # What was compared is the first budget's cost.
        own = certificate.budgets[0].name if named else None
        pair = (first.sums[1], second.sums[1]) if own is None else _charged(own, first, second)
        if pair is not None:
            promises.append(_promise("cost_difference", row.cost_difference, errors[1], pair, confidence, own))
    status, sentence = _verdict_of_all(plan, first) if named else _verdict(plan, first)
    return PromiseCheck(status, sentence, tuple(promises), tuple(_notes(plan, first)))


def _charged(budget: str, first: Arm, second: Arm) -> tuple[FloatArray, FloatArray] | None:
    """What the users of both arms counted against a budget, [users] each; None where a table does not tell."""
    if budget not in first.charged or budget not in second.charged:
        return None
    return first.charged[budget], second.charged[budget]


def _promise(
    what: str,
    promised: float,
    error: float,
    sums: tuple[FloatArray, ...],
    confidence: float,
    budget: str | None = None,
) -> Promise:
    """`sums` are those of the first arm's users, [users], and of the second's where the two are compared."""
    found = mean_interval(sums[0], confidence) if len(sums) == 1 else difference(sums[0], sums[1], confidence)
    reach = float(ndtri((1 + confidence) / 2)) * float(np.hypot(error, found.standard_error))
    gap = found.estimate - promised
    verdict: Verdict = "as promised" if abs(gap) <= reach else "more" if gap > 0 else "less"
    return Promise(what, promised, error, found, verdict, budget)


def _verdict_of_all(plan: Plan, first: Arm) -> tuple[Status, str]:
    """Of every budget by its name: broken if one is, kept if all are."""
    if plan.certificate.target_reward is not None:
        return _verdict(plan, first)
    found: list[tuple[Status, str]] = []
    for budget in plan.certificate.budgets:
        if budget.name in first.untold:
            found.append(("open", f"{budget.name}: {first.untold[budget.name]}, so nothing can be said"))
        else:
            own = replace(first, sums=np.stack([first.sums[0], first.charged[budget.name]]))
            status, sentence = _verdict(replace(plan, certificate=plan.certificate.of(budget)), own)
            found.append((status, f"{budget.name}: {sentence}"))
    worst: Status = next((status for status in _WORST_FIRST if status in [each for each, _ in found]), "open")
    return worst, "; ".join(sentence for _, sentence in found)


def _verdict(plan: Plan, first: Arm) -> tuple[Status, str]:
    """By one-sided bounds at the certificate's own confidence."""
    certificate = plan.certificate
    level = f"{certificate.confidence:.0%} confidence"
    if certificate.target_reward is not None:
        spread, limit, what = Spread.of(first.sums[0]), certificate.target_reward, "the target"
        low, high = float(spread.lower(certificate.confidence)), float(spread.upper(certificate.confidence))
        status: Status = "kept" if low >= limit else "contradicted" if high < limit else "open"
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


# Two arms of a roll-out, as plain data: means, differences, what they are worth, and whether the promise was kept.


def compare_arms(
    arms: tuple[Arm, Arm], plan: Plan | None, confidence: float, share: float | None, value: float | None
) -> dict[str, Any]:
    """All that is to say of two arms, as plain data."""
    first, second = arms
    findings = [note for each in arms for note in (*each.notes, *map(str, each.findings))]
    doubt = None if share is None else assignment_doubt(len(first.users), len(second.users), share)
    if doubt is not None:
        findings.append(
            f"{len(first.users):,} of {len(first.users) + len(second.users):,} users are in the first arm, where "
            f"{share:.1%} were meant to be: by lot that happens once in {1 / max(doubt, 1e-300):,.0f} times. Find out "
            "who is missing before you believe the comparison"
        )
    gaps: dict[str, Any] = {
        name: to_plain(difference(first.sums[place], second.sums[place], confidence))
        for place, name in enumerate(("reward", "cost"))
    }
    gaps["costs"] = {
        name: to_plain(difference(own, second.charged[name], confidence))
        for name, own in first.charged.items()
        if name in second.charged
    }
    findings += [
        f"{each.name}: the budget {name!r} is not compared: {why}" for each in arms for name, why in each.untold.items()
    ]
    worth = None
    if value is not None:
        one, other = (value * each.sums[0] - each.sums[1] for each in arms)
        worth = to_plain(difference(one, other, confidence))
    return {
        "confidence": confidence,
        "arms": [
            {
                "name": each.name,
                "users": len(each.users),
                "reward": to_plain(mean_interval(each.sums[0], confidence)),
                "cost": to_plain(mean_interval(each.sums[1], confidence)),
                "costs": {name: to_plain(mean_interval(own, confidence)) for name, own in each.charged.items()},
            }
            for each in arms
        ],
        "difference": gaps | {"worth": worth},
        "value_per_reward": value,
        "promise": None if plan is None else to_plain(compare_with_promise(plan, first, second, confidence)),
        "findings": list(dict.fromkeys(findings)),
    }

"""Checking a deployment: compare two arms of an A/B test, and the plan's promises with what happened.

`compare_outcomes` estimates means and differences of both arms and checks the certificate against the plan's arm.
`users_for_test` computes the sample size before the test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr, ndtri

from redenvelope.arrays import FloatArray
from redenvelope.campaign.costs import charges_of, is_plain
from redenvelope.errors import UsageError, require_whole
from redenvelope.evaluation.confidence import Estimate, Spread, difference, mean_estimate
from redenvelope.evaluation.promise import Verdict, all_kept, reaches_target, within_budget
from redenvelope.log.ab_test import Arm, read_arms
from redenvelope.log.columns import ColumnMap
from redenvelope.plan.plan import Plan
from redenvelope.serialization import to_plain
from redenvelope.wording import number

Gap = Literal["as promised", "more", "less"]
Status = Literal["kept", "open", "contradicted"]
_STATUS: dict[str, Status] = {"confirmed": "kept", "undecided": "open", "contradicted": "contradicted"}

_MISMATCH = 0.001
"""Significance level of the test for a sample ratio mismatch. It is stricter than usual, because the test is run every
time and everything else depends on the assignment."""


def compare_outcomes(
    plan: Plan | None,
    tables: tuple[Any, Any],
    arm: str | None,
    followed: str | None,
    columns: ColumnMap | None,
    confidence: float,
    share: float | None,
    value: float | None,
) -> dict[str, Any]:
    """Read two arms, from two tables or one, and compare them; by default, columns have the plan's names."""
    if not 0.5 <= confidence < 1:
        raise UsageError(f"the confidence is a share between 0.5 and 1, such as 0.95, not {confidence}")
    if share is not None and not 0 < share < 1:
        raise UsageError(f"the share of users meant for the first arm is between 0 and 1, such as 0.5, not {share}")
    charges = None
    if plan is not None:
        texts = frozenset(category.name for category in plan.policy.encoder.categories)
        charges = partial(charges_of, budgets=plan.record.budgets, texts=texts, numeric=plan.catalogue.numeric)
    named = plan.columns if columns is None and plan is not None else columns
    arms = read_arms(*tables, arm, followed, named, charges)
    if share is None and plan is not None and arms[1].held_out:
        share = 1 - plan.policy.holdout if plan.policy.holdout else None
    return compare_arms(arms, plan, confidence, share, value)


def compare_arms(
    arms: tuple[Arm, Arm], plan: Plan | None, confidence: float, share: float | None, value: float | None
) -> dict[str, Any]:
    """Means and differences of two arms, and whether the plan's promises were kept, as plain data.

    `share` is the intended share of users in the first arm, `value` the value of one unit of reward.
    """
    first, second = arms
    gaps: dict[str, Any] = {
        name: _plain(difference(first.sums[place], second.sums[place], confidence))
        for place, name in enumerate(("reward", "cost"))
    }
    gaps["costs"] = {
        name: _plain(difference(own, second.charged[name], confidence))
        for name, own in first.charged.items()
        if name in second.charged
    }
    gaps["worth"] = None
    if value is not None:
        one, other = (value * each.sums[0] - each.sums[1] for each in arms)
        gaps["worth"] = _plain(difference(one, other, confidence))
    return {
        "confidence": confidence,
        "arms": [
            {
                "name": each.name,
                "users": len(each.users),
                "reward": _plain(mean_estimate(each.sums[0], confidence)),
                "cost": _plain(mean_estimate(each.sums[1], confidence)),
                "costs": {name: _plain(mean_estimate(own, confidence)) for name, own in each.charged.items()},
            }
            for each in arms
        ],
        "difference": gaps,
        "value_per_reward": value,
        "promise": None if plan is None else compare_with_promise(plan, first, second, confidence).as_dict(),
        "findings": list(dict.fromkeys(_findings(arms, share))),
    }


def _findings(arms: tuple[Arm, Arm], share: float | None) -> list[str]:
    """What to know before relying on the comparison."""
    first, second = (len(each.users) for each in arms)
    findings = [note for each in arms for note in (*each.notes, *map(str, each.findings))]
    chance = None if share is None else sample_ratio_mismatch(first, second, share)
    if chance is not None:
        findings.append(
            f"{first:,} of {first + second:,} users are in the first arm, where {share:.1%} were meant to be: with a "
            f"random assignment that happens once in {1 / max(chance, 1e-300):,.0f} times. Find out who is missing "
            "before you rely on the comparison"
        )
    findings += [
        f"{each.name}: the budget {name!r} is not compared: {why}"
        for each in arms
        for name, why in each.unknown.items()
    ]
    return findings


def sample_ratio_mismatch(first: int, second: int, share: float) -> float | None:
    """The p-value of the arms' sizes, with `share` of the users intended for the first, if it is below the significance
    level; else None."""
    users = first + second
    distance = abs(first - share * users) / np.sqrt(users * share * (1 - share))
    chance = 2 * float(ndtr(-distance))
    return chance if chance < _MISMATCH else None


def _plain(found: Estimate) -> dict[str, Any]:
    """An estimate of an A/B test for JSON; it has no estimator to name."""
    return {name: value for name, value in found.as_dict().items() if name != "estimator"}


# Promises compared with outcomes.


@dataclass(frozen=True)
class Promise:
    """One promised figure and what happened."""

    what: str
    """reward, cost, reward_difference or cost_difference; all per user, the differences against the other arm."""
    promised: float
    promised_error: float
    """Standard error of the promised figure."""
    found: Estimate
    verdict: Gap
    """Whether the two differ by more than chance, at the confidence of the comparison."""
    budget: str | None = None
    """Name of the budget, if there are several or it is not of the cost itself."""


@dataclass(frozen=True)
class PromiseCheck:
    """Whether a plan kept its promises."""

    status: Status
    """kept: the upper bound of the cost is within the budget (or the lower bound of the reward reaches the target).
    contradicted: the opposite bound is beyond it. open: neither."""
    sentence: str
    promises: tuple[Promise, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [to_plain(each) | {"found": _plain(each.found)} for each in self.promises]
        return {"status": self.status, "sentence": self.sentence, "promises": rows, "notes": list(self.notes)}


def compare_with_promise(plan: Plan, first: Arm, second: Arm, confidence: float) -> PromiseCheck:
    """Compare the users of the first arm with the plan's certificate, and their gain with the promised one."""
    certificate, named = plan.certificate, not is_plain(plan.record.budgets)
    promises = [_promise("reward", certificate.reward, (first.sums[0],), confidence)]
    for budget in certificate.budgets if named else ():
        if budget.name in first.charged:
            promises.append(_promise("cost", budget.cost, (first.charged[budget.name],), confidence, budget.name))
    if not named:
        promises.append(_promise("cost", certificate.cost, (first.sums[1],), confidence))
    # The promised gain is over the logged behaviour, which a control group does not get.
    row = next((row for row in plan.record.comparison if row.policy == "plan" and not second.held_out), None)
    if row is not None:
        reach = 2 * float(ndtri((1 + certificate.confidence) / 2))
        lower, upper = row.reward_difference_lower, row.reward_difference_upper
        gain = Estimate(row.reward_difference, lower, upper, (upper - lower) / reach, "difference")
        promises.append(_promise("reward_difference", gain, (first.sums[0], second.sums[0]), confidence))
        # The record compares the cost against the first budget.
        own = certificate.budgets[0].name if named else None
        pair = (first.sums[1], second.sums[1]) if own is None else _charged(own, first, second)
        if pair is not None:
            lower, upper = row.cost_difference_lower, row.cost_difference_upper
            rise = Estimate(row.cost_difference, lower, upper, (upper - lower) / reach, "difference")
            promises.append(_promise("cost_difference", rise, pair, confidence, own))
    found = _verdict(plan, first, named)
    users = f"with {certificate.confidence:.0%} confidence, on {len(first.users):,} users"
    return PromiseCheck(
        _STATUS[found.status], f"{found.sentence} ({users})", tuple(promises), tuple(_notes(plan, first, second))
    )


def _charged(budget: str, first: Arm, second: Arm) -> tuple[FloatArray, FloatArray] | None:
    """Charges of both arms' users against a budget, [users] each; None if a table lacks them."""
    if budget not in first.charged or budget not in second.charged:
        return None
    return first.charged[budget], second.charged[budget]


def _promise(
    what: str, promised: Estimate, sums: tuple[FloatArray, ...], confidence: float, budget: str | None = None
) -> Promise:
    """Compare a promise with `sums` of the first arm's users, [users], or with the difference from the second arm's."""
    found = mean_estimate(sums[0], confidence) if len(sums) == 1 else difference(sums[0], sums[1], confidence)
    reach = float(ndtri((1 + confidence) / 2)) * float(np.hypot(promised.standard_error, found.standard_error))
    gap = found.estimate - promised.estimate
    verdict: Gap = "as promised" if abs(gap) <= reach else "more" if gap > 0 else "less"
    return Promise(what, promised.estimate, promised.standard_error, found, verdict, budget)


def _verdict(plan: Plan, first: Arm, named: bool) -> Verdict:
    """Whether budgets or target were kept, by one-sided bounds at the certificate's confidence."""
    certificate = plan.certificate
    if certificate.target_reward is not None:
        reward = Spread.of(first.sums[0]).estimate(certificate.confidence)
        return reaches_target(reward, certificate.target_reward)
    if not named:
        return within_budget(Spread.of(first.sums[1]).estimate(certificate.confidence), certificate.budget)
    return all_kept(
        [
            Verdict("undecided", f"the cost of {each.name} is unknown: {first.unknown[each.name]}")
            if each.name in first.unknown
            else within_budget(
                Spread.of(first.charged[each.name]).estimate(certificate.confidence), each.budget, each.name
            )
            for each in certificate.budgets
        ]
    )


def _notes(plan: Plan, first: Arm, second: Arm) -> list[str]:
    steps, notes = plan.policy.specification.steps, []
    if first.steps is not None and first.steps < steps:
        notes.append(
            f"the plan is for {steps} steps and its arm has {first.steps}: compare again when the campaign is over; "
            "until then its cost is only what was spent so far"
        )
    if second.held_out:
        notes.append("the control group got the cheapest action, not what was logged: no gain over it was promised")
    if not plan.certificate.is_certified:
        notes.append("this plan's certificate was refused: it promised nothing")
    return notes


# Before a test: the sample size that can detect what the plan promises.


def users_for_test(
    plan: Plan,
    *,
    share: float = 0.5,
    confidence: float = 0.95,
    power: float = 0.8,
    gain: float | None = None,
    users_per_week: int | None = None,
) -> dict[str, Any]:
    """Number of users for an A/B test of the plan against the current policy that detects its gain with this power.

    `share` of the users follow the plan. The gain per user is estimated on the check users unless given; the standard
    deviation is that of the log. The test is two-sided, as in `compare`.
    """
    named = {"share": share, "confidence": confidence, "power": power}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            raise UsageError(f"the {name} is between 0 and 1, such as 0.8, not {value!r}")
    if users_per_week is not None:
        require_whole("users per week", users_per_week)
    compared = {each.policy: each for each in plan.record.comparison}
    if "plan" not in compared or "logged" not in compared:
        raise UsageError("a plan that was repriced has no comparison with the log; ask the plan as it was fitted")
    own, logged = compared["plan"], compared["logged"]
    expected = own.reward_difference if gain is None else gain
    if gain is None and expected <= 0:
        raise UsageError(
            f"there is no gain to see: on the check users the plan earns {number(-expected)} less per user than was "
            "logged; give --gain, the gain per user that the test is to see"
        )
    if not np.isfinite(expected) or expected == 0:
        raise UsageError(f"the gain must be a number other than 0, not {expected}; give the gain that you want to see")
    spread = logged.reward_error * np.sqrt(plan.certificate.clusters or plan.certificate.users)
    quantiles = float(ndtri((1 + confidence) / 2) + ndtri(power))
    content: dict[str, Any] = {
        **named,
        "gain": expected,
        "standard_deviation": float(spread),
        **_test_size(float(spread), expected, quantiles, share, users_per_week),
    }
    least = own.reward_difference_lower
    if gain is None and least > 0:  # the size needed if the gain is at its lower bound
        content["cautious"] = {"gain": least} | _test_size(float(spread), least, quantiles, share, users_per_week)
    return content


def _test_size(
    spread: float, gain: float, quantiles: float, share: float, users_per_week: int | None
) -> dict[str, Any]:
    """Number of users in each arm, and weeks until all have arrived."""
    total = (quantiles * spread / gain) ** 2 * (1 / share + 1 / (1 - share))
    arms = {"plan_users": int(np.ceil(total * share)), "other_users": int(np.ceil(total * (1 - share)))}
    weeks = None if users_per_week is None else int(np.ceil(sum(arms.values()) / users_per_week))
    return arms | {"weeks": weeks}

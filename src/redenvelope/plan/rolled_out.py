"""Two arms of a roll-out, as plain data: means, differences, what they are worth, and whether the promise was kept."""

from __future__ import annotations

from typing import Any

from redenvelope.evaluation.arms import assignment_doubt, difference, mean_interval
from redenvelope.log.arms import Arm
from redenvelope.plain import to_plain
from redenvelope.plan.kept import compare_with_promise
from redenvelope.plan.plan import Plan

__all__ = ["compare_arms"]


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

"""Whether a promise was kept: an estimate with its bounds, compared with the promised budget or target.

A promise is confirmed if the bound on the risky side keeps it, contradicted if the opposite bound breaks it, and
undecided otherwise. `evaluate` applies this to another log, `compare` to the users of an A/B test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from redenvelope.evaluation.confidence import Estimate
from redenvelope.wording import number

Status = Literal["confirmed", "contradicted", "undecided"]
_WORST_FIRST: tuple[Status, ...] = ("contradicted", "undecided", "confirmed")


@dataclass(frozen=True)
class Verdict:
    """Whether a promise was kept, with the figures in a sentence."""

    status: Status
    sentence: str


def within_budget(cost: Estimate, budget: float, name: str | None = None) -> Verdict:
    """Whether a cost per user is within its budget; pass the budget's `name` if there are several."""
    what = "the cost" if name is None else f"the cost of {name}"
    if cost.lower > budget:
        return Verdict("contradicted", f"{what} is at least {number(cost.lower)}, above the budget of {number(budget)}")
    if cost.upper <= budget:
        return Verdict("confirmed", f"{what} is at most {number(cost.upper)}, within the budget of {number(budget)}")
    return _undecided(cost, what, f"is within the budget of {number(budget)}")


def reaches_target(reward: Estimate, target: float) -> Verdict:
    """Whether a reward per user reaches its target."""
    aim = f"the target of {number(target)}"
    if reward.upper < target:
        return Verdict("contradicted", f"the reward is at most {number(reward.upper)}, below {aim}")
    if reward.lower >= target:
        return Verdict("confirmed", f"the reward is at least {number(reward.lower)}, reaching {aim}")
    return _undecided(reward, "the reward", f"reaches {aim}")


def all_kept(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict on several promises, at least one: the worst status, with the sentences of that status."""
    status = next(status for status in _WORST_FIRST if any(each.status == status for each in verdicts))
    return Verdict(status, "; ".join(each.sentence for each in verdicts if each.status == status))


def _undecided(found: Estimate, what: str, promise: str) -> Verdict:
    between = f"{what} is between {number(found.lower)} and {number(found.upper)}"
    return Verdict("undecided", f"{between}: too few users to say whether it {promise}")

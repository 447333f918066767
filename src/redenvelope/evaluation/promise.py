"""Whether a promise was kept: an estimate with its bounds beside the budget, or the target, that was promised.

A promise is confirmed when the bound on the risky side keeps it, contradicted when the bound on the other side breaks
it, and undecided in between. `evaluate` asks this of another log, `compare` of the users of a roll-out.
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
    """Whether a promise was kept, and the figures in a sentence."""

    status: Status
    sentence: str


def within_budget(cost: Estimate, budget: float, name: str | None = None) -> Verdict:
    """Whether a cost per user is within its budget; `name` is the budget's, where there are several."""
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
    """One verdict on several promises, at least one: the worst of them, with the sentences that say so."""
    status = next(status for status in _WORST_FIRST if any(each.status == status for each in verdicts))
    return Verdict(status, "; ".join(each.sentence for each in verdicts if each.status == status))


def _undecided(found: Estimate, what: str, promise: str) -> Verdict:
    between = f"{what} is between {number(found.lower)} and {number(found.upper)}"
    return Verdict("undecided", f"{between}: too few users to say whether it {promise}")

"""What a plan amounts to, in a headline: being within a budget is one thing, being better than today another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy

__all__ = ["Outlook", "beside_logged", "net_worth", "outlook"]

Kind = Literal["good", "caution", "bad"]


@dataclass(frozen=True)
class Outlook:
    """What to think of a plan."""

    kind: Kind
    headline: str
    advice: str


def beside_logged(plan: Plan) -> ComparedPolicy | None:
    """The plan beside what was logged, user by user; None where they were not compared."""
    return next((row for row in plan.record.comparison if row.policy == "plan"), None)


def outlook(plan: Plan) -> Outlook:
    """The headline: good only where the budget is kept and nothing is worse than today."""
    certificate, row = plan.certificate, beside_logged(plan)
    if not certificate.is_certified:
        return Outlook("bad", "Not to be relied on", "Do not roll it out on this evidence.")
    kept = "the budget" if certificate.target_reward is None else "the target"
    if row is None:
        return _estimated(plan, kept)
    worth = net_worth(plan, row)
    more, less = row.reward_difference_lower > 0, row.reward_difference_upper < 0
    dearer, cheaper = row.cost_difference_lower > 0, row.cost_difference_upper < 0
    if more and dearer and worth is not None and worth[1] < 0:
        return Outlook(
            "caution", "Earns more than today, but costs more than that is worth", "Ask for a smaller budget."
        )
    if less and cheaper and worth is not None and worth[0] > 0:
        return Outlook("good", "Earns less than today, but saves more than that is worth", "Roll it out.")
    if more:
        price = "for less money" if cheaper else "for more money" if dearer else "for about the same money"
        return Outlook("good", f"Earns more than today, {price}", "Roll it out.")
    if less:
        advice = (
            "It saves money and gives up what that money earned: take it only if that is what you want."
            if cheaper
            else "Keep to what you do today."
        )
        return Outlook("caution", f"Keeps to {kept}, but earns less than today", advice)
    if cheaper and row.reward_difference < 0:
        return Outlook("caution", "Costs less than today, and may earn less", "Take it if saving is the aim.")
    if cheaper:
        return Outlook("good", "Costs less than today and earns about the same", "Roll it out, if saving is the aim.")
    return Outlook(
        "caution",
        f"Keeps to {kept}, but is not shown to earn more than today",
        "Nothing speaks for a change yet: bring more users, or try it beside today’s way on some of them.",
    )


def net_worth(plan: Plan, row: ComparedPolicy) -> tuple[float, float] | None:
    """Between what the change is worth, less what it costs, where somebody said what a unit of reward is worth.

    Both ends at their worst: the two differences are not independent, so this is wider than it need be.
    """
    value = plan.record.money.value_per_reward
    if value is None:
        return None
    return (
        value * row.reward_difference_lower - row.cost_difference_upper,
        value * row.reward_difference_upper - row.cost_difference_lower,
    )


def _estimated(plan: Plan, kept: str) -> Outlook:
    """Where the plan was not compared with the log at this price, its estimate alone stands beside it."""
    reward, today = plan.certificate.reward, plan.certificate.logged["reward"]
    again = "The comparison with today was not made again at this budget."
    if reward.lower > today:
        return Outlook("good", f"Keeps to {kept}, and by its estimate earns more than today", again)
    if reward.upper < today:
        return Outlook("caution", f"Keeps to {kept}, but by its estimate earns less than today", again)
    return Outlook("caution", f"Keeps to {kept}; whether it earns more than today is open", again)

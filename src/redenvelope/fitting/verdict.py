"""Does another log bear a certificate out? Confirmed, contradicted, or too few users to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.plan.certificate import BudgetFigure, Certificate, Figure

__all__ = ["BudgetVerdict", "Verdict", "judge"]

Status = Literal["confirmed", "contradicted", "undecided"]


@dataclass(frozen=True)
class BudgetVerdict:
    """What a log says of one budget."""

    name: str
    status: Status
    budget: float
    cost: Figure
    message: str


@dataclass(frozen=True)
class Verdict:
    """What a log says of a certificate."""

    status: Status
    message: str
    cost: Figure
    """Of the first budget, with one-sided bounds at the certificate's confidence."""
    reward: Figure
    users: int
    """Who were asked: none of them trained the plan."""
    budgets: tuple[BudgetVerdict, ...] = ()
    """Of every budget; empty where a reward was promised."""


def judge(
    certificate: Certificate, reward: Figure, costs: Sequence[Figure], users: int, reasons: tuple[Reason, ...]
) -> Verdict:
    """Compare what is promised with bounds on other users; `reasons` speak against these bounds.

    One budget that is contradicted contradicts the certificate, which promises all of them.
    """
    level = f"with {certificate.confidence:.0%} confidence, on {users:,} users"

    def verdict(status: Status, message: str, budgets: tuple[BudgetVerdict, ...] = ()) -> Verdict:
        return Verdict(status, message, costs[0], reward, users, budgets)

    against = next((reason for reason in reasons if reason.weight is Weight.REFUSAL), None)
    if against is not None:
        return verdict("undecided", f"this log cannot say: {against.message}")
    if certificate.target_reward is not None:
        target = f"the target {certificate.target_reward:.4g}"
        if reward.upper < certificate.target_reward:
            return verdict("contradicted", f"the reward is at most {reward.upper:.4g}, {target} ({level})")
        if reward.lower >= certificate.target_reward:
            return verdict("confirmed", f"the reward is at least {reward.lower:.4g}, {target} ({level})")
        return verdict(
            "undecided",
            f"too few users to say: the reward is {reward.lower:.4g} to {reward.upper:.4g}, {target} ({level})",
        )
    several = len(costs) > 1
    judged = tuple(_of_budget(*pair, several) for pair in zip(certificate.budgets, costs, strict=True))
    for status in ("contradicted", "undecided", "confirmed"):
        said = [each for each in judged if each.status == status]
        if said:
            few = "too few users to say: " if status == "undecided" else ""
            return verdict(status, f"{few}{'; '.join(each.message for each in said)} ({level})", judged)
    raise AssertionError("a certificate has at least one budget")


def _of_budget(promised: BudgetFigure, cost: Figure, several: bool) -> BudgetVerdict:
    what = f"the cost of {promised.name}" if several else "the cost"
    budget = f"the budget {promised.budget:.4g}"

    def judged(status: Status, message: str) -> BudgetVerdict:
        return BudgetVerdict(promised.name, status, promised.budget, cost, message)

    if cost.lower > promised.budget:
        return judged("contradicted", f"{what} is at least {cost.lower:.4g}, {budget}")
    if cost.upper <= promised.budget:
        return judged("confirmed", f"{what} is at most {cost.upper:.4g}, {budget}")
    return judged("undecided", f"{what} is {cost.lower:.4g} to {cost.upper:.4g}, {budget}")

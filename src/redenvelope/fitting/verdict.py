"""Does another log bear a certificate out? Confirmed, contradicted, or too few users to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.plan.certificate import Certificate, Figure

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """What a log says of a certificate."""

    status: Literal["confirmed", "contradicted", "undecided"]
    message: str
    cost: Figure
    """With one-sided bounds at the certificate's confidence."""
    reward: Figure
    users: int
    """Who were asked: none of them trained the plan."""


def judge(certificate: Certificate, reward: Figure, cost: Figure, users: int, reasons: tuple[Reason, ...]) -> Verdict:
    """Compare what is promised with bounds on other users; `reasons` speak against these bounds."""
    level = f"with {certificate.confidence:.0%} confidence, on {users:,} users"

    def verdict(status: Literal["confirmed", "contradicted", "undecided"], message: str) -> Verdict:
        return Verdict(status, message, cost, reward, users)

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
    budget = f"the budget {certificate.budget:.4g}"
    if cost.lower > certificate.budget:
        return verdict("contradicted", f"the cost is at least {cost.lower:.4g}, {budget} ({level})")
    if cost.upper <= certificate.budget:
        return verdict("confirmed", f"the cost is at most {cost.upper:.4g}, {budget} ({level})")
    return verdict(
        "undecided",
        f"too few users to say: the cost is {cost.lower:.4g} to {cost.upper:.4g}, {budget} ({level})",
    )

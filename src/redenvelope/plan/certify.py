"""Certify: a plan at a place of its ladder, in the words and figures of a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from redenvelope.dual.solution import DualStatus
from redenvelope.errors import UsageError
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.plan.certificate import Certificate, Figure
from redenvelope.plan.climb import Stop, climb, descend
from redenvelope.plan.ladder import Ladder, Place
from redenvelope.plan.policy import DeployedPolicy, policy_sha256

__all__ = ["Checked", "Question", "certify", "walk"]


@dataclass(frozen=True)
class Question:
    """What is asked of a plan: the best for a budget, or the cheapest for a reward."""

    budget: float | None
    """Mean cost a user."""
    target_reward: float | None
    """Mean reward a user."""
    confidence: float
    for_all_prices: bool = False
    """Whether the bounds must hold at all prices at once."""

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.target_reward is None):
            raise UsageError("give either a budget (the mean cost a user) or a target reward")
        for name, wanted in (("budget", self.budget), ("target reward", self.target_reward)):
            if wanted is not None and not np.isfinite(wanted):
                raise UsageError(f"the {name} must be a number, not {wanted}")
        if not 0.5 < self.confidence < 1:
            raise UsageError(f"the confidence is a share between 0.5 and 1, such as 0.95, not {self.confidence}")


@dataclass(frozen=True)
class Checked:
    """The users that a ladder was checked on."""

    logged: dict[str, float]
    """Cost and reward a user, as logged."""
    fold_sha256: str
    doubts: tuple[Reason, ...] = ()
    """What the audit and the model's fidelity say against any plan of this log."""


def walk(ladder: Ladder, question: Question) -> Stop:
    """Where the plan that answers a question stands."""
    level = _level(ladder, question)
    if question.budget is not None:
        return climb(ladder, [question.budget], level)
    assert question.target_reward is not None, "one of the two is asked"
    return descend(ladder, question.target_reward, level)


def _level(ladder: Ladder, question: Question) -> float:
    """Confidence of a single bound."""
    return ladder.each_confidence(question.confidence) if question.for_all_prices else question.confidence


def certify(ladder: Ladder, stop: Stop, question: Question, policy: DeployedPolicy, checked: Checked) -> Certificate:
    """The certificate of a policy whose prices are those of the stop.

    With a target, what is certified is that the reward reaches it, and the budget is what the plan then needs: the
    upper bound of its cost.
    """
    reward, cost, *_ = ladder.figures(stop.place, _level(ladder, question))
    budget = cost.upper if question.budget is None else question.budget
    reasons = [
        *_not_reached(ladder, stop, question, cost, budget),
        *ladder.reasons(stop.place),
        *checked.doubts,
        *_end(stop, question, reward, cost),
        *_no_gain(reward, cost, checked.logged),
    ]
    refused = any(reason.weight is Weight.REFUSAL for reason in reasons)
    return Certificate(
        status="refused" if refused else "certified",
        reasons=tuple(sorted(reasons, key=lambda reason: reason.weight is not Weight.REFUSAL)),
        budget=budget,
        dual=float(policy.pricing.prices[-1][0]),
        method=policy.specification.method,
        confidence=question.confidence,
        cost=cost,
        reward=reward,
        logged=checked.logged,
        diagnostics=ladder.diagnostics(stop.place),
        users=ladder.users,
        policy_sha256=policy_sha256(policy),
        fold_sha256=checked.fold_sha256,
        target_reward=question.target_reward,
    )


def _not_reached(ladder: Ladder, stop: Stop, question: Question, cost: Figure, budget: float) -> Iterator[Reason]:
    """Why no rung holds."""
    if stop.holds or ladder.doubted.all():  # then the reasons of the rungs say why
        return
    if question.target_reward is not None:
        yield _target_missed(ladder, question, question.target_reward)
        return
    level = f"{question.confidence:.0%} confidence"
    if stop.status is DualStatus.BUDGET_INFEASIBLE:
        yield Reason(
            "over_budget",
            Weight.REFUSAL,
            f"no plan is as cheap as the budget of {budget:.4g} a user: the cheapest costs {cost.estimate:.4g}, at "
            f"most {cost.upper:.4g} at {level}; ask for at least that, or for actions that cost less",
        )
        return
    cheapest = ladder.figures(Place(0), _level(ladder, question))[1]
    room, reach = budget - cheapest.estimate, cheapest.upper - cheapest.estimate
    users = int(np.ceil(ladder.users * (reach / max(room, 1e-12)) ** 2))
    yield Reason(
        "over_budget",
        Weight.REFUSAL,
        f"even of the cheapest plan, which costs {cheapest.estimate:.4g} a user, the upper bound at {level} is "
        f"{cheapest.upper:.4g}, above the budget of {budget:.4g}; about {users:,} users to check on would do "
        f"(now {ladder.users:,}), or a larger budget",
    )


def _target_missed(ladder: Ladder, question: Question, target: float) -> Reason:
    best = ladder.figures(Place(len(ladder.rungs) - 1), _level(ladder, question))[0]
    return Reason(
        "target_missed",
        Weight.REFUSAL,
        f"no plan is sure to earn {target:.4g} a user: the best one earns {best.estimate:.4g}, at least "
        f"{best.lower:.4g} at {question.confidence:.0%} confidence; ask for less, or bring more users",
    )


def _end(stop: Stop, question: Question, reward: Figure, cost: Figure) -> Iterator[Reason]:
    """That more budget would buy nothing, or less reward save nothing."""
    if stop.status is not DualStatus.BUDGET_SLACK:
        return
    if question.budget is not None:
        message = (
            f"the budget of {question.budget:.6g} a user is more than the best plan can use: it earns "
            f"{reward.estimate:.6g} for {cost.estimate:.6g}, and more budget would buy nothing"
        )
    else:
        message = (
            f"even the cheapest plan earns the target of {question.target_reward:.6g} a user: it earns "
            f"{reward.estimate:.6g} for {cost.estimate:.6g}"
        )
    yield Reason(stop.status.value, Weight.WARNING, message)


def _no_gain(reward: Figure, cost: Figure, logged: dict[str, float]) -> Iterator[Reason]:
    """A plan within its budget may still earn less than what was done before: nobody should have to find that out."""
    if reward.estimate >= logged["reward"]:
        return
    sure = "earns less than" if reward.upper < logged["reward"] else "may earn less than"
    yield Reason(
        "no_gain",
        Weight.WARNING,
        f"the plan {sure} what was logged on the same users: {reward.estimate:.4g} against {logged['reward']:.4g} a "
        f"user, for a cost of {cost.estimate:.4g} against {logged['cost']:.4g}",
    )

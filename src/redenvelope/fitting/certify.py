"""Certify: what a policy costs and earns on users that chose nothing, and whether that may be relied on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.fitting.check import Check
from redenvelope.log.log import Log
from redenvelope.plan.certificate import Certificate, Figure
from redenvelope.plan.policy import DeployedPolicy, policy_sha256

__all__ = ["certify", "fold_sha256"]

FloatArray = NDArray[np.float64]


def certify(
    check: Check, name: str, budget: float, confidence: float, target_reward: float | None = None
) -> Certificate:
    """The certificate of one of the policies of a check, on a fold that neither the models nor the price saw.

    With a target, what is certified is that the reward reaches it, and the budget is what the plan then needs: the
    upper bound of its cost.
    """
    policy, log, evaluation = check.policies[name], check.log, check.evaluation
    estimator = evaluation.estimator.name
    reward, cost = (_figure(users, confidence, estimator) for users in check.added(name))
    if target_reward is not None:
        budget = cost.upper
    logged = {"cost": float(log.cost.sum() / len(log.users)), "reward": float(log.reward.sum() / len(log.users))}
    reasons = [
        *_doubts(evaluation, policy, check.prices_of(name)),
        *_over(cost, budget, confidence, len(log.users)),
        *_missed(reward, target_reward, confidence),
        *_no_gain(reward, cost, logged),
    ]
    refused = any(reason.weight is Weight.REFUSAL for reason in reasons)
    return Certificate(
        status="refused" if refused else "certified",
        reasons=tuple(sorted(reasons, key=lambda reason: reason.weight is not Weight.REFUSAL)),
        budget=budget,
        dual=float(policy.pricing.prices[-1][0]),
        method=policy.specification.method,
        confidence=confidence,
        cost=cost,
        reward=reward,
        logged=logged,
        diagnostics=_diagnostics(evaluation, check.prices_of(name)),
        users=len(log.users),
        policy_sha256=policy_sha256(policy),
        fold_sha256=fold_sha256(log),
        target_reward=target_reward,
    )


def fold_sha256(log: Log) -> str:
    """A hash of the users and what happened to them: the same fold, if and only if the hash is the same."""
    digest = hashlib.sha256("\n".join(map(str, log.users)).encode())
    for column in (log.step, log.action, log.propensity, log.reward, log.cost):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _figure(influence: FloatArray, confidence: float, estimator: str) -> Figure:
    """A mean over users of [users], with one-sided bounds on either side."""
    users = len(influence)
    error = float(influence.std(ddof=1) / np.sqrt(users)) if users > 1 else float("inf")
    reach = float(ndtri(confidence)) * error
    mean = float(influence.mean())
    return Figure(mean, mean - reach, mean + reach, error, estimator)


def _doubts(evaluation: Evaluation, policy: DeployedPolicy, places: range) -> list[Reason]:
    """What speaks against the estimate at any price that users follow, each rule once."""
    wanted, found = policy.specification, dict[str, Reason]()
    for place, share in zip(places, policy.pricing.shares, strict=True):
        for reason in evaluation.reasons("cost", place) if share > 0 else ():
            message = reason.message
            if reason.rule == "thin_overlap":
                message += f"; now: --temperature {wanted.temperature:.3g} --horizon {wanted.horizon}"
            found.setdefault(reason.rule, Reason(reason.rule, reason.weight, message))
    return list(found.values())


def _over(cost: Figure, budget: float, confidence: float, users: int) -> Iterator[Reason]:
    if cost.upper <= budget:
        return
    needed = (cost.upper - cost.estimate) / max(budget - cost.estimate, 1e-12)
    help_text = (
        f"about {int(np.ceil(users * needed**2)):,} users in the certify fold would do, or a lower target"
        if cost.estimate < budget
        else "aim lower: leave the safety margin on, or ask for a smaller budget"
    )
    yield Reason(
        "over_budget",
        Weight.REFUSAL,
        f"the upper bound of the cost, {cost.upper:.4g} a user at {confidence:.0%} confidence, "
        f"is above the budget of {budget:.4g}; {help_text}",
    )


def _missed(reward: Figure, target: float | None, confidence: float) -> Iterator[Reason]:
    if target is None or reward.lower >= target:
        return
    yield Reason(
        "target_missed",
        Weight.REFUSAL,
        f"the lower bound of the reward, {reward.lower:.4g} a user at {confidence:.0%} confidence, is below the target "
        f"of {target:.4g}; ask for less, leave the safety margin on, or bring more users",
    )


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


def _diagnostics(evaluation: Evaluation, places: range) -> dict[str, Any]:
    weights, own = evaluation.diagnostics, list(places)
    return {
        "effective_users_by_step": [float(value) for value in weights.effective_users[:, own].min(axis=1)],
        "largest_weight_share": float(weights.largest_share[own].max()),
        "probability_of_unlogged_actions": float(weights.unlogged[own].max()),
        "share_clipped": float(weights.clipped[own].max()),
        "mean_weight_by_step": [float(value) for value in weights.mean_weight[:, own].mean(axis=1)],
        "propensities_estimated": bool(weights.estimated),
    }

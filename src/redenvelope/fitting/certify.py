"""Certify: what a policy costs and earns on users that chose nothing, and whether that may be relied on."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.logs import Featurise, partitions_of
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.reasons import Weight
from redenvelope.fitting.baseline import decider
from redenvelope.log.log import Log
from redenvelope.plan.certificate import Certificate, Figure
from redenvelope.plan.policy import DeployedPolicy, policy_sha256

__all__ = ["certify", "check", "checked_partitions", "checking_features", "fold_sha256", "logged_means"]

FloatArray = NDArray[np.float64]


def _missed(reward: Figure, target: float | None, confidence: float) -> list[tuple[Weight, str]]:
    if target is None or reward.lower >= target:
        return []
    text = (
        f"the lower bound of the reward, {reward.lower:.4g} a user at {confidence:.0%} confidence, is below the target "
        f"of {target:.4g}; ask for less, leave the safety margin on, or bring more users"
    )
    return [(Weight.REFUSAL, text)]


def checking_features(policy: DeployedPolicy) -> Featurise:
    """What ratios of states are regressed on."""
    # Codes of static categories are no numbers, and no policy changes who is in them.
    codes = len(policy.encoder.layout.static_categories)
    return lambda log: policy.encoder.encode(log)[:, codes:]


def checked_partitions(policy: DeployedPolicy, log: Log, duals: FloatArray | None = None) -> list[Evidence]:
    """The evidence of a log, at the policy's own duals or at others [duals]."""
    return partitions_of(log, decider(policy, log, duals), checking_features(policy))


def check(policy: DeployedPolicy, log: Log, seed: int, duals: FloatArray | None = None) -> Evaluation:
    """What users say of a policy, by doubly robust with marginalised ratios on states: over several steps its error
    adds up, where that of products of ratios multiplies."""
    return evaluate_partitions(checked_partitions(policy, log, duals), [Marginalised(seed=seed)])["marginalised"]


def certify(
    policy: DeployedPolicy,
    log: Log,
    budget: float,
    confidence: float,
    seed: int,
    target_reward: float | None = None,
) -> Certificate:
    """Check a policy on a fold that neither the models nor the price saw.

    With a target, what is certified is that the reward reaches it, and the budget is what the plan then needs: the
    upper bound of its cost.
    """
    evaluation = check(policy, log, seed)
    shares = np.asarray(policy.specification.shares)
    # A mixture is drawn once per user, so each user adds the mixture of what the components add.
    influence = evaluation.influence() @ shares
    figures = {
        outcome: _figure(influence[place], confidence, evaluation.estimator.name)
        for place, outcome in enumerate(evaluation.outcome_names)
    }
    if target_reward is not None:
        budget = figures["cost"].upper
    reasons = [*_doubts(evaluation, policy), *_over(figures["cost"], budget, confidence, len(log.users))]
    reasons += _missed(figures["reward"], target_reward, confidence)
    logged = logged_means(log)
    reasons += _no_gain(figures, logged)
    refused = any(weight is Weight.REFUSAL for weight, _ in reasons)
    return Certificate(
        status="refused" if refused else "certified",
        reasons=tuple(text for _, text in sorted(reasons, key=lambda item: item[0] is not Weight.REFUSAL)),
        budget=budget,
        dual=float(policy.specification.duals[-1]),
        method=policy.specification.method,
        confidence=confidence,
        cost=figures["cost"],
        reward=figures["reward"],
        logged=logged,
        diagnostics=_diagnostics(evaluation),
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


def logged_means(log: Log) -> dict[str, float]:
    """Cost and reward a user, as logged."""
    return {"cost": float(log.cost.sum() / len(log.users)), "reward": float(log.reward.sum() / len(log.users))}


def _doubts(evaluation: Evaluation, policy: DeployedPolicy) -> list[tuple[Weight, str]]:
    """What speaks against the estimate of any component that users follow, each once."""
    wanted = policy.specification
    found: dict[str, tuple[Weight, str]] = {}
    for dual in np.flatnonzero(np.asarray(wanted.shares) > 0):
        for reason in evaluation.reasons("cost", int(dual)):
            message = reason.message
            if reason.rule == "thin_overlap":
                message += f"; now: --temperature {wanted.temperature:.3g} --horizon {wanted.horizon}"
            found.setdefault(reason.rule, (reason.weight, message))
    return list(found.values())


def _over(cost: Figure, budget: float, confidence: float, users: int) -> list[tuple[Weight, str]]:
    if cost.upper <= budget:
        return []
    needed = (cost.upper - cost.estimate) / max(budget - cost.estimate, 1e-12)
    help_text = (
        f"about {int(np.ceil(users * needed**2)):,} users in the certify fold would do, or a lower target"
        if cost.estimate < budget
        else "aim lower: leave the safety margin on, or ask for a smaller budget"
    )
    text = (
        f"the upper bound of the cost, {cost.upper:.4g} a user at {confidence:.0%} confidence, "
        f"is above the budget of {budget:.4g}; {help_text}"
    )
    return [(Weight.REFUSAL, text)]


def _no_gain(figures: dict[str, Figure], logged: dict[str, float]) -> list[tuple[Weight, str]]:
    """A plan within its budget may still earn less than what was done before: nobody should have to find that out."""
    reward, cost = figures["reward"], figures["cost"]
    if reward.estimate >= logged["reward"]:
        return []
    sure = "earns less than" if reward.upper < logged["reward"] else "may earn less than"
    text = (
        f"the plan {sure} what was logged on the same users: {reward.estimate:.4g} against {logged['reward']:.4g} a "
        f"user, for a cost of {cost.estimate:.4g} against {logged['cost']:.4g}"
    )
    return [(Weight.WARNING, text)]


def _diagnostics(evaluation: Evaluation) -> dict[str, Any]:
    weights = evaluation.diagnostics
    return {
        "effective_users_by_step": [float(value) for value in weights.effective_users.min(axis=1)],
        "largest_weight_share": float(weights.largest_share.max()),
        "probability_of_unlogged_actions": float(weights.unlogged.max()),
        "share_clipped": float(weights.clipped.max()),
        "mean_weight_by_step": [float(value) for value in weights.mean_weight.mean(axis=1)],
        "propensities_estimated": bool(weights.estimated),
    }

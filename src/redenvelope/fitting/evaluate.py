"""A plan on a log: every estimator side by side, and whether the certificate still stands."""

from __future__ import annotations

from typing import Any

from redenvelope.errors import UsageError
from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.estimators import ESTIMATORS
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.certify import certify, checked_partitions, fold_sha256
from redenvelope.fitting.comparison import logged_by_user
from redenvelope.log.log import Log
from redenvelope.log.split import split
from redenvelope.plan.plan import Plan

__all__ = ["evaluate_plan"]


def evaluate_plan(plan: Plan, log: Log, confidence: float) -> dict[str, Any]:
    """Estimates of reward and cost by every estimator; and the certificate verified, if this is the log it is of."""
    unknown = sorted(set(log.catalogue.labels) - set(plan.catalogue.labels))
    if unknown:
        raise UsageError(
            f"the log holds the action {unknown[0]!r}, which the plan does not know (it knows "
            f"{', '.join(plan.catalogue.labels)}); evaluate on a log of the plan's own actions"
        )
    log = plan.recoded(log)
    marginalised = Marginalised(seed=plan.record["settings"]["seed"])
    partitions = checked_partitions(plan.policy, log)
    evaluations = evaluate_partitions(partitions, [*ESTIMATORS.values(), marginalised]).values()
    logged = logged_by_user(log).mean(axis=1)
    return {
        "users": len(log.users),
        "confidence": confidence,
        "logged": {"reward": float(logged[0]), "cost": float(logged[1])},
        "estimates": [row for evaluation in evaluations for row in _rows(plan, evaluation, confidence)],
        "certificate": _verified(plan, log),
    }


def _rows(plan: Plan, evaluation: Evaluation, confidence: float) -> list[dict[str, Any]]:
    """One row a target; of a mixture, one row a component with its share."""
    rows = []
    for place, share in enumerate(plan.policy.specification.shares):
        for target in ("reward", "cost"):
            estimate = evaluation.estimate(target, place, confidence)
            reasons = [str(reason) for reason in estimate.reasons]
            rows.append({"target": target, "share": share} | estimate.as_dict() | {"reasons": reasons})
    return rows


def _verified(plan: Plan, log: Log) -> dict[str, Any]:
    """The certificate made again from its own fold, where the log still holds it."""
    given, settings = plan.certificate, plan.record["settings"]
    try:
        fold = split(log, settings["parts"], settings["seed"])[2]
    except UsageError:
        fold = log
    for candidate in (fold, log):
        if fold_sha256(candidate) == given.fold_sha256:
            again = certify(
                plan.policy, candidate, given.budget, given.confidence, settings["seed"], given.target_reward
            )
            same = abs(again.cost.upper - given.cost.upper) <= 1e-6 * max(abs(given.cost.upper), 1.0)
            return {"status": given.status, "verified": same and again.status == given.status}
    return {"status": given.status, "verified": None, "note": "this log does not hold the fold it was made on"}

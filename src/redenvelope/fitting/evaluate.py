"""A plan on a log: every estimator side by side, and whether the certificate still stands."""

from __future__ import annotations

from typing import Any

from redenvelope.errors import UsageError
from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.estimators import ESTIMATORS
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.check import Contestant, check_policies, fold_sha256
from redenvelope.fitting.comparison import logged_by_user
from redenvelope.fitting.contenders import contender, evidence_of
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.settings import SearchSettings
from redenvelope.log.log import Log
from redenvelope.log.split import split
from redenvelope.plan.ladder import Place
from redenvelope.plan.plain import to_plain
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
    encoded = _encoded(plan, plan.recoded(log))
    own = contender(plan.policy, plan.policy.pricing.table, _walkers(plan, encoded))
    evidence = [evidence_of(batch, [own.values(batch)], encoded.log) for batch in encoded.batches()]
    evaluations = evaluate_partitions(evidence, [*ESTIMATORS.values(), Marginalised(seed=plan.record.seed)])
    logged = logged_by_user(encoded.log).mean(axis=1)
    return {
        "users": len(log.users),
        "confidence": confidence,
        "logged": {"reward": float(logged[0]), "cost": float(logged[1])},
        "estimates": [row for each in evaluations.values() for row in _rows(plan, each, confidence)],
        "certificate": _verified(plan, encoded.log),
    }


def _encoded(plan: Plan, log: Log) -> EncodedLog:
    return encode(log, plan.policy.encoder, plan.policy.specification.steps)


def _walkers(plan: Plan, encoded: EncodedLog) -> EncodedLog:
    return encoded.some_users(SearchSettings().walkers, "walkers", plan.record.seed)


def _rows(plan: Plan, evaluation: Evaluation, confidence: float) -> list[dict[str, Any]]:
    """One row a target; of a mixture, one row a price with its share."""
    rows = []
    for place, share in enumerate(plan.policy.pricing.shares):
        for target in ("reward", "cost"):
            estimate = evaluation.estimate(target, place, confidence)
            reasons = [to_plain(reason) for reason in estimate.reasons]
            rows.append({"target": target, "share": share} | estimate.as_dict() | {"reasons": reasons})
    return rows


def _verified(plan: Plan, log: Log) -> dict[str, Any]:
    """The certificate made again from its own fold, where the log still holds it."""
    given, record = plan.certificate, plan.record
    try:
        fold = split(log, record.parts, record.seed)[-1]
    except UsageError:
        fold = log
    for candidate in (fold, log):
        if fold_sha256(candidate) == given.fold_sha256:
            encoded = _encoded(plan, candidate)
            estimator = Marginalised(seed=record.seed)
            pricing = plan.policy.pricing
            own = {"plan": Contestant(plan.policy, pricing.table[::-1])}  # from the dearer price, as on the ladder
            check = check_policies(own, encoded, _walkers(plan, encoded), estimator, 0, record.seed)
            place = Place(0, pricing.shares[0] if len(pricing.shares) > 1 else 0.0)
            again = check.ladder("plan").figures(place, given.confidence)[1]
            same = abs(again.upper - given.cost.upper) <= 1e-6 * max(abs(given.cost.upper), 1.0)
            return {"status": given.status, "verified": same}
    return {"status": given.status, "verified": None, "note": "this log does not hold the fold it was made on"}

"""A plan on a log: what it says of the certificate, every estimator side by side, and what has drifted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.costs import charged_log
from redenvelope.errors import UsageError
from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.estimator import Estimator
from redenvelope.evaluation.estimators import ESTIMATORS
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.intervals import require_confidence
from redenvelope.evaluation.logs import Extent
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.check import Contestant, check_policies, fold_sha256
from redenvelope.fitting.comparable import lacking_features
from redenvelope.fitting.comparison import logged_by_user
from redenvelope.fitting.contenders import contender, evidence_of
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.rules import log_left
from redenvelope.fitting.settings import SearchSettings
from redenvelope.fitting.verdict import Verdict, judge
from redenvelope.log.drift import drift_findings
from redenvelope.log.findings import Finding
from redenvelope.log.log import Log
from redenvelope.log.split import split_fold
from redenvelope.plain import to_plain
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plan import Plan
from redenvelope.policies.standing import allowed

__all__ = ["evaluate_plan"]


def evaluate_plan(plan: Plan, log: Log, confidence: float = 0.95, all_users: bool = False) -> dict[str, Any]:
    """Estimates of reward and cost by every estimator, and what they say of the certificate.

    Users of the folds that made the plan are left out, told by their ids alone; with `all_users` they are new people
    who happen to have such ids, and stay.
    """
    require_confidence(confidence)
    unknown = sorted(set(log.catalogue.labels) - set(plan.catalogue.labels))
    if unknown:
        raise UsageError(
            f"the log holds the action {unknown[0]!r}, which the plan does not know (it knows "
            f"{', '.join(plan.catalogue.labels)}); evaluate on a log of the plan's own actions"
        )
    log = charged_log(log, plan.record.budgets)
    lacking = lacking_features(plan, log)
    whole = plan.recoded(log)
    kept = whole if all_users else _not_trained_on(plan, whole)
    encoded = _encoded(plan, kept)
    estimator = _estimator(plan)
    own = contender(plan.policy, plan.policy.pricing.table, _walkers(plan, encoded))
    extent = Extent.of(encoded.log)
    evidence = [evidence_of(batch, [own.values(batch)], extent) for batch in encoded.batches()]
    shown = {each.name: each for each in (*ESTIMATORS.values(), Marginalised(seed=plan.record.seed), estimator)}
    evaluations = evaluate_partitions(evidence, list(shown.values()))
    logged = logged_by_user(encoded.log).mean(axis=1)
    ladder = _ladder(plan, encoded, estimator)
    return {
        "users": kept.people,
        "left_out": log.people - kept.people,
        "confidence": confidence,
        "verdict": to_plain(_verdict(plan, ladder)),
        "lacking": [finding.as_dict() for finding in (*lacking, *_left(plan, encoded))],
        "drift": [finding.as_dict() for finding in _drift(plan, encoded)],
        "logged": {"reward": float(logged[0]), "cost": float(logged[1])} | _logged_costs(plan, logged[1:]),
        "estimates": [row for each in evaluations.values() for row in _rows(plan, each, confidence)],
        "certificate": _verified(plan, whole, kept, ladder),
    }


def _left(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    """How much of the log the plan's rules leave to speak for it."""
    if encoded.standing is None:
        return ()
    eligible = allowed(encoded.standing, plan.policy.constraint, encoded.states, encoded.steps_left)
    return log_left(encoded.log, eligible)


def _drift(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    return drift_findings(plan.policy.encoder, encoded.states, encoded.log.features)


def _estimator(plan: Plan) -> Estimator:
    """The one that certified."""
    name = plan.certificate.cost.estimator
    return ESTIMATORS[name] if name in ESTIMATORS else Marginalised.named(name, plan.record.seed)


def _not_trained_on(plan: Plan, log: Log) -> Log:
    """The users who are in the check fold by their ids."""
    check = _checking(plan, log)
    if not check.any():
        raise UsageError(
            f"by their ids, all {log.people} users of this log are among those the plan was made with; bring "
            "others, or say --all-users if these are new people"
        )
    return log.select(check)


def _ladder(plan: Plan, encoded: EncodedLog, estimator: Estimator) -> Ladder:
    """The plan's ladder on other users: all prices, because neighbours share their baselines beyond the trees."""
    mixtures = plan.ladder.mixtures()
    prices = plan.ladder.prices if mixtures is None else mixtures.prices
    own = {"plan": Contestant(plan.policy, prices, mixtures)}
    check = check_policies(own, encoded, _walkers(plan, encoded), estimator, 0, plan.record.seed)
    return check.ladder("plan")


def _verdict(plan: Plan, ladder: Ladder) -> Verdict:
    place = plan.record.stop.place
    reward, *costs = ladder.figures(place, plan.certificate.confidence)
    return judge(plan.certificate, reward, costs, ladder.users, ladder.reasons(place))


def _logged_costs(plan: Plan, costs: NDArray[np.float64]) -> dict[str, Any]:
    """What was spent of each of several budgets, by their names."""
    names = [each.name for each in plan.certificate.budgets]
    return {"costs": dict(zip(names, costs.tolist(), strict=True))} if len(names) > 1 else {}


def _checking(plan: Plan, log: Log) -> NDArray[np.bool_]:
    """Who is in the check fold, [users]."""
    return np.asarray(split_fold(log.keys, plan.record.parts, plan.record.seed) == len(plan.record.parts) - 1)


def _encoded(plan: Plan, log: Log) -> EncodedLog:
    return encode(log, plan.policy.encoder, plan.policy.specification.steps, plan.policy.constraint)


def _walkers(plan: Plan, encoded: EncodedLog) -> EncodedLog:
    return encoded.some_users(SearchSettings().walkers, "walkers", plan.record.seed)


def _rows(plan: Plan, evaluation: Evaluation, confidence: float) -> list[dict[str, Any]]:
    """One row a target; of a mixture, one row a price with its share."""
    rows, budgets = [], [each.name for each in plan.certificate.budgets]
    targets = ["reward", *("cost" for _ in budgets)]
    for place, share in enumerate(plan.policy.pricing.shares):
        for number, (target, outcome) in enumerate(zip(targets, evaluation.outcome_names, strict=True)):
            estimate = evaluation.estimate(outcome, place, confidence)
            reasons = [to_plain(reason) for reason in estimate.reasons]
            named = {"budget": budgets[number - 1]} if number and len(budgets) > 1 else {}
            rows.append({"target": target, "share": share} | named | estimate.as_dict() | {"reasons": reasons})
    return rows


def _verified(plan: Plan, log: Log, kept: Log, ladder: Ladder) -> dict[str, Any]:
    """The certificate made again from its own fold, where the log still holds it; `ladder` is of the users kept."""
    given = plan.certificate
    check = _checking(plan, log)
    for candidate in (kept, log.select(check)) if check.any() else (kept,):
        if fold_sha256(candidate) == given.fold_sha256:
            own = ladder if candidate is kept else _ladder(plan, _encoded(plan, candidate), _estimator(plan))
            again = own.figures(plan.record.stop.place, given.confidence)[1:]
            same = all(
                abs(figure.upper - each.cost.upper) <= 1e-6 * max(abs(each.cost.upper), 1.0)
                for figure, each in zip(again, given.budgets, strict=True)
            )
            return {"status": given.status, "verified": same}
    return {"status": given.status, "verified": None, "note": "this log does not hold the fold it was made on"}

"""From a log and a budget to a plan: the only module that wires the stages together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.audit.audit import Audit, audit_log
from redenvelope.dual.frontier import Frontier
from redenvelope.errors import LogError, UsageError
from redenvelope.fitting.certify import certify, check
from redenvelope.fitting.comparison import ComparedPolicy, added_by_user, compare, logged_by_user
from redenvelope.fitting.method import Lessons, Progress, learn_model, one_step_policy, unpriced_policy
from redenvelope.fitting.scouting import grid_of_duals, model_frontier, some_users
from redenvelope.fitting.search import OffPolicyCurve, SearchResult, budget_for, off_policy_curve, search_price
from redenvelope.fitting.settings import SOLVERS, FitSettings
from redenvelope.fitting.summary import allocation_summary
from redenvelope.log.findings import Severity
from redenvelope.log.log import Log
from redenvelope.log.split import split
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy, PolicySpecification

__all__ = ["Progress", "fit"]

FloatArray = NDArray[np.float64]

_SEARCH_USERS = 10_000
_LEAST_USERS = 50  # a certificate refuses fewer effective ones
_BOILING = 1e6


def fit(
    log: Log,
    *,
    budget: float | None = None,
    target_reward: float | None = None,
    settings: FitSettings | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best plan for a budget (mean cost a user), or the cheapest for a reward, checked on users apart.

    Exactly one of `budget` and `target_reward` must be given.
    """
    settings = settings or FitSettings()
    if (budget is None) == (target_reward is None):
        raise UsageError("give either a budget (the mean cost a user) or a target reward")
    if log.has_gaps:
        raise UsageError(
            "steps of some users are missing from the log, so no sequence can be weighed and no plan certified; "
            "bring every step, or number the decisions of each user without gaps (the audit names the rows)"
        )
    for name, wanted in (("budget", budget), ("target reward", target_reward)):
        if wanted is not None and not np.isfinite(wanted):
            raise UsageError(f"the {name} must be a number, not {wanted}")
    tell = progress or (lambda stage, figure: None)
    tell("audit", "")
    audited = audit_log(log, budget)
    _refuse_errors(audited)
    tell("audit", f"{audited.users:,} users, {audited.rows:,} rows, {len(audited.actions)} actions")
    tell("folds", "")
    train, search, hold = split(log, settings.parts, settings.seed)
    tell("folds", f"{len(train.users):,} users train, {len(search.users):,} search, {len(hold.users):,} certify")
    _require_users(log, (search, hold))
    lessons = learn_model(train, search, settings, tell)
    policy = unpriced_policy(search, lessons, settings, tell)
    tell("search", "")
    duals = grid_of_duals(policy, search)
    curve = _curve(policy, search, duals, settings.seed)
    safety = len(hold.users) if settings.safety else None
    if target_reward is not None:
        # The margin is on the reward: the cost it takes is aimed at as it is.
        budget, safety = budget_for(curve, target_reward, settings.confidence, safety), None
    assert budget is not None
    result = _search(policy, search, curve, budget, settings, safety)
    policy = replace(policy, specification=_at_price(policy.specification, result))
    tell("search", f"λ = {result.solution.dual:.4g}, aiming at a cost of {result.target:.4g} a user")
    tell("certificate", "")
    certificate = certify(policy, hold, budget, settings.confidence, settings.seed, target_reward)
    certificate = _with_outcome(certificate, result)
    tell("certificate", f"{certificate.status}: cost {certificate.cost.estimate:.4g} ≤ {certificate.cost.upper:.4g}")
    tell("comparison", "")
    compared = _comparison(policy, lessons, (search, hold), budget, settings)
    tell("comparison", _gain(compared))
    curve = result.curve
    frontier = _frontier_table(curve, model_frontier(policy, search, curve.duals), settings.confidence)
    record = _record(audited, (train, search, hold), settings, lessons, result, policy)
    record["comparison"] = [row.as_dict() for row in compared]
    record["allocation"] = allocation_summary(policy, hold)
    return Plan(policy, log.catalogue, certificate, frontier, record)


def _refuse_errors(audited: Audit) -> None:
    """A log that the audit refuses is refused here too, with every reason; a wrong budget is not the log's fault."""
    errors = [finding for finding in audited.findings if finding.severity is Severity.ERROR]
    faults = [finding for finding in errors if not finding.rule.startswith("budget_")]
    if faults:
        raise LogError(faults)
    if errors:
        raise UsageError(f"{errors[0].message}; {errors[0].remedy}")


def _require_users(log: Log, folds: tuple[Log, Log]) -> None:
    fewest = min(len(fold.users) for fold in folds)
    if fewest < _LEAST_USERS:
        enough = int(np.ceil(_LEAST_USERS * len(log.users) / max(fewest, 1) * 1.2 / 50) * 50)
        raise UsageError(
            f"the log has {len(log.users)} users, which leaves {fewest} to search or to certify on; at least "
            f"{_LEAST_USERS} are needed in each, so about {enough} in all (a few thousand for a certificate)"
        )


def _curve(policy: DeployedPolicy, search: Log, duals: FloatArray, seed: int) -> OffPolicyCurve:
    return off_policy_curve(duals, check(policy, some_users(search, _SEARCH_USERS), seed, duals))


def _search(
    policy: DeployedPolicy,
    search: Log,
    curve: OffPolicyCurve,
    budget: float,
    settings: FitSettings,
    certify_users: int | None,
) -> SearchResult:
    def estimate(duals: FloatArray) -> OffPolicyCurve:
        return _curve(policy, search, duals, settings.seed)

    return search_price(curve, estimate, budget, SOLVERS[settings.solver], settings.confidence, certify_users)


def _at_price(specification: PolicySpecification, result: SearchResult) -> PolicySpecification:
    mixture = result.solution.mixture
    if mixture is None:
        return replace(specification, duals=(result.solution.dual,), shares=(1.0,))
    duals, share = (mixture.low_dual, mixture.high_dual), mixture.low_share
    return replace(specification, duals=duals, shares=(share, 1.0 - share))


def _with_outcome(certificate: Certificate, result: SearchResult) -> Certificate:
    """The certificate with what the search had to say, if that was not simply a price."""
    status = result.solution.status
    if status.value == "converged":
        return certificate
    return replace(certificate, reasons=(*certificate.reasons, result.solution.message))


def _comparison(
    policy: DeployedPolicy, lessons: Lessons, folds: tuple[Log, Log], budget: float, settings: FitSettings
) -> tuple[ComparedPolicy, ...]:
    """The plan, chance, and the bandit at the same budget, beside what was logged, on the certify fold."""
    search, hold = folds
    added = {"logged": logged_by_user(hold)}
    # So warm that every action is equally likely.
    added["uniform"] = added_by_user(one_step_policy(lessons, _BOILING), hold, settings.seed)
    if policy.specification.method != "bandit":
        bandit = one_step_policy(lessons, policy.specification.temperature)
        curve = _curve(bandit, search, grid_of_duals(bandit, search), settings.seed)
        result = _search(bandit, search, curve, budget, settings, None)
        bandit = replace(bandit, specification=_at_price(bandit.specification, result))
        added["bandit"] = added_by_user(bandit, hold, settings.seed)
    added["plan"] = added_by_user(policy, hold, settings.seed)
    return compare(added, settings.confidence)


def _gain(compared: tuple[ComparedPolicy, ...]) -> str:
    plan = compared[-1]
    return f"reward {plan.reward:.4g} a user, {plan.reward_difference:+.3g} against logged"


def _frontier_table(curve: OffPolicyCurve, model: Frontier, confidence: float) -> pl.DataFrame:
    return curve.frame(confidence).with_columns(
        pl.Series("model_cost", model.costs), pl.Series("model_reward", model.rewards)
    )


def _record(
    audited: Audit,
    folds: tuple[Log, ...],
    settings: FitSettings,
    lessons: Lessons,
    result: SearchResult,
    policy: DeployedPolicy,
) -> dict[str, Any]:
    names = ("train", "search", "certify")
    solution = result.solution
    return {
        "audit": audited.as_dict(),
        "folds": {name: {"users": len(fold.users), "rows": len(fold)} for name, fold in zip(names, folds, strict=True)},
        "settings": settings.as_dict(),
        "model": lessons.neural.as_dict(),
        "fidelity": lessons.fidelity.as_dict() | {"trusted": lessons.fidelity.trusted},
        "planner": {"notes": list(policy.valuer.notes), "depth": policy.valuer.depth},
        "search": {
            "status": solution.status.value,
            "message": solution.message,
            "target": result.target,
            "made_monotone_by": result.curve.mended,
            "users": result.curve.users,
            "steps": [
                {"dual": "infinity" if np.isinf(step.dual) else step.dual, "cost": step.cost, "reward": step.reward}
                for step in solution.steps
            ],
        },
    }

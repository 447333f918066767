"""From a log and a budget to a plan: the only module that wires the stages together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from redenvelope.audit.audit import Audit, audit_log
from redenvelope.dual.solution import DualStatus
from redenvelope.errors import LogError, UsageError
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.fitting.certify import certify
from redenvelope.fitting.check import Check, check_policies
from redenvelope.fitting.comparison import compare, logged_by_user
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.method import Lessons, learn_model, one_step_policy, trust_in, unpriced_policy
from redenvelope.fitting.scouting import model_frontier
from redenvelope.fitting.search import Search, Searched, curve_table, safety_margin
from redenvelope.fitting.settings import FitSettings
from redenvelope.fitting.shares import action_shares
from redenvelope.log.findings import Severity
from redenvelope.log.log import Log
from redenvelope.log.split import split
from redenvelope.models.fidelity import Fidelity
from redenvelope.models.fit import NeuralFit
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import ComparedPolicy, FitRecord, FoldSize, PlannerRecord
from redenvelope.progress import Progress, Stages

__all__ = ["fit"]

_LEAST_USERS = 50  # a certificate refuses fewer effective ones
_BOILING = 1e6  # so warm that every action is equally likely
_FOLDS = ("train", "search", "certify")


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
    settings, stages = settings or FitSettings(), Stages(progress)
    _require_question(log, budget, target_reward)
    audited = _audited(log, budget, stages)
    train, search, hold = _folds(log, settings, stages)
    named = zip(_FOLDS, (train, search, hold), strict=True)
    sizes = {name: FoldSize(len(fold.users), len(fold)) for name, fold in named}
    lessons, training = learn_model(train, settings, stages)
    searching, holding = (encode(fold, lessons.encoder, lessons.steps) for fold in (search, hold))
    fidelity = trust_in(lessons, searching, stages)
    scouts = searching.some_users(settings.search.scouts, "scouts", settings.seed)
    policy = unpriced_policy(scouts, lessons, training, fidelity.trusted, settings, stages)
    del train, training  # most of the log, and not needed any more
    stages.begin("search")
    looking = _search(searching, scouts, len(hold.users), settings)
    found = _found(looking, policy, budget, target_reward)
    policy = replace(policy, pricing=found.pricing)
    stages.finish("search", f"λ = {found.landing.price:.4g}, aiming at a cost of {found.target:.4g} a user")
    stages.begin("certificate")
    check = _checked(_contestants(policy, lessons, looking, found.budget), holding, looking, settings)
    certificate = _with_outcome(certify(check, "plan", found.budget, settings.confidence, target_reward), found)
    bound = f"cost {certificate.cost.estimate:.4g} ≤ {certificate.cost.upper:.4g}"
    stages.finish("certificate", f"{certificate.status}: {bound}")
    stages.begin("comparison")
    compared = _compared(check, settings.confidence)
    frontier = _frontier(policy, found, scouts, settings)
    record = _record(audited, sizes, settings, lessons.neural, fidelity, found, policy, compared, check)
    stages.finish("comparison", _gain(compared))
    return Plan(policy, log.catalogue, certificate, frontier, record)


def _require_question(log: Log, budget: float | None, target_reward: float | None) -> None:
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


def _audited(log: Log, budget: float | None, stages: Stages) -> Audit:
    """The audit; what it refuses is refused here, with every reason; a wrong budget is not the log's fault."""
    stages.begin("audit")
    audited = audit_log(log, budget)
    errors = [finding for finding in audited.findings if finding.severity is Severity.ERROR]
    faults = [finding for finding in errors if not finding.rule.startswith("budget_")]
    if faults:
        raise LogError(faults)
    if errors:
        raise UsageError(f"{errors[0].message}; {errors[0].remedy}")
    stages.finish("audit", f"{audited.users:,} users, {audited.rows:,} rows, {len(audited.actions)} actions")
    return audited


def _folds(log: Log, settings: FitSettings, stages: Stages) -> tuple[Log, ...]:
    stages.begin("folds")
    folds = split(log, settings.parts, settings.seed)
    train, search, hold = (len(fold.users) for fold in folds)
    stages.finish("folds", f"{train:,} users train, {search:,} search, {hold:,} certify")
    fewest = min(search, hold)
    if fewest < _LEAST_USERS:
        enough = int(np.ceil(_LEAST_USERS * len(log.users) / max(fewest, 1) * 1.2 / 50) * 50)
        raise UsageError(
            f"the log has {len(log.users)} users, which leaves {fewest} to search or to certify on; at least "
            f"{_LEAST_USERS} are needed in each, so about {enough} in all (a few thousand for a certificate)"
        )
    return folds


def _search(fold: EncodedLog, scouts: EncodedLog, certify_users: int, settings: FitSettings) -> Search:
    wanted = settings.search
    sample = fold.some_users(wanted.users, "search", settings.seed)
    # Over several steps the error of ratios of states adds up, where that of products of ratios multiplies.
    estimator = settings.estimator or Marginalised(seed=settings.seed)
    margin = 0.0
    if settings.safety:
        margin = safety_margin(settings.confidence, len(sample.log.users), certify_users, wanted.passing_chance)
    walkers = sample.some_users(wanted.walkers, "walkers", settings.seed)
    return Search(sample, scouts, walkers, estimator, wanted, margin)


def _found(looking: Search, policy: DeployedPolicy, budget: float | None, target_reward: float | None) -> Searched:
    if budget is not None:
        return looking.for_budget(policy, budget)
    assert target_reward is not None, "one of the two was asked for"
    return looking.for_reward(policy, target_reward)


def _contestants(policy: DeployedPolicy, lessons: Lessons, looking: Search, budget: float) -> dict[str, DeployedPolicy]:
    """The plan, the bandit at the same budget, and chance."""
    contestants = {"plan": policy}
    if policy.specification.method != "bandit":
        bandit = one_step_policy(lessons, policy.specification.temperature)
        contestants["bandit"] = replace(bandit, pricing=looking.for_comparison().for_budget(bandit, budget).pricing)
    return contestants | {"uniform": one_step_policy(lessons, _BOILING)}


def _checked(contestants: dict[str, DeployedPolicy], hold: EncodedLog, looking: Search, settings: FitSettings) -> Check:
    walkers = hold.some_users(settings.search.walkers, "walkers", settings.seed)
    return check_policies(contestants, hold, walkers, looking.estimator, settings.shown_users, settings.seed)


def _with_outcome(certificate: Certificate, found: Searched) -> Certificate:
    """The certificate with what the search had to say, if that was not simply a price."""
    status = found.landing.status
    if status is DualStatus.CONVERGED:
        return certificate
    said = Reason(status.value, Weight.WARNING, found.message)
    return replace(certificate, reasons=(*certificate.reasons, said))


def _compared(check: Check, confidence: float) -> tuple[ComparedPolicy, ...]:
    """What was logged, chance, the bandit where it is another policy, and the plan."""
    names = [name for name in ("uniform", "bandit", "plan") if name in check.policies]
    added = {"logged": logged_by_user(check.log)} | {name: check.added(name) for name in names}
    return compare(added, confidence)


def _gain(compared: tuple[ComparedPolicy, ...]) -> str:
    plan = compared[-1]
    return f"reward {plan.reward:.4g} a user, {plan.reward_difference:+.3g} against logged"


def _frontier(policy: DeployedPolicy, found: Searched, scouts: EncodedLog, settings: FitSettings) -> pl.DataFrame:
    curve = found.curve
    model = model_frontier(policy, scouts, curve.prices, settings.search)
    return curve_table(curve, settings.confidence).with_columns(
        pl.Series("model_cost", model.costs), pl.Series("model_reward", model.rewards)
    )


def _record(
    audited: Audit,
    sizes: dict[str, FoldSize],
    settings: FitSettings,
    neural: NeuralFit,
    fidelity: Fidelity,
    found: Searched,
    policy: DeployedPolicy,
    compared: tuple[ComparedPolicy, ...],
    check: Check,
) -> FitRecord:
    return FitRecord(
        audit=audited,
        folds=sizes,
        seed=settings.seed,
        parts=settings.parts,
        confidence=settings.confidence,
        safety=settings.safety,
        fidelity=fidelity,
        planner=PlannerRecord(policy.valuer.notes, policy.valuer.depth),
        search=found.record(),
        comparison=compared,
        shares=action_shares(check.decided),
        model=neural.as_dict(),
        settings=settings.as_dict(),
    )

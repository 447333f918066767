"""From a log and a budget to a plan: the only module that wires the stages together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import Audit, audit_log
from redenvelope.audit.fitness import report_few_users
from redenvelope.engine.memory import forget_programs, give_back
from redenvelope.errors import LogError
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.reasons import Reason
from redenvelope.fitting.cache import Cache
from redenvelope.fitting.check import Check, Contestant, check_policies, fold_sha256, planned_fold
from redenvelope.fitting.comparison import compare, logged_by_user
from redenvelope.fitting.doubts import doubts
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.frontier import frontier_table
from redenvelope.fitting.kept import Kept
from redenvelope.fitting.method import (
    Lessons,
    learn_model,
    one_step_policy,
    policy_words,
    trust_in,
    unpriced_policy,
)
from redenvelope.fitting.scouting import grid_of_prices, model_frontier
from redenvelope.fitting.settings import FitSettings
from redenvelope.fitting.shares import who_gets_what
from redenvelope.fitting.trusted import trusted_check
from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Findings, Severity
from redenvelope.log.log import Log
from redenvelope.log.split import split
from redenvelope.models.fidelity import Fidelity
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.certify import Checked, Question, certify, walk
from redenvelope.plan.climb import Stop, climb
from redenvelope.plan.ladder import Ladder, Place
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import ComparedPolicy, FitRecord, FoldSize, PlannerRecord, Source
from redenvelope.progress import Progress, Stages

__all__ = ["fit"]

FloatArray = NDArray[np.float64]

_JOINT = (0.8, 0.9, 0.95, 0.99)  # confidences at which bounds for all prices at once are kept
_BOILING = 1e6  # so warm that every action is equally likely
_FOLDS = ("train", "tune", "check")


def fit(
    log: Log,
    *,
    budget: float | None = None,
    target_reward: float | None = None,
    settings: FitSettings | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> Plan:
    """The best plan for a budget (mean cost a user), or the cheapest for a reward, checked on users apart.

    Exactly one of `budget` and `target_reward` must be given. `progress` is told an `Event` whenever a stage begins,
    goes on or is done. With a `cache`, stages that were finished before with the same inputs are not made again.
    """
    settings, stages = settings or FitSettings(), Stages(progress)
    forget_programs()
    question = Question(budget, target_reward, settings.confidence)
    audited = _audited(log, budget, settings, stages)
    train, tune, hold = _folds(log, settings, stages)
    sizes = {name: FoldSize(fold.people, len(fold)) for name, fold in zip(_FOLDS, (train, tune, hold), strict=True)}
    kept = Kept(cache, log, settings)
    made = _made(train, tune, settings, stages, kept)
    lessons, fidelity, scouts, policy = made.lessons, made.fidelity, made.scouts, made.policy
    del train  # most of the log, and not needed any more
    give_back()
    stages.begin("check")
    contestants = _contestants(policy, lessons, scouts, settings, kept)
    check = _checked(contestants, encode(hold, lessons.encoder, lessons.steps), settings, kept)
    checked = f"{len(contestants['plan'].prices)} prices on {hold.people:,} users"
    stages.finish("check", kept.said("evidence", checked))
    stages.begin("certificate")
    check, ladder = _ladder(check, question, settings)
    stop = walk(ladder, question)
    policy = replace(policy, pricing=ladder.pricing(stop.place))
    against = doubts(log, audited, fidelity)
    certificate = certify(ladder, stop, question, policy, _about(check, against))
    bound = f"cost {certificate.cost.estimate:.4g} ≤ {certificate.cost.upper:.4g}"
    stages.finish("certificate", f"{certificate.status}: {bound}")
    stages.begin("comparison")
    compared = _compared(check, stop.place, certificate)
    record = _record(audited, sizes, settings, lessons, fidelity, policy, compared, check, stop, against)
    del check  # the evidence of all prices, and not needed any more
    give_back()
    duals = ladder.prices[:, 0]
    model = kept.frontier(duals, lambda: model_frontier(policy, scouts, duals, settings.search))
    stages.finish("comparison", _gain(compared))
    frontier = frontier_table(ladder, model, settings.confidence)
    return Plan(policy, certificate, frontier, ladder, record)


@dataclass(frozen=True, eq=False)
class _Made:
    """What the users who train and tune have made."""

    lessons: Lessons
    fidelity: Fidelity
    scouts: EncodedLog
    """Users who tell where the prices of interest lie."""
    policy: DeployedPolicy
    """Before its price is known."""


def _made(train: Log, tune: Log, settings: FitSettings, stages: Stages, kept: Kept) -> _Made:
    """Learn, ask whether what was learned may be trusted, and choose how to decide by it."""
    stages.begin("model")
    lessons = kept.lessons(train.catalogue, lambda: learn_model(train, settings, stages))
    stages.finish("model", kept.said("model", lessons.words))
    stages.begin("fidelity")
    tuning = encode(tune, lessons.encoder, lessons.steps)
    fidelity = kept.fidelity(lambda: trust_in(lessons, tuning))
    doubted = "trusted" if fidelity.trusted else f"not trusted: {fidelity.reasons[0]}"
    stages.finish("fidelity", kept.said("fidelity", doubted))
    stages.begin("policy")
    scouts = tuning.some_users(settings.search.scouts, "scouts", settings.seed)
    policy = kept.policy(lessons, lambda: unpriced_policy(scouts, lessons, train, fidelity.trusted, settings, stages))
    stages.finish("policy", kept.said("policy", policy_words(policy, settings)))
    return _Made(lessons, fidelity, scouts, policy)


def _audited(log: Log, budget: float | None, settings: FitSettings, stages: Stages) -> Audit:
    """The audit; what it refuses is refused here, with every reason."""
    stages.begin("audit")
    audited = audit_log(log, budget, known_before=settings.known_before)
    faults = [finding for finding in audited.findings if finding.severity is Severity.ERROR]
    if faults:
        raise LogError(faults)
    stages.finish("audit", f"{audited.users:,} users, {audited.rows:,} rows, {len(audited.actions)} actions")
    return audited


def _folds(log: Log, settings: FitSettings, stages: Stages) -> tuple[Log, ...]:
    stages.begin("folds")
    folds = split(log, settings.parts, settings.seed)
    train, tune, check = (fold.people for fold in folds)
    stages.finish("folds", f"{train:,} users train, {tune:,} tune, {check:,} check")
    # The audit judged the folds of the usual seed and shares; these may be others.
    findings = Findings()
    report_few_users((train, tune, check), findings)
    if findings.refused:
        raise LogError(findings.sorted())
    return folds


def _contestants(
    policy: DeployedPolicy, lessons: Lessons, scouts: EncodedLog, settings: FitSettings, kept: Kept
) -> dict[str, Contestant]:
    """The plan and the bandit, each at prices that users of the train fold fix, and chance."""
    wanted = settings.search
    policies, rungs = {"plan": policy}, {"plan": wanted.rungs, "bandit": wanted.compared_rungs}
    if policy.specification.method != "bandit":
        policies["bandit"] = one_step_policy(lessons, policy.specification.temperature)
    prices = kept.prices(
        lambda: {name: _falling(grid_of_prices(each, scouts, wanted, rungs[name])) for name, each in policies.items()}
    )
    contestants = {name: Contestant(each, prices[name]) for name, each in policies.items()}
    return contestants | {"uniform": Contestant(one_step_policy(lessons, _BOILING), np.zeros((1, 1)))}


def _falling(prices: FloatArray) -> FloatArray:
    """Rising prices [rungs] as the rungs of a ladder, [rungs, 1]."""
    return prices[::-1, None]


def _checked(contestants: Mapping[str, Contestant], hold: EncodedLog, settings: FitSettings, kept: Kept) -> Check:
    # Over several steps the error of ratios of states adds up, where that of products of ratios multiplies.
    estimator = settings.estimator or Marginalised(seed=settings.seed)
    walkers = hold.some_users(settings.search.walkers, "walkers", settings.seed)
    shown, seed = settings.shown_users, settings.seed
    planned = kept.planned(lambda: planned_fold(contestants, hold, walkers, shown, seed))
    return check_policies(contestants, hold, walkers, estimator, shown, seed, planned)


def _ladder(check: Check, question: Question, settings: FitSettings) -> tuple[Check, Ladder]:
    """The ladder that certifies, and the check that it is of."""
    joint = sorted({*_JOINT, settings.confidence})
    trusted = trusted_check(
        check, lambda ladder: walk(ladder, question), settings.search.agreement_users, settings.seed
    )
    return trusted.check, trusted.marked(trusted.check.ladder("plan", joint, settings.seed))


def _about(check: Check, against: tuple[Reason, ...]) -> Checked:
    reward, cost = (float(value) for value in logged_by_user(check.log).mean(axis=1))
    return Checked({"cost": cost, "reward": reward}, fold_sha256(check.log), against)


def _compared(check: Check, place: Place, certificate: Certificate) -> tuple[ComparedPolicy, ...]:
    """What was logged, chance, the bandit where it is another policy, and the plan: the bandit climbs a ladder of its
    own to the same budget."""
    added = {"logged": logged_by_user(check.log), "uniform": check.added("uniform", Place(0))}
    if "bandit" in check.contestants:
        reached = climb(check.ladder("bandit"), [certificate.budget], certificate.confidence)
        added["bandit"] = check.added("bandit", reached.place)
    return compare(added | {"plan": check.added("plan", place)}, certificate.confidence)


def _gain(compared: tuple[ComparedPolicy, ...]) -> str:
    plan = compared[-1]
    return f"reward {plan.reward:.4g} a user, {plan.reward_difference:+.3g} against logged"


def _record(
    audited: Audit,
    sizes: dict[str, FoldSize],
    settings: FitSettings,
    lessons: Lessons,
    fidelity: Fidelity,
    policy: DeployedPolicy,
    compared: tuple[ComparedPolicy, ...],
    check: Check,
    stop: Stop,
    against: tuple[Reason, ...],
) -> FitRecord:
    return FitRecord(
        audit=audited,
        folds=sizes,
        seed=settings.seed,
        parts=settings.parts,
        confidence=settings.confidence,
        fidelity=fidelity,
        planner=PlannerRecord(policy.valuer.notes, policy.valuer.depth),
        stop=stop,
        comparison=compared,
        shares=who_gets_what(check.shown, policy, stop.place),
        model=lessons.neural.as_dict(),
        settings=settings.as_dict(),
        history="" if lessons.history is None else lessons.history.reason,
        doubts=against,
        source=None if check.log.columns == ColumnMap() else Source.of("", "", check.log.columns),
    )

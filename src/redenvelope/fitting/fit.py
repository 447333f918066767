"""From a log and a budget to a plan: the only module that wires the stages together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.audit.audit import Audit, audit_log, report_few_users
from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.costs import without_costs
from redenvelope.campaign.records import Rule
from redenvelope.dual.paths import Paths
from redenvelope.engine.memory import forget_programs, give_back
from redenvelope.errors import LogError
from redenvelope.evaluation.diagnostics import Reason
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.certify import PopulationSummary, concentrations, objections, trusted_check
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.holdout import CandidatePolicy, Check, check_policies, fold_sha256, planned_fold
from redenvelope.fitting.learn import (
    LearnedModel,
    learn_model,
    model_fidelity,
    one_step_policy,
    policy_words,
    unpriced_policy,
    with_campaign,
    with_rules,
)
from redenvelope.fitting.objective import Objective, objective_of
from redenvelope.fitting.price_grid import (
    believed_paths,
    exploration_record,
    grid_of_prices,
    lost_along,
    lost_at_prices,
    model_frontier,
)
from redenvelope.fitting.record import (
    compared_policies,
    fit_record,
    ladder_frontier,
    logged_by_user,
    path_frontiers,
    priced_plans,
)
from redenvelope.fitting.settings import FitSettings, usual_share
from redenvelope.fitting.stage_cache import Cache, StageCache
from redenvelope.log.findings import Findings, Severity
from redenvelope.log.log import Log, split
from redenvelope.models.fidelity import Fidelity
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.fixed_sequence_test import Checked, Question, certify, walk
from redenvelope.plan.ladder import Ladder, Mixtures
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import ComparedPolicy, FoldSize
from redenvelope.policies.eligibility_state import allowed
from redenvelope.progress import Progress, Stages

_JOINT = (0.8, 0.9, 0.95, 0.99)  # confidences at which bounds for all prices at once are kept
_BOILING = 1e6  # so warm that every action is equally likely
_FOLDS = ("train", "tune", "check")


def fit(
    log: Log,
    *,
    budget: float | None = None,
    target_reward: float | None = None,
    campaign: Campaign | None = None,
    audience: int | None = None,
    settings: FitSettings | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
    whole: PopulationSummary | None = None,
) -> Plan:
    """The best plan for a budget (mean cost a user), or the cheapest for a reward, checked on users apart.

    Exactly one of `budget` and `target_reward` must be given, unless the `campaign` has budgets of its own, one or
    several. What its rules forbid is never planned, checked or decided. With an `audience`, the number of users that
    the campaign is for, totals are told as well. `progress` is told an `Event` whenever a stage begins, goes on or is
    done. With a `cache`, stages that were finished before with the same inputs are not made again. `whole` is what all
    users say, where the log holds only some of them.
    """
    settings, stages, campaign = settings or FitSettings(), Stages(progress), campaign or Campaign()
    forget_programs()
    campaign.check(log)
    usual = usual_share(len(log.catalogue))
    explore = next((share for share in (settings.explore, campaign.explore) if share is not None), usual)
    asked = objective_of(budget, target_reward, campaign, settings.confidence, audience)
    question = asked.question
    log = asked.charged(log)
    stages.begin("audit")
    whole = whole or _looked_at(log, asked.audited, settings)
    audited = _audited(whole, stages)
    train, tune, hold = _folds(log, settings, stages)
    sizes = {name: FoldSize(fold.people, len(fold)) for name, fold in zip(_FOLDS, (train, tune, hold), strict=True)}
    kept = StageCache(cache, log, settings, (asked.budgets, campaign.rules, explore))
    made = _made(train, tune, settings, stages, kept, _Said(asked, campaign.rules, explore))
    lessons, fidelity, scouts, policy = made.lessons, made.fidelity, made.scouts, made.policy
    audited = with_rules(audited, lessons, log)
    del train  # most of the log, and not needed any more
    give_back()
    stages.begin("check")
    contestants, paths = _contestants(policy, lessons, scouts, settings, kept)
    encoded = encode(hold, lessons.encoder, lessons.steps, lessons.constraint)
    check = _checked(contestants, encoded, audited, settings, kept)
    checked = f"{len(contestants['plan'].prices)} prices on {hold.people:,} users"
    stages.finish("check", kept.said("evidence", checked))
    stages.begin("certificate")
    check, ladder = _ladder(check, question, settings)
    stop = walk(ladder, question)
    policy = replace(policy, pricing=ladder.pricing(stop.place))
    against = objections(log, audited, fidelity, whole.costs)
    certificate = certify(ladder, stop, question, policy, _about(check, against))
    stages.finish("certificate", f"{certificate.status}: {_bounds(certificate)}")
    stages.begin("comparison")
    compared = compared_policies(check, stop.place, certificate)
    record = fit_record(audited, sizes, settings, lessons, fidelity, policy, compared, check, stop, against, asked)
    record = replace(record, sample=whole.sample)
    decided, rows = check.shown.decided(policy, stop.place), check.shown.encoded
    eligible = np.ones(decided.probabilities.shape, dtype=bool)
    if rows.standing is not None:
        eligible = allowed(rows.standing, policy.constraint, rows.states, rows.steps_left)
    if paths is not None:
        frontier = path_frontiers(check, paths, asked.names, settings.confidence)
        record = replace(record, priced=priced_plans(check, paths))
    del check  # the evidence of all prices, and not needed any more
    give_back()
    if paths is None:
        duals = ladder.prices[:, 0]
        model = kept.frontier(duals, lambda: model_frontier(policy, scouts, duals, settings.search))
        frontier = ladder_frontier(ladder, model, asked.names[0], settings.confidence)
        lost = lost_along(policy, scouts, model, certificate.cost.estimate, settings.search)
    else:
        lost = lost_at_prices(policy, scouts, ladder.duals(stop.place))
    record = replace(record, exploration=exploration_record(policy, lost, decided, eligible))
    stages.finish("comparison", _gain(compared))
    return Plan(policy, certificate, frontier, ladder, record)


@dataclass(frozen=True, eq=False)
class _Made:
    """What the users who train and tune have made."""

    lessons: LearnedModel
    fidelity: Fidelity
    scouts: EncodedLog
    """Users who tell where the prices of interest lie."""
    policy: DeployedPolicy
    """Before its price is known."""


class _Said(NamedTuple):
    """What a campaign says beside the log."""

    asked: Objective
    rules: tuple[Rule, ...]
    explore: float


def _made(train: Log, tune: Log, settings: FitSettings, stages: Stages, kept: StageCache, said: _Said) -> _Made:
    """Learn, ask whether what was learned may be trusted, and choose how to decide by it."""
    stages.begin("model")
    learned = kept.lessons(train.catalogue, lambda: learn_model(train, settings, stages, said.rules))
    lessons = with_campaign(learned, train, *said)
    stages.finish("model", kept.said("model", lessons.words))
    stages.begin("fidelity")
    tuning = encode(tune, lessons.encoder, lessons.steps, lessons.constraint)
    fidelity = kept.fidelity(lambda: model_fidelity(lessons, tuning))
    doubted = "trusted" if fidelity.trusted else f"not trusted: {fidelity.reasons[0]}"
    stages.finish("fidelity", kept.said("fidelity", doubted))
    stages.begin("policy")
    scouts = tuning.some_users(settings.search.scouts, "scouts", settings.seed)
    policy = kept.policy(lessons, lambda: unpriced_policy(scouts, lessons, train, fidelity.trusted, settings, stages))
    stages.finish("policy", kept.said("policy", policy_words(policy, settings)))
    return _Made(lessons, fidelity, scouts, policy)


def _looked_at(log: Log, budget: float | None, settings: FitSettings) -> PopulationSummary:
    """What all users say, where the log holds all of them."""
    # Audited is what was logged: the costs of budgets are made of it.
    audited = audit_log(without_costs(log, ()), budget, known_before=settings.known_before)
    return PopulationSummary(audited, concentrations(log), "")


def _audited(whole: PopulationSummary, stages: Stages) -> Audit:
    """The audit; what it refuses is refused here, with every reason."""
    audited = whole.audit
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
    policy: DeployedPolicy, lessons: LearnedModel, scouts: EncodedLog, settings: FitSettings, kept: StageCache
) -> tuple[dict[str, CandidatePolicy], Paths | None]:
    """The plan and the bandit, each at prices that users of the train fold fix, and chance; with several budgets, the
    paths that the plan's mixtures take through them too."""
    wanted, several, paths = settings.search, lessons.budgets, None
    policies, rungs = {"plan": policy}, {"plan": wanted.rungs, "bandit": wanted.compared_rungs}
    if policy.specification.method != "bandit":
        policies["bandit"] = one_step_policy(lessons, policy.specification.temperature)
    if several is None:
        prices = kept.prices(
            lambda: {
                name: _falling(grid_of_prices(each, scouts, wanted, rungs[name])) for name, each in policies.items()
            }
        )
        contestants = {name: CandidatePolicy(each, prices[name]) for name, each in policies.items()}
    else:
        found = {name: believed_paths(each, scouts, wanted, several, rungs[name]) for name, each in policies.items()}
        paths = found["plan"]
        contestants = {
            name: _mixing(each, paths if name == "plan" else found[name].ladder_alone())
            for name, each in policies.items()
        }
    free = np.zeros((1, lessons.free.budgets))
    return contestants | {"uniform": CandidatePolicy(one_step_policy(lessons, _BOILING), free)}, paths


def _mixing(policy: DeployedPolicy, paths: Paths) -> CandidatePolicy:
    """A contestant whose rungs are mixtures."""
    ladder, prices = paths.ladder, paths.plans.prices
    return CandidatePolicy(policy, prices, Mixtures(prices, ladder.shares, ladder.duals))


def _falling(prices: FloatArray) -> FloatArray:
    """Rising prices [rungs] as the rungs of a ladder, [rungs, 1]."""
    return prices[::-1, None]


def _usual_estimator(audited: Audit, seed: int) -> Marginalised:
    """Over several steps the error of ratios of states adds up, where that of products of ratios multiplies. What is
    booked a step after the action, by a state that is gone by then, needs the product of that one step."""
    late = any(effect.is_late for effect in audited.carry_over)
    return Marginalised(seed=seed).looking_back(1 if late else 0)


def _checked(
    contestants: Mapping[str, CandidatePolicy],
    hold: EncodedLog,
    audited: Audit,
    settings: FitSettings,
    kept: StageCache,
) -> Check:
    estimator = settings.estimator or _usual_estimator(audited, settings.seed)
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
    logged = tuple(float(value) for value in logged_by_user(check.log).mean(axis=1))
    return Checked(logged, fold_sha256(check.log), against)


def _bounds(certificate: Certificate) -> str:
    if len(certificate.budgets) < 2:
        return f"cost {certificate.cost.estimate:.4g} ≤ {certificate.cost.upper:.4g}"
    return ", ".join(f"{own.name} {own.cost.estimate:.4g} ≤ {own.cost.upper:.4g}" for own in certificate.budgets)


def _gain(compared: tuple[ComparedPolicy, ...]) -> str:
    plan = compared[-1]
    return f"reward {plan.reward:.4g} a user, {plan.reward_difference:+.3g} against logged"

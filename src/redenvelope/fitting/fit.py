"""Fitting: from a log and a budget to a plan, as a sequence of stages.

Audit, folds, model, fidelity, policy, prices, check, certificate, comparison, plan. The train fold trains the models,
the tune fold chooses the method and the prices to check, and the check fold estimates what these cost and earn.

A cross-fitted plan has several members with their own folds: each group of users checks, and later follows, the member
that was made without it. So all users check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from redenvelope.audit.audit import report_few_clusters, report_few_users
from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.costs import capped_log
from redenvelope.campaign.items import with_attributes
from redenvelope.campaign.records import Rule
from redenvelope.dual.frontier import Frontier
from redenvelope.engine.engine import one_blas_thread
from redenvelope.engine.memory import give_back
from redenvelope.engine.programs import forget_programs, keep_programs
from redenvelope.errors import LogError, UsageError
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting import certify, holdout, learn, price_grid, record
from redenvelope.fitting.certify import Certification, PopulationSummary
from redenvelope.fitting.encoded import EncodedLog, encode, past_effects
from redenvelope.fitting.holdout import CandidatePolicy, Check
from redenvelope.fitting.learn import CampaignTerms, LearnedModel, Policies, UnpricedPolicy
from redenvelope.fitting.objective import Objective, introduced, objective_of
from redenvelope.fitting.settings import FitSettings, settings_of
from redenvelope.fitting.stage_cache import Cache, StageCache, flat_codec, record_codec
from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Findings, Severity
from redenvelope.log.log import Log, split
from redenvelope.log.read import Columns, as_log
from redenvelope.models.fidelity import Fidelity
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.money import Money
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy, FoldSize, MadeWith
from redenvelope.progress import Progress, Stages
from redenvelope.randomness import member_of
from redenvelope.wording import number, signed


@one_blas_thread()
def fit(
    log: Any,
    *,
    budget: float | None = None,
    target_reward: float | None = None,
    campaign: Campaign | str | Path | Mapping[str, Any] | None = None,
    audience: int | None = None,
    settings: FitSettings | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
    population: PopulationSummary | None = None,
    columns: Columns = None,
    estimate_propensity: bool = False,
    **choices: Any,
) -> Plan:
    """The best plan for a budget (mean cost per user), or the cheapest for a reward, certified on held-out users.

    The `log` is any dataframe, the path of a file or a folder, or a `Log`. For a dataframe or a path, `columns` maps
    roles to columns, such as {"user": "customer_id"}. The `campaign` is a `Campaign`, the path of a campaign.toml, or a
    dict of its entries. Further keywords are fields of `FitSettings`, such as seed=1.

    Give exactly one of `budget` and `target_reward`, unless the `campaign` has budgets of its own. Actions that the
    campaign's rules forbid are never planned, checked or decided. With an `audience`, the number of users in the
    campaign, the plan also states totals. `progress` receives an `Event` whenever a stage begins, advances or ends.
    With a `cache`, stages that already ran with the same inputs are not run again. `population` summarizes all users if
    the log contains only a sample of them.
    """
    settings, stages = settings_of(settings, choices), Stages(progress)
    campaign = Campaign.of(campaign).reading(ColumnMap.of(columns))
    objective = objective_of(budget, target_reward, campaign, settings.confidence, audience)
    money = Money(audience=audience or campaign.audience)
    if not isinstance(log, Log):
        log = as_log(log, campaign.columns, estimate_propensity=estimate_propensity)
    keep_programs()
    forget_programs()
    campaign.check(log)
    if settings.most_per_user is not None and len(objective.names) > 1:
        raise UsageError(
            f"--most-per-user: it caps one cost, and the campaign has {len(objective.names)} budgets; remove all but "
            "one of them, or the cap"
        )
    log, own_name = capped_log(objective.charged(log), settings.most_per_user), campaign.columns.name_of("action")
    log = with_attributes(log, campaign.items, own_name, [each.action for each in campaign.new])
    objective, new = introduced(objective, campaign, log)
    population = _audit(learn.as_logged_under(log, campaign.rules), objective, population, settings, stages)
    folds = _split(log, settings, stages)
    run = _Run(settings, stages, StageCache(cache, log, settings, (objective.budgets, campaign.rules)))
    unpriced = _learn(log, folds, objective, campaign, run)
    audit = learn.with_rules(population.audit, log, unpriced.terms.eligible(log))
    estimator = settings.estimator or certify.default_estimator(audit, settings.seed)
    trained = [own.train for own in folds]
    fixed = record.fixed_actions(trained, unpriced.policies.compared["uniform"], estimator, settings.seed)
    if isinstance(estimator, Marginalised):
        estimator = replace(estimator, members=len(folds))
    sizes, learned = _sizes(log, folds), unpriced.learned
    made_with = MadeWith.of(folds[0].train, folds[0].tune) if len(folds) == 1 else None
    checked = folds[0].check if len(folds) == 1 else log
    held_out = encode(checked, learned.encoder, learned.steps, unpriced.terms.constraint)
    del folds, trained, checked  # the train fold is most of the log and no longer needed
    give_back()
    stages.begin("check")
    past = past_effects(log, unpriced.learned.encoder, settings.search.agreement_users, settings.seed)
    policies = unpriced.policies.by_name
    pilot_users, budgets = unpriced.pilot_users, unpriced.terms.budgets
    candidates, paths = price_grid.candidates(policies, pilot_users, settings.search, budgets, run.cache)
    check = _check(candidates, held_out, estimator, population, run)
    stages.begin("certificate")
    objections = certify.objections_to(population, unpriced.fidelity)
    policy = replace(unpriced.policy, holdout=campaign.holdout, new=new)
    check, certified = certify.certify_plan(check, policy, objective.question, objections, past, settings)
    del past
    stages.finish("certificate", _describe(certified.certificate))
    stages.begin("comparison")
    comparison = record.compare_policies(check, held_out, certified, paths, objective.names, fixed)
    del check, held_out  # the data of all prices are large and no longer needed
    give_back()
    frontier, lost = _frontier(comparison, certified, unpriced, run)
    stages.finish("comparison", _gain(comparison.policies[-1]))
    fitted = record.fit_record(
        audit, population.sample, sizes, settings, unpriced, certified, comparison, lost, objective, log.columns
    )
    fitted = replace(fitted, made_with=made_with)
    plan = Plan(certified.policy, certified.certificate, frontier, certified.ladder, fitted).with_money(money)
    # Tables to decide for may have the column names of the log.
    return plan if log.columns == ColumnMap() else plan.with_source("", log.columns, "")


class _Run(NamedTuple):
    """What every stage of a fit uses."""

    settings: FitSettings
    stages: Stages
    cache: StageCache


@dataclass(frozen=True, eq=False)
class _Folds:
    """Users divided by the hash of their ids, for the plan or one of its members."""

    train: Log
    tune: Log
    check: Log


def _sizes(log: Log, folds: tuple[_Folds, ...]) -> dict[str, FoldSize]:
    """Sizes by fold name; with several members, train and tune are the first one's, and check is all users."""
    named = {"train": folds[0].train, "tune": folds[0].tune, "check": folds[0].check if len(folds) == 1 else log}
    return {name: FoldSize(fold.people, len(fold)) for name, fold in named.items()}


def _audit(
    log: Log, objective: Objective, population: PopulationSummary | None, settings: FitSettings, stages: Stages
) -> PopulationSummary:
    """Audit the users; a log with errors is refused with all of them."""
    stages.begin("audit")
    population = population or certify.summarize_population(log, objective.audited, settings.known_before)
    audit = population.audit
    faults = [finding for finding in audit.findings if finding.severity is Severity.ERROR]
    if faults:
        raise LogError(faults)
    stages.finish("audit", f"{audit.users:,} users, {audit.rows:,} rows, {len(audit.actions)} actions")
    return population


def _split(log: Log, settings: FitSettings, stages: Stages) -> tuple[_Folds, ...]:
    """Divide the users into folds for each member, [members]; refuse folds that are too small."""
    stages.begin("folds")
    members = settings.cross_fit
    folds = tuple(folds_of(log, number, settings) for number in range(members))
    for place, own in enumerate(folds):
        train, tune, check = own.train.people, own.tune.people, own.check.people
        clusters = [fold.independent for fold in (own.train, own.tune, own.check)]
        if not place:
            counted = "" if log.clusters is None else f"; {clusters[0]:,}, {clusters[1]:,} and {clusters[2]:,} clusters"
            each = f" the first of {members} members" if members > 1 else ""
            stages.finish("folds", f"{train:,} users train{each}, {tune:,} tune, {check:,} check{counted}")
        # The audit assumed the default seed and shares; these may differ.
        findings = Findings()
        report_few_users((train, tune, check), findings)
        if log.clusters is not None:
            report_few_clusters(log.columns.cluster or "cluster", clusters, findings)
        if findings.refused:
            raise LogError(findings.sorted())
    return folds


def folds_of(log: Log, number: int, settings: FitSettings) -> _Folds:
    """The folds of one member. With several members, its own group checks, and all other users train and tune."""
    members = settings.cross_fit
    if members == 1:
        return _Folds(*split(log, settings.parts, settings.seed))
    own = member_of(log.keys, members) == number
    if own.all() or not own.any():
        raise UsageError(f"group {number + 1} of {members} has all or none of the users; use a log with more users")
    train, tune, _ = settings.parts
    parts = (train / (train + tune), tune / (train + tune))
    made = split(log.select(~own), parts, settings.seed)
    return _Folds(made[0], made[1], log.select(own))


def _learn(log: Log, folds: tuple[_Folds, ...], objective: Objective, campaign: Campaign, run: _Run) -> UnpricedPolicy:
    """Learn the model of each member, measure its fidelity, and choose a policy."""
    settings, stages, cache = run
    rules = campaign.rules
    stages.begin("model")
    models: list[LearnedModel] = []
    for own in folds:
        models.append(_model(own, models, len(folds), rules, run))
    learned = models[0]
    terms = learn.campaign_terms(objective, rules, folds[0].train, learned.encoder)
    stages.finish("model", cache.marked("model", learned.summary))
    stages.begin("fidelity")
    tunes = [encode(own.tune, learned.encoder, learned.steps, terms.constraint) for own in folds]
    fidelity = cache.stage("fidelity", (), lambda: _least_faithful(models, tunes), record_codec(Fidelity))
    trust = "trusted" if fidelity.trusted else f"not trusted: {fidelity.reasons[0]}"
    stages.finish("fidelity", cache.marked("fidelity", trust))
    stages.begin("policy")
    pilots = [tune.pilot_users(settings.search.pilot_users, settings.seed) for tune in tunes]
    share = settings.explore if settings.explore is not None else campaign.explore
    if share is None:
        bandit = learn.one_step(learned, terms)
        share = price_grid.exploration_share(bandit, pilots[0], folds[0].train, objective.question)
    terms = replace(terms, explore=share)
    asked = (settings.method, settings.horizon, settings.leaf_values, settings.temperature, share)
    inputs = (*asked, settings.search, settings.learning, settings.values)
    members: list[Policies] = []
    for own, model, users in zip(folds, models, pilots, strict=True):
        first = members[0].plan.specification if members else None
        make = partial(
            learn.unpriced_policies, model, terms, users, own.train, fidelity.trusted, settings, stages, first
        )
        members.append(cache.stage("policy", inputs, make, learn.policies_codec(model, terms)))
    policies = Policies.cross_fitted(members)
    stages.finish("policy", cache.marked("policy", learn.describe_policy(policies.plan)))
    return UnpricedPolicy(learned, terms, fidelity, _pilot_users(log, tunes, terms, learned, settings), policies)


def _model(
    folds: _Folds, before: Sequence[LearnedModel], members: int, rules: tuple[Rule, ...], run: _Run
) -> LearnedModel:
    """Learn the model of the next member."""
    first = before[0] if before else None
    return run.cache.stage(
        "model",
        (run.settings.neural, run.settings.history, members),
        lambda: learn.learn_model(folds.train, folds.tune, run.settings, run.stages, rules, first),
        learn.learned_codec(folds.train.catalogue),
    )


def _least_faithful(models: Sequence[LearnedModel], tunes: Sequence[EncodedLog]) -> Fidelity:
    """The fidelity of the first model, or of the first that is not trusted."""
    each = [learn.model_fidelity(model, tune) for model, tune in zip(models, tunes, strict=True)]
    return next((found for found in each if not found.trusted), each[0])


def _pilot_users(
    log: Log, tunes: Sequence[EncodedLog], terms: CampaignTerms, learned: LearnedModel, settings: FitSettings
) -> EncodedLog:
    """Users from the tune folds of all members, on whom prices are chosen."""
    if len(tunes) == 1:
        return tunes[0].pilot_users(settings.search.pilot_users, settings.seed)
    tuned = log.select(np.isin(log.keys, np.concatenate([tune.log.keys for tune in tunes])))
    encoded = encode(tuned, learned.encoder, learned.steps, terms.constraint)
    return encoded.pilot_users(settings.search.pilot_users, settings.seed)


def _check(
    candidates: dict[str, CandidatePolicy],
    held_out: EncodedLog,
    estimator: Estimator,
    population: PopulationSummary,
    run: _Run,
) -> Check:
    """Plan for the held-out users at all prices, and estimate rewards and costs."""
    fold, shown = (candidates, held_out), (run.settings.shown_users, run.settings.seed)
    planned = run.cache.stage(
        "data", (run.settings.shown_users,), lambda: holdout.planned_fold(*fold, *shown), holdout.PLANNED_FOLD
    )
    check = holdout.check_policies(*fold, estimator, *shown, planned, population.costs)
    checked = f"{len(candidates['plan'].prices)} prices on {held_out.log.people:,} users"
    run.stages.finish("check", run.cache.marked("data", checked))
    return check


def _frontier(
    comparison: record.Comparison, certified: Certification, unpriced: UnpricedPolicy, run: _Run
) -> tuple[pl.DataFrame, float]:
    """The frontier along every budget, and the reward per user that exploration costs."""
    policy, ladder, pilot_users = certified.policy, certified.ladder, unpriced.pilot_users
    if comparison.frontier is not None:
        lost = price_grid.exploration_loss_at(policy, pilot_users, ladder.duals(certified.stop.place))
        return comparison.frontier, lost
    search, duals = run.settings.search, ladder.prices[:, 0]
    model = run.cache.stage(
        "frontier",
        (duals.tolist(),),
        lambda: price_grid.model_frontier(policy, pilot_users, duals, search),
        flat_codec(Frontier),
    )
    lost = price_grid.exploration_loss(policy, pilot_users, model, certified.certificate, search)
    name = certified.certificate.budgets[0].name
    return record.ladder_frontier(ladder, model, name, run.settings.confidence), lost


def _describe(certificate: Certificate) -> str:
    several = len(certificate.budgets) > 1
    bounds = (
        f"{own.name if several else 'cost'} {number(own.cost.estimate)} ≤ {number(own.cost.upper)}"
        for own in certificate.budgets
    )
    used = ", most of the budget unused" if certificate.is_under_spent else ""
    return f"{certificate.status}{used}: {', '.join(bounds)}"


def _gain(plan: ComparedPolicy) -> str:
    return f"reward {number(plan.reward)} per user, {signed(plan.reward_difference)} compared with the log"

"""The policy before its price: the environment model, the campaign's terms, and the method that decides with them.

A policy plans ahead with the model, follows action values learned without one, or looks one step ahead (the bandit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import Audit
from redenvelope.campaign.records import Rule
from redenvelope.errors import ModelError, UsageError
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.lookahead import at_temperature, planned_like, planned_policy, value_learner, with_baseline
from redenvelope.fitting.objective import Objective
from redenvelope.fitting.price_grid import temperature_for
from redenvelope.fitting.settings import FitSettings, Method
from redenvelope.fitting.stage_cache import Arrays, Codec
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.findings import Finding, Findings, merge
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.models.calibration import TargetingChoice
from redenvelope.models.charges import Charges
from redenvelope.models.dataset import Examples
from redenvelope.models.fidelity import Fidelity, measure_fidelity
from redenvelope.models.fit import HistoryChoice, NeuralFit, calibrated, fit_neural, try_history
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.responses import StructureChoice
from redenvelope.plan.policy import (
    DeployedPolicy,
    LearnedSource,
    ModelSource,
    PolicySpecification,
    Source,
    cross_fitted,
    source_from_state,
)
from redenvelope.plan.record import LookaheadRecord
from redenvelope.planning.leaf_values import LeafValues
from redenvelope.policies.eligibility_state import allowed, eligibility_of_log
from redenvelope.policies.pricing import Pricing
from redenvelope.policies.rules import RuleConstraint
from redenvelope.progress import Stages
from redenvelope.serialization import from_plain

_UNIFORM = 1e6
"""A temperature so high that all eligible actions are equally likely."""


@dataclass(frozen=True, eq=False)
class LearnedModel:
    """The result of training: the encoding of states, and the environment model on them."""

    encoder: Encoder
    catalogue: ActionCatalogue
    neural: NeuralFit
    history: HistoryChoice | None = None
    """Whether states contain the user's history, and why; None if that was not tested."""

    @property
    def steps(self) -> int:
        """Steps of the campaign."""
        return self.encoder.campaign_steps

    @property
    def summary(self) -> str:
        """What was learned, in one line."""
        structures = ", ".join(f"{choice.outcome} {choice.structure}" for choice in self.neural.structures)
        history = "; states contain the history" if self.encoder.history is not None else ""
        targeting = self.neural.targeting
        shrunk = "" if targeting is None or targeting.share == 1 else f"; effects shrunk to {targeting.share:.0%}"
        shrunk = "; offers not targeted" if targeting is not None and targeting.is_untargeted else shrunk
        return f"{self.neural.epochs} epochs; {structures}{history}{shrunk}"


@dataclass(frozen=True, eq=False)
class CampaignTerms:
    """The campaign's budgets, rules and exploration share, for the states of one encoder."""

    charges: Charges | None = None
    """How each budget's cost follows from measured outcomes; None if the only budget is of the log's cost."""
    budgets: NDArray[np.float64] | None = None
    """Mean cost per user that each of several budgets allows, [budgets]; None with one budget."""
    rules: tuple[Rule, ...] = ()
    joins_late: bool = False
    """Whether some users start after the campaign's first step."""
    constraint: RuleConstraint | None = None
    """The rules as a constraint for planners; None if there are none."""
    explore: float = 0.0
    """Share of decisions drawn uniformly from the eligible actions."""

    @property
    def free(self) -> Pricing:
        """Price 0 for every budget."""
        return Pricing.at(*(0.0 for _ in range(1 if self.charges is None else len(self.charges.budgets))))

    def eligible(self, log: Log) -> NDArray[np.bool_] | None:
        """Eligible actions in each row of a log, [rows, actions]; None if there are no rules."""
        state = eligibility_of_log(self.constraint, log)
        if state is None:
            return None
        none = np.zeros((len(log), 0), np.float32)  # conditions are evaluated on the log, so no states are needed
        return np.asarray(allowed(state, self.constraint, none, np.zeros(len(log), np.intp)))


@dataclass(frozen=True, eq=False)
class UnpricedPolicy:
    """The result of the train and tune folds: a policy that lacks only its price."""

    learned: LearnedModel
    """Of the first member."""
    terms: CampaignTerms
    fidelity: Fidelity
    pilot_users: EncodedLog
    """Users of the tune fold on whom temperature and prices are chosen."""
    policies: Policies

    @property
    def policy(self) -> DeployedPolicy:
        """The plan's policy."""
        return self.policies.plan


@dataclass(frozen=True, eq=False)
class Policies:
    """The plan's policy and those that it is compared with, all at price 0."""

    plan: DeployedPolicy
    compared: dict[str, DeployedPolicy]
    """By name: the bandit, unless the plan is one, and a uniform choice among eligible actions."""
    lookahead: LookaheadRecord | None = None
    """How far the plan looks ahead, and why; None if there was nothing to choose."""

    @property
    def by_name(self) -> dict[str, DeployedPolicy]:
        """All policies, the plan's first."""
        return {"plan": self.plan} | self.compared

    @classmethod
    def cross_fitted(cls, members: Sequence[Policies]) -> Policies:
        """Combine the policies of the members by name."""
        named = {name: cross_fitted([each.by_name[name] for each in members]) for name in members[0].by_name}
        return cls(named.pop("plan"), named, members[0].lookahead)


def learn_model(
    train: Log,
    tune: Log,
    settings: FitSettings,
    stages: Stages,
    rules: tuple[Rule, ...] = (),
    first: LearnedModel | None = None,
) -> LearnedModel:
    """Learn the environment model from training users, and calibrate it on them and on tune users. If `first` is given,
    use its encoder and structure."""
    chosen = settings.neural
    if first is None:
        encoder, training, history = _encoded(train, settings, rules)
    else:
        encoder, training, history = first.encoder, Examples.from_log(train, first.encoder), first.history
        reward, *costs = (choice.structure for choice in first.neural.structures)
        chosen = replace(chosen, reward_structure=reward, members=first.neural.model.architecture.members)
        if len(set(costs)) == 1:
            chosen = replace(chosen, cost_structure=costs[0])
    neural = fit_neural(
        training, chosen, settings.seed, lambda done, most: stages.going_on("model", done, most, "epoch")
    )
    neural = calibrated(neural, training, Examples.from_log(tune, encoder), settings.neural, settings.seed)
    return LearnedModel(encoder, train.catalogue, neural, history)


def campaign_terms(objective: Objective, rules: tuple[Rule, ...], train: Log, encoder: Encoder) -> CampaignTerms:
    """The terms of a campaign, without exploration, for an encoder fitted to the training users."""
    joins_late = bool((train.step[train.starts[:-1]] != train.first_step).any())
    return CampaignTerms(
        charges=objective.charges(train, train.catalogue, encoder),
        budgets=objective.several,
        rules=rules,
        joins_late=joins_late,
        constraint=RuleConstraint(rules, encoder, train.catalogue, joins_late) if rules else None,
    )


def _encoded(
    train: Log, settings: FitSettings, rules: tuple[Rule, ...]
) -> tuple[Encoder, Examples, HistoryChoice | None]:
    """Encode the training users; states contain the history if that predicts held-out training users better."""
    encoder = Encoder.fit(train)
    if settings.method == "learned" and encoder.campaign_steps > 1 and any(rule.most is not None for rule in rules):
        # Eligibility depends on earlier actions: trees count these along their branches, but networks need them as
        # inputs.
        with_history = encoder.with_history(train)
        return with_history, Examples.from_log(train, with_history), None
    if settings.history == "none" or encoder.campaign_steps == 1:
        return encoder, Examples.from_log(train, encoder), None
    with_history = encoder.with_history(train)
    examples = Examples.from_log(train, with_history)
    choice = try_history(examples, settings.neural, settings.seed)
    if choice.included:
        return with_history, examples, choice
    # The history is the last part of a state, so a state without it is a prefix.
    plain = np.ascontiguousarray(examples.states[:, : encoder.layout.width])
    return encoder, Examples.from_log(train, encoder, plain), choice


def model_fidelity(learned: LearnedModel, tune: EncodedLog) -> Fidelity:
    """Measure how well the model predicts held-out users."""
    found = measure_fidelity(learned.neural.model, Examples.from_log(tune.log, learned.encoder, tune.states))
    return replace(found, reasons=tuple(map(tune.log.catalogue.named, found.reasons)))


def unpriced_policies(
    learned: LearnedModel,
    terms: CampaignTerms,
    pilot_users: EncodedLog,
    train: Log,
    trusted: bool,
    settings: FitSettings,
    stages: Stages,
    first: PolicySpecification | None = None,
) -> Policies:
    """Policies at price 0; an untrusted model is planned with only if `settings` ask for it. If `first` is given, they
    decide as that member does."""
    if first is not None:
        settings = replace(settings, method=cast(Method, first.method), temperature=first.temperature)
    method = _method(learned, terms, trusted, settings)
    bandit = one_step(learned, terms)
    stages.going_on("policy", 0, 2, "values to go")
    learner = value_learner(bandit, train, settings)
    stages.going_on("policy", 1, 2, "values to go")
    lookahead = None
    if method == "learned":
        try:
            plan = _learned_policy(learned, terms, pilot_users, train, settings, stages)
        except ModelError as error:
            if settings.method == "learned":
                raise
            # The last resort: looking one step ahead, errors of an untrusted model do not accumulate.
            stages.finish("policy", f"values could not be learned ({error})")
            method = "bandit"
    if method == "planned":
        planned = replace(bandit, specification=replace(bandit.specification, method=method))
        if first is not None:
            plan = planned_like(planned, learner, first)
        else:
            plan, lookahead = planned_policy(planned, learner, pilot_users, settings, terms.budgets)
    elif method == "bandit":
        temperature = temperature_for(bandit, pilot_users, settings, terms.budgets)
        plan = with_baseline(at_temperature(bandit, temperature), learner)
    compared = {"bandit": at_temperature(bandit, plan.specification.temperature)} if method != "bandit" else {}
    compared["uniform"] = at_temperature(bandit, _UNIFORM)
    return Policies(plan, {name: with_baseline(each, learner) for name, each in compared.items()}, lookahead)


def _method(learned: LearnedModel, terms: CampaignTerms, trusted: bool, settings: FitSettings) -> Method:
    """The method that the settings ask for or, with "auto", the one that suits the campaign."""
    method = settings.method
    if method == "auto":
        without: Method = "learned" if terms.charges is None else "bandit"
        method = "bandit" if learned.steps == 1 else "planned" if trusted else without
    if method == "learned" and terms.charges is not None:
        raise UsageError(
            "--method learned: it supports a single budget of the log's cost in all rows; use --method planned, which "
            "plans with the model, or --method bandit, which looks one step ahead"
        )
    return method


def one_step(learned: LearnedModel, terms: CampaignTerms) -> DeployedPolicy:
    """A policy that looks one step ahead, without entropy."""
    specification = PolicySpecification("bandit", 1, 0.0, learned.steps, terms.explore)
    return deployed_policy(specification, ModelSource(learned.neural.model, terms.charges), learned, terms)


@dataclass(frozen=True)
class _LearnedRecord:
    """A learned model without its weights."""

    encoder: Encoder
    structures: tuple[StructureChoice, ...]
    epochs: int
    held_out_loss: dict[str, float]
    disagreement: dict[str, float]
    history: HistoryChoice | None
    targeting: TargetingChoice | None
    model: dict[str, Any]


def learned_codec(catalogue: ActionCatalogue) -> Codec[LearnedModel]:
    """Stores a learned model for a log with these actions."""

    def encode(learned: LearnedModel) -> tuple[_LearnedRecord, Arrays]:
        neural = learned.neural
        config, weights = neural.model.state()
        losses = (neural.held_out_loss, neural.disagreement)
        return _LearnedRecord(
            learned.encoder, neural.structures, neural.epochs, *losses, learned.history, neural.targeting, config
        ), dict(weights)

    def decode(record: Any, arrays: Arrays) -> LearnedModel:
        found = from_plain(_LearnedRecord, record, "the learned model")
        model = NeuralModel.from_state(found.model, arrays)
        neural = NeuralFit(
            model, found.structures, found.epochs, found.held_out_loss, found.disagreement, found.targeting
        )
        return LearnedModel(found.encoder, catalogue, neural, found.history)

    return Codec(encode, decode)


@dataclass(frozen=True)
class _PolicyRecord:
    """A policy without its weights."""

    specification: PolicySpecification
    kind: str
    config: dict[str, Any]


@dataclass(frozen=True)
class _PoliciesRecord:
    """Policies without their weights, by name."""

    policies: dict[str, _PolicyRecord]
    lookahead: LookaheadRecord | None


def policies_codec(learned: LearnedModel, terms: CampaignTerms) -> Codec[Policies]:
    """Stores unpriced policies; the environment model is not stored again."""

    def encode(found: Policies) -> tuple[_PoliciesRecord, Arrays]:
        records: dict[str, _PolicyRecord] = {}
        arrays: Arrays = {}
        for name, policy in found.by_name.items():
            source = policy.source
            values = source.leaf_values if isinstance(source, ModelSource) else source
            config, weights = ({}, {}) if values is None else values.state()
            records[name] = _PolicyRecord(policy.specification, source.kind, config)
            arrays |= {f"{name} {part}": array for part, array in weights.items()}
        return _PoliciesRecord(records, found.lookahead), arrays

    def decode(record: Any, arrays: Arrays) -> Policies:
        found = from_plain(_PoliciesRecord, record, "the policies")
        policies = {}
        for name, own in found.policies.items():
            head = f"{name} "
            weights = {part.removeprefix(head): array for part, array in arrays.items() if part.startswith(head)}
            if own.kind == ModelSource.kind:
                values = LeafValues.from_state(own.config, weights) if own.config else None
                source: Source = ModelSource(learned.neural.model, terms.charges, values)
            else:
                source = source_from_state(own.kind, own.config, weights)
            policies[name] = deployed_policy(own.specification, source, learned, terms)
        return Policies(policies.pop("plan"), policies, found.lookahead)

    return Codec(encode, decode)


def deployed_policy(
    specification: PolicySpecification, source: Source, learned: LearnedModel, terms: CampaignTerms
) -> DeployedPolicy:
    """A policy at price 0."""
    return DeployedPolicy(
        specification, source, learned.encoder, learned.catalogue, terms.free, terms.rules, terms.joins_late
    )


def _learned_policy(
    learned: LearnedModel,
    terms: CampaignTerms,
    pilot_users: EncodedLog,
    train: Log,
    settings: FitSettings,
    stages: Stages,
) -> DeployedPolicy:
    """Learn action values for all prices twice: without entropy to find the temperature, then with it."""

    def fits(done: int, most: int) -> None:
        stages.going_on("policy", done, most, "learning without a model: step")

    examples, eligible = Examples.from_log(train, learned.encoder), terms.eligible(train)
    steps, bound = examples.campaign_steps, (terms.constraint, terms.explore)
    learner = SoftQ.prepare(examples, settings.learning, settings.seed, eligible, fits, *bound)

    def at(temperature: float) -> DeployedPolicy:
        source = LearnedSource(learner.learn_all(temperature, progress=fits))
        specification = PolicySpecification("learned", steps, temperature, steps, terms.explore)
        return deployed_policy(specification, source, learned, terms)

    temperature = settings.temperature
    policy = at(temperature or 0.0)
    if temperature is None:
        temperature = temperature_for(policy, pilot_users, settings)
        policy = at(temperature) if temperature > 0 else policy
    return policy


def describe_policy(policy: DeployedPolicy) -> str:
    """A policy's method, lookahead and temperature, in one line."""
    own = policy.specification
    method = "learned without a model" if own.method == "learned" else own.method
    ahead = "1 step ahead" if own.horizon == 1 else f"{own.horizon} steps ahead"
    ahead += ", then values to go" if own.leaf_values else ""
    return f"{method}, {ahead}, temperature {own.temperature:.3g}"


def as_logged_under(log: Log, rules: tuple[Rule, ...]) -> Log:
    """The log with eligibility restricted to what could be drawn under those campaign rules that were already in force.

    A rule counts as in force for an action that was never logged against it. Otherwise it is new, and the actions that
    it forbids could be drawn.
    """
    if not rules:
        return log
    joins_late = bool((log.step[log.starts[:-1]] != log.first_step).any())
    constraint = RuleConstraint(rules, Encoder.fit(log), log.catalogue, joins_late)
    eligible = CampaignTerms(constraint=constraint).eligible(log)
    if eligible is None:
        return log
    broken = np.bincount(log.action[~eligible[np.arange(len(log)), log.action]], minlength=len(log.catalogue)) > 0
    before = np.ones_like(eligible) if log.eligible is None else log.eligible
    return replace(log, eligible=before & (eligible | broken))


def with_rules(audit: Audit, log: Log, eligible: NDArray[np.bool_] | None) -> Audit:
    """The audit with a finding on how much of the log complies with the rules."""
    return audit if eligible is None else replace(audit, findings=merge(audit.findings, log_left(log, eligible)))


def log_left(log: Log, eligible: NDArray[np.bool_]) -> tuple[Finding, ...]:
    """A finding on how many rows and users of a log got only eligible actions, [rows, actions]; none if all did.

    A logged action that the rules now forbid has importance weight 0: it is no evidence about a plan with these rules.
    """
    complies = eligible[np.arange(len(log)), log.action]
    if complies.all():
        return ()
    findings = Findings()
    findings.add(
        "rules_forbid_logged",
        column="action",
        count=int((~complies).sum()),
        rows_left=int(complies.sum()),
        rows_share=float(complies.mean()),
        users_left=int(np.logical_and.reduceat(complies, log.starts[:-1]).sum()),
        users=len(log.users),
    )
    return findings.sorted()

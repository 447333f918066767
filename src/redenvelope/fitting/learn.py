"""How a plan decides: by planning with the model, by values learned without one, or one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import Audit
from redenvelope.campaign.records import Rule
from redenvelope.errors import ModelError, UsageError
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.objective import Objective
from redenvelope.fitting.price_grid import horizon_for, temperature_for
from redenvelope.fitting.settings import FitSettings, Method
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.findings import Finding, Findings, merge
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.models.charges import Charges
from redenvelope.models.dataset import Examples
from redenvelope.models.fidelity import Fidelity, measure_fidelity
from redenvelope.models.fit import NeuralFit, fit_neural
from redenvelope.models.history_test import HistoryChoice, try_history
from redenvelope.plan.policy import DeployedPolicy, LearnedSource, ModelSource, PolicySpecification, Source
from redenvelope.policies.eligibility_state import allowed, eligibility_of_log
from redenvelope.policies.pricing import Pricing
from redenvelope.policies.rules import RuleConstraint
from redenvelope.progress import Stages


@dataclass(frozen=True, eq=False)
class LearnedModel:
    """What was learned from the training users."""

    encoder: Encoder
    catalogue: ActionCatalogue
    neural: NeuralFit
    steps: int
    """Steps of the campaign."""
    history: HistoryChoice | None = None
    """Whether states tell what happened before, and why; None where it was not asked."""
    charges: Charges | None = None
    """What budgets are charged of what is measured; None where the one budget is of the cost."""
    budgets: NDArray[np.float64] | None = None
    """The mean a user that each of several budgets allows, [budgets]; None with one."""
    rules: tuple[Rule, ...] = ()
    """Who may get what, how often."""
    joins_late: bool = False
    """Whether some users' campaigns began after the first step."""
    explore: float = 0.0
    """Share of the decisions that is drawn evenly among what is eligible."""

    @property
    def free(self) -> Pricing:
        """Prices of nothing."""
        return Pricing.at(*(0.0 for _ in range(1 if self.charges is None else len(self.charges.budgets))))

    @property
    def constraint(self) -> RuleConstraint | None:
        """The rules as planners ask them; None where there are none."""
        return RuleConstraint(self.rules, self.encoder, self.catalogue, self.joins_late) if self.rules else None

    def eligible(self, log: Log) -> NDArray[np.bool_] | None:
        """What the rows of a log may get, [rows, actions]; None where nothing is ruled out."""
        standing = eligibility_of_log(self.constraint, log)
        if standing is None:
            return None
        none = np.zeros((len(log), 0), np.float32)  # what conditions say is known, so that no state is looked at
        return allowed(standing, self.constraint, none, np.zeros(len(log), np.intp))

    @property
    def words(self) -> str:
        """What was learned, in a line."""
        structures = ", ".join(f"{choice.outcome} {choice.structure}" for choice in self.neural.structures)
        told = "; decides by what happened before" if self.encoder.history is not None else ""
        return f"{self.neural.epochs} epochs; {structures}{told}"


class Training(NamedTuple):
    """What values may be learned from without a model."""

    examples: Examples
    eligible: NDArray[np.bool_] | None
    """What each row's user may get, [rows, actions]; None is everything."""


def learn_model(train: Log, settings: FitSettings, stages: Stages, rules: tuple[Rule, ...] = ()) -> LearnedModel:
    """Learn the environment model from the training users."""
    encoder, training, history = _encoded(train, settings, rules)
    neural = fit_neural(
        training, settings.neural, settings.seed, lambda done, most: stages.going_on("model", done, most, "epoch")
    )
    return LearnedModel(encoder, train.catalogue, neural, encoder.campaign_steps, history)


def with_campaign(
    lessons: LearnedModel, train: Log, asked: Objective, rules: tuple[Rule, ...], explore: float
) -> LearnedModel:
    """What was learned, with what the campaign says beside the log."""
    return replace(
        lessons,
        charges=asked.charges(train, train.catalogue, lessons.encoder),
        budgets=asked.several,
        rules=rules,
        joins_late=bool((train.step[train.starts[:-1]] != train.first_step).any()),
        explore=explore,
    )


def _encoded(
    train: Log, settings: FitSettings, rules: tuple[Rule, ...]
) -> tuple[Encoder, Examples, HistoryChoice | None]:
    """The training users' rows; their states tell what happened before where held-out ones of them say it helps."""
    encoder = Encoder.fit(train)
    if settings.method == "learned" and encoder.campaign_steps > 1 and any(rule.most is not None for rule in rules):
        # What may be given next depends on what was given: trees count it along their branches, networks must be told.
        telling = encoder.with_history(train)
        return telling, Examples.from_log(train, telling), None
    if settings.history == "none" or encoder.campaign_steps == 1:
        return encoder, Examples.from_log(train, encoder), None
    telling = encoder.with_history(train)
    examples = Examples.from_log(train, telling)
    choice = try_history(examples, settings.neural, settings.seed)
    if choice.told:
        return telling, examples, choice
    # The history stands last: without it, a state is what comes before.
    plain = np.ascontiguousarray(examples.states[:, : encoder.layout.width])
    return encoder, Examples.from_log(train, encoder, plain), choice


def model_fidelity(lessons: LearnedModel, search: EncodedLog) -> Fidelity:
    """How far the model may be trusted, measured on other users than those it was trained on."""
    examples = Examples.from_log(search.log, lessons.encoder, search.states)
    return measure_fidelity(lessons.neural.model, examples)


def unpriced_policy(
    scouts: EncodedLog, lessons: LearnedModel, train: Log, trusted: bool, settings: FitSettings, stages: Stages
) -> DeployedPolicy:
    """The policy before its price is known; a model that is not trusted is not planned with unless asked for."""
    method, steps = settings.method, lessons.steps
    if method == "auto":
        without: Method = "learned" if lessons.charges is None else "bandit"
        method = "bandit" if steps == 1 else "planned" if trusted else without
    if method == "learned" and lessons.charges is not None:
        raise UsageError(
            "values without a model are learned for one budget, of the log's cost in all rows; plan with the model "
            "(--method planned), or one step at a time (--method bandit)"
        )
    if method == "learned":
        try:
            training = Training(Examples.from_log(train, lessons.encoder), lessons.eligible(train))
            return _learned_policy(scouts, lessons, training, settings, stages)
        except ModelError as error:
            if settings.method == "learned":
                raise
            # One step at a time, an untrusted model's errors do not add up: the last resort.
            stages.finish("policy", f"values could not be learned ({error})")
            method = "bandit"
    actions, wanted = len(scouts.log.catalogue), settings.search
    horizon = (
        1 if method == "bandit" else min(settings.horizon or horizon_for(actions, steps, wanted.largest_tree), steps)
    )
    policy = _on_the_model(lessons, method, horizon)
    temperature = settings.temperature
    if temperature is None:
        temperature = temperature_for(policy, scouts, wanted, lessons.budgets)
    return replace(policy, specification=replace(policy.specification, temperature=temperature))


def one_step_policy(lessons: LearnedModel, temperature: float) -> DeployedPolicy:
    """The bandit on the learned model: what looking ahead is compared with."""
    bandit = _on_the_model(lessons, "bandit", 1)
    return replace(bandit, specification=replace(bandit.specification, temperature=temperature))


def _on_the_model(lessons: LearnedModel, method: str, horizon: int) -> DeployedPolicy:
    specification = PolicySpecification(method, horizon, 0.0, lessons.steps, lessons.explore)
    source = ModelSource(lessons.neural.model, lessons.charges)
    return deployed(specification, source, lessons)


def deployed(specification: PolicySpecification, source: Source, lessons: LearnedModel) -> DeployedPolicy:
    """A policy before its price is known."""
    own = (lessons.encoder, lessons.catalogue, lessons.free, lessons.rules, lessons.joins_late)
    return DeployedPolicy(specification, source, *own)


def _learned_policy(
    scouts: EncodedLog, lessons: LearnedModel, training: Training, settings: FitSettings, stages: Stages
) -> DeployedPolicy:
    """Values for all prices, learned twice: without entropy to find the temperature, then with it."""

    def fits(done: int, most: int) -> None:
        stages.going_on("policy", done, most, "learning without a model: step")

    steps, bound = training.examples.campaign_steps, (lessons.constraint, lessons.explore)
    learner = SoftQ.prepare(training.examples, settings.learning, settings.seed, training.eligible, fits, *bound)

    def at(temperature: float) -> DeployedPolicy:
        source = LearnedSource(learner.learn_all(temperature, progress=fits))
        specification = PolicySpecification("learned", steps, temperature, steps, lessons.explore)
        return deployed(specification, source, lessons)

    temperature = settings.temperature
    policy = at(temperature or 0.0)
    if temperature is None:
        temperature = temperature_for(policy, scouts, settings.search)
        policy = at(temperature) if temperature > 0 else policy
    return policy


def policy_words(policy: DeployedPolicy, settings: FitSettings) -> str:
    """How a policy decides, in a line."""
    wanted = policy.specification
    method = "learned without a model" if wanted.method == "learned" else wanted.method
    longer = wanted.method not in ("learned", "bandit") and (settings.horizon or 0) > wanted.steps
    clipped = f" (the campaign has no more than {wanted.steps})" if longer else ""
    return f"{method}, {_ahead(wanted.horizon)}{clipped}, temperature {wanted.temperature:.3g}"


def _ahead(steps: int) -> str:
    return "1 step ahead" if steps == 1 else f"{steps} steps ahead"


# What is left of a log by the rules of a campaign.


def with_rules(audited: Audit, lessons: LearnedModel, log: Log) -> Audit:
    """The audit, with what the rules leave of the log."""
    eligible = lessons.eligible(log)
    return audited if eligible is None else replace(audited, findings=merge(audited.findings, log_left(log, eligible)))


def log_left(log: Log, eligible: np.ndarray) -> tuple[Finding, ...]:
    """How many rows and users of a log were given what may be given, [rows, actions]; nothing where all were.

    What was given and is now forbidden has a ratio of 0: it says nothing of a plan that keeps the rules.
    """
    kept = eligible[np.arange(len(log)), log.action]
    if kept.all():
        return ()
    users = int(np.logical_and.reduceat(kept, log.starts[:-1]).sum())
    findings = Findings()
    findings.add(
        "rules_forbid_logged",
        column="action",
        count=int((~kept).sum()),
        rows_left=int(kept.sum()),
        rows_share=float(kept.mean()),
        users_left=users,
        users=len(log.users),
    )
    return findings.sorted()

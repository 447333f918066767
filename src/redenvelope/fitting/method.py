"""How a plan decides: by planning with the model, by values learned without one, or one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from redenvelope.errors import ModelError
from redenvelope.fitting.scouting import horizon_for, temperature_for
from redenvelope.fitting.settings import FitSettings
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import Log
from redenvelope.models.examples import Examples
from redenvelope.models.fidelity import Fidelity, measure_fidelity
from redenvelope.models.fit import NeuralFit, fit_neural
from redenvelope.plan.policy import DeployedPolicy, PolicySpecification

__all__ = ["Lessons", "Progress", "learn_model", "one_step_policy", "unpriced_policy"]

Progress = Callable[[str, str], None]
"""Told (stage, key figure in words) when a stage begins (an empty figure) and when it is done."""


@dataclass(frozen=True, eq=False)
class Lessons:
    """What was learned from the training users, and how far it may be trusted."""

    encoder: Encoder
    training: Examples
    neural: NeuralFit
    fidelity: Fidelity


def learn_model(train: Log, search: Log, settings: FitSettings, tell: Progress) -> Lessons:
    """Learn the environment model from one fold and measure it on another."""
    tell("model", "")
    encoder = Encoder.fit(train)
    training = Examples.from_log(train, encoder)
    neural = fit_neural(
        training, settings.neural, settings.seed, lambda done, most: tell("model", f"epoch {done} of {most}")
    )
    structures = ", ".join(f"{choice.outcome} {choice.structure}" for choice in neural.structures)
    tell("model", f"{neural.epochs} epochs; {structures}")
    tell("fidelity", "")
    fidelity = measure_fidelity(neural.model, Examples.from_log(search, encoder))
    tell("fidelity", "trusted" if fidelity.trusted else f"not trusted: {fidelity.reasons[0]}")
    return Lessons(encoder, training, neural, fidelity)


def unpriced_policy(search: Log, lessons: Lessons, settings: FitSettings, tell: Progress) -> DeployedPolicy:
    """The policy before its price is known."""
    tell("policy", "")
    method, steps = settings.method, lessons.training.campaign_steps
    if method == "auto":
        method = "bandit" if steps == 1 else "planned" if lessons.fidelity.trusted else "learned"
    if method == "learned":
        try:
            return _learned_policy(search, lessons, settings, tell)
        except ModelError as error:
            if settings.method == "learned":
                raise
            # One step at a time, an untrusted model's errors do not add up: the last resort.
            tell("policy", f"values could not be learned ({error})")
            method = "bandit"
    actions = len(search.catalogue)
    horizon = 1 if method == "bandit" else min(settings.horizon or horizon_for(actions, steps), steps)
    policy = _on_the_model(lessons, method, horizon)
    temperature = settings.temperature
    if temperature is None:
        temperature = temperature_for(policy, search)
    clipped = f" (the campaign has no more than {steps})" if (settings.horizon or 0) > steps else ""
    tell("policy", f"{method}, {_ahead(horizon)}{clipped}, temperature {temperature:.3g}")
    return replace(policy, specification=replace(policy.specification, temperature=temperature))


def one_step_policy(lessons: Lessons, temperature: float) -> DeployedPolicy:
    """The bandit on the learned model: what looking ahead is compared with."""
    bandit = _on_the_model(lessons, "bandit", 1)
    return replace(bandit, specification=replace(bandit.specification, temperature=temperature))


def _on_the_model(lessons: Lessons, method: str, horizon: int) -> DeployedPolicy:
    specification = PolicySpecification(method, horizon, 0.0, lessons.training.campaign_steps, (0.0,), (1.0,))
    return DeployedPolicy(specification, lessons.neural.model, lessons.encoder)


def _learned_policy(search: Log, lessons: Lessons, settings: FitSettings, tell: Progress) -> DeployedPolicy:
    """Values for all prices, learned twice: without entropy to find the temperature, then with it."""

    def fits(done: int, most: int) -> None:
        tell("policy", f"learning without a model: {done} of {most} steps")

    steps = lessons.training.campaign_steps
    learner = SoftQ.prepare(lessons.training, settings.learning, settings.seed, progress=fits)

    def at(temperature: float) -> DeployedPolicy:
        specification = PolicySpecification("learned", steps, temperature, steps, (0.0,), (1.0,))
        return DeployedPolicy(specification, learner.learn_all(temperature, progress=fits), lessons.encoder)

    temperature = settings.temperature
    policy = at(temperature or 0.0)
    if temperature is None:
        temperature = temperature_for(policy, search)
        policy = at(temperature) if temperature > 0 else policy
    tell("policy", f"learned without a model, {_ahead(steps)}, temperature {temperature:.3g}")
    return policy


def _ahead(steps: int) -> str:
    return "1 step ahead" if steps == 1 else f"{steps} steps ahead"

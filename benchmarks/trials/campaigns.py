"""Small settings to fit campaigns with, and what policies really cost on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trials.families.campaign import SimulatedCampaign, Truth


def campaign_of(family: str, seed: int) -> SimulatedCampaign:
    """A campaign that nothing was tuned to."""
    from trials.families.registry import FAMILIES

    return FAMILIES[family].campaign(seed)


def quick_settings(seed: int) -> Any:
    """A small model: a certificate has to hold whatever the model is worth."""
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.learning.backward import LearningSettings
    from redenvelope.models.training import NeuralSettings, TrainingSettings

    training = TrainingSettings(steps=600, batch_rows=512, epochs_most=20)
    neural = NeuralSettings(outcome_hidden=(32,), transition_hidden=(32,), members=1, training=training)
    learning = LearningSettings(hidden=(32,), immediate=replace(training, steps=400))
    return FitSettings(neural=neural, learning=learning, seed=seed)


def budget_of(campaign: SimulatedCampaign, share: float) -> float:
    """So far from what the cheapest policy costs to what the uniform one does."""
    least, uniform = campaign.cheapest.cost, campaign.uniform.cost
    return float(least + share * (uniform - least))


def deployed(policy: Any, row: int = 0) -> Callable[[Any, Any], Any]:
    """A plan's policy at one row of its prices, as a campaign asks it: users now, and what they did before."""
    return lambda frame, past: policy.probabilities(frame, row, history=past)


def truth_of(campaign: SimulatedCampaign, labels: tuple[str, ...], decide: Callable[[Any, Any], Any]) -> Truth:
    """What a policy with so labelled actions earns and costs."""
    # The log's catalogue orders actions by the mean cost it saw, the campaign by the truth.
    columns = [labels.index(label) for label in campaign.actions]
    return campaign.truth(lambda frame, past: decide(frame, past)[:, columns])


def exact_truth(campaign: SimulatedCampaign, plan: Any) -> tuple[float, float, float] | None:
    """Exact cost and reward of a plan, and the share of the optimum's gain at the same *budget* that it earns.

    None where the family has no exact solution, or the plan decides by more than the state.
    """
    exact = getattr(campaign.laws, "campaign", None)
    if exact is None or plan.needs_history:
        return None
    columns = [plan.catalogue.labels.index(label) for label in campaign.actions]
    pricing = plan.policy.pricing
    values = [
        [
            exact.value(lambda frame, own=own, row=row: own.probabilities(frame, row)[:, columns])
            for row in range(len(pricing.shares))
        ]
        for own in plan.policy.members
    ]
    outcomes = np.mean([[(value.cost, value.reward) for value in own] for own in values], axis=0)
    cost, reward = pricing.mix(outcomes, axis=0)
    base = exact.cheapest().reward
    gain = (reward - base) / (exact.optimum(plan.certificate.budget).reward - base)
    return float(cost), float(reward), float(gain)


def recoded(log: Any, catalogue: Any) -> Any:
    """A log with its actions numbered as in another catalogue."""
    places = np.array([catalogue.labels.index(label) for label in log.catalogue.labels], dtype=np.int32)
    return replace(log, action=places[log.action], catalogue=catalogue)

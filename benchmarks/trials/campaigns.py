"""Small settings to fit campaigns with, and what policies really cost on them."""

from __future__ import annotations

import inspect
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
    from redenvelope.learning.settings import LearningSettings
    from redenvelope.models.fit import NeuralSettings
    from redenvelope.models.training import TrainingSettings

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
    if "history" in inspect.signature(policy.probabilities).parameters:
        return lambda frame, past: policy.probabilities(frame, row, history=past)
    return lambda frame, past: policy.probabilities(frame, row)


def truth_of(campaign: SimulatedCampaign, labels: tuple[str, ...], decide: Callable[[Any, Any], Any]) -> Truth:
    """What a policy with so labelled actions earns and costs."""
    # The log's catalogue orders actions by the mean cost it saw, the campaign by the truth.
    columns = [labels.index(label) for label in campaign.actions]
    return campaign.truth(lambda frame, past: decide(frame, past)[:, columns])


def recoded(log: Any, catalogue: Any) -> Any:
    """A log with its actions numbered as in another catalogue."""
    places = np.array([catalogue.labels.index(label) for label in log.catalogue.labels], dtype=np.int32)
    return replace(log, action=places[log.action], catalogue=catalogue)

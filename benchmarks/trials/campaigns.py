"""Campaigns that nothing was tuned to, small settings to fit them with, and what policies really cost on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

TRUTH_USERS = 10_000
"""Of a closed-loop run where the truth has no closed form: one or two percent off, far less than bounds are wide."""


def campaign_of(family: str, seed: int) -> Any:
    """A campaign that nothing was tuned to."""
    from redenvelope.simulate.envelope_parameters import random_parameters
    from redenvelope.simulate.envelopes import EnvelopeCampaign
    from redenvelope.simulate.finite import FiniteCampaign, random_problem

    if family == "finite":
        return FiniteCampaign(random_problem(seed, states=5, actions=3, steps=3))
    return EnvelopeCampaign(random_parameters(seed), population=TRUTH_USERS)


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


def budget_of(campaign: Any, share: float) -> float:
    """So far from what the cheapest policy costs to what the uniform one does."""
    few = campaign if hasattr(campaign, "problem") else replace(campaign, population=500)
    least, uniform = few.cheapest().cost, few.uniform().cost
    return float(least + share * (uniform - least))


def true_cost(campaign: Any, labels: tuple[str, ...], decide: Callable[[Any], Any]) -> float:
    """What a policy with so labelled actions costs: exact for finite campaigns, else by acting on many users."""
    # The log's catalogue orders actions by the mean cost it saw, the campaign by the truth.
    columns = [labels.index(label) for label in campaign.actions]

    def in_order(frame: Any) -> Any:
        return decide(frame)[:, columns]

    if hasattr(campaign, "problem"):
        return float(campaign.value(in_order).cost)
    return float(campaign.run(in_order, TRUTH_USERS, seed=7).cost)


def recoded(log: Any, catalogue: Any) -> Any:
    """A log with its actions numbered as in another catalogue."""
    places = np.array([catalogue.labels.index(label) for label in log.catalogue.labels], dtype=np.int32)
    return replace(log, action=places[log.action], catalogue=catalogue)

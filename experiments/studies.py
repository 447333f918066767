"""What several experiments share: a log of each campaign, and what was learned from it, made once and when asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import polars as pl

from experiments.checking import CheckedPrice
from experiments.methods import Continued, Counted, Method, Planned, Retrained
from experiments.retrained import RetrainedPrice
from experiments.settings import ReproduceSettings
from experiments.tabular import TabularModel, fit_tabular
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import Log, split
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import fit_neural
from redenvelope.models.neural_model import NeuralModel
from redenvelope.planning.planner import TreePlanner
from redenvelope.simulate.envelopes import EnvelopeCampaign
from redenvelope.simulate.finite import FiniteCampaign, two_step

__all__ = ["METHODS", "EnvelopeStudy", "Material", "Studies", "TwoStepStudy"]

METHODS = (
    ("bandit", "counted model"),
    ("bandit", "neural model"),
    ("constrained MDP", "counted model"),
    ("constrained MDP", "neural model"),
    ("constrained MDP", "no model, retrained"),
)
"""(policy, learned by): what is compared on the two-step problem."""

_PARTS = (0.7, 0.3)  # users who teach, users on whom costs are estimated


class Material(NamedTuple):
    """A log in its two parts."""

    train: Log
    validation: Log
    encoder: Encoder
    examples: Examples
    """Of the training users."""


@dataclass(frozen=True, eq=False)
class TwoStepStudy:
    """One log of the paper's synthetic campaign."""

    campaign: FiniteCampaign
    settings: ReproduceSettings
    seed: int
    known: dict[tuple[str, str], CheckedPrice] = field(default_factory=dict)

    @cached_property
    def material(self) -> Material:
        """The log."""
        return _material(self.campaign.log(self.settings.two_step_users, self.seed), self.seed)

    @cached_property
    def counted(self) -> TabularModel:
        """Counts over the states of the log."""
        return fit_tabular(self.material.examples)

    @cached_property
    def model(self) -> NeuralModel:
        """The paper's kind of model, wide and deep."""
        return fit_neural(self.material.examples, self.settings.neural, self.seed).model

    @cached_property
    def learner(self) -> SoftQ:
        """The log made ready for learning without a model."""
        return SoftQ.prepare(self.material.examples, seed=self.seed)

    def price(self, policy: str, learned_by: str) -> CheckedPrice:
        """What the validation users say of a method at any price; asked again, it is the same object."""
        if (policy, learned_by) not in self.known:
            method = self._method(policy, learned_by)
            checked = CheckedPrice(method, self.material.encoder, self.material.validation)
            self.known[policy, learned_by] = checked
        return self.known[policy, learned_by]

    def _method(self, policy: str, learned_by: str) -> Method:
        steps, examples = self.campaign.steps, self.material.examples
        if learned_by == "counted model":
            return Counted(self.counted, lookahead=1 if policy == "bandit" else None)
        if learned_by == "neural model":
            plan = Planned(TreePlanner(self.model, 1 if policy == "bandit" else steps, 0.0, steps))
            return Continued(plan)
        return Retrained(RetrainedPrice(self.learner, examples.states[examples.starts[:1]]))


@dataclass(frozen=True, eq=False)
class EnvelopeStudy:
    """One log of the campaign that stands in for the paper's real one."""

    campaign: EnvelopeCampaign
    settings: ReproduceSettings
    seed: int

    @cached_property
    def material(self) -> Material:
        """The log."""
        return _material(self.campaign.log(self.settings.envelope_users, self.seed), self.seed)

    @cached_property
    def model(self) -> NeuralModel:
        """The paper's kind of model, wide and deep."""
        return fit_neural(self.material.examples, self.settings.neural, self.seed).model

    @cached_property
    def methods(self) -> dict[str, Planned]:
        """Bandit and plan, by the same model."""
        steps = self.campaign.steps
        horizons = {"bandit": 1, "constrained MDP": self.settings.horizon}
        return {name: Planned(TreePlanner(self.model, horizon, 0.0, steps)) for name, horizon in horizons.items()}


@dataclass(frozen=True, eq=False)
class Studies:
    """The studies of every seed, and the campaigns they are of."""

    settings: ReproduceSettings

    @cached_property
    def two_step(self) -> tuple[TwoStepStudy, ...]:
        """One study a seed."""
        campaign = two_step()
        return tuple(TwoStepStudy(campaign, self.settings, seed) for seed in self.settings.log_seeds)

    @cached_property
    def envelopes(self) -> tuple[EnvelopeStudy, ...]:
        """One study a seed."""
        campaign = EnvelopeCampaign(population=self.settings.population)
        return tuple(EnvelopeStudy(campaign, self.settings, seed) for seed in self.settings.log_seeds)


def _material(frame: pl.DataFrame, seed: int) -> Material:
    train, validation = split(log_from_frame(frame), _PARTS, seed)
    encoder = Encoder.fit(train)
    return Material(train, validation, encoder, Examples.from_log(train, encoder))

"""Hidden confounder: keen users were sent more and respond more; the log shows neither who is keen nor that it counts.

The propensities are what an analyst would note who knows the features alone, so every estimate is biased.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trials.families.laws import FloatArray, State
from trials.families.sending import Sending


@dataclass(frozen=True)
class HiddenConfounder(Sending):
    """Half of the users are keen, which drives draws and outcomes."""

    @property
    def strength(self) -> float:
        """By how much a keen user's logits are higher, of larger envelopes and of being active."""
        return float(np.random.default_rng([self.seed, 7]).uniform(0.5, 1.5))

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        return {**super().start(users, generator, rare), "keen": generator.random(users) < 0.5}

    def logger(self, state: State, step: int) -> FloatArray:
        """See Laws: tilted to what the keen like, and away from it for others."""
        tilt = self.strength * (state["keen"] - 0.5)
        weights = super().logger(state, step) * np.exp(tilt[:, None] * np.linspace(0, 1, len(self.actions)))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def noted(self, probabilities: FloatArray, state: State, step: int) -> FloatArray:
        """See Laws: the mean over the keen and the others."""
        either = [self.logger({**state, "keen": np.full(len(probabilities), keen)}, step) for keen in (False, True)]
        return np.asarray((either[0] + either[1]) / 2)

    def activity(self, state: State, step: int) -> FloatArray:
        """See Sending."""
        chance = super().activity(state, step)
        odds = chance / (1 - chance) * np.exp(self.strength * (state["keen"] - 0.5))[:, None]
        return np.asarray(odds / (1 + odds))

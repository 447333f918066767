"""Whales: few users cost many times as much, and look like everybody else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trials.families.laws import FloatArray, State
from trials.families.sending import Sending

_DRAWN = 0.1
"""Share of whales among users drawn for the truth, who weigh accordingly: few whales would leave it in doubt."""


@dataclass(frozen=True)
class Whales(Sending):
    """By default one user of a thousand, who costs 400 times as much."""

    share: float = 0.001
    times: float = 400.0

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        state, share = super().start(users, generator, rare), _DRAWN if rare else self.share
        whale = generator.random(users) < share
        if not rare:
            return {**state, "whale": whale}
        # By what was drawn, not by what is drawn on average: the share of whales is then no noise.
        weight = np.where(whale, self.share / whale.mean(), (1 - self.share) / (1 - whale.mean()))
        return {**state, "whale": whale, "weight": weight}

    def size(self, state: State) -> FloatArray:
        """See Sending."""
        return np.where(state["whale"], self.times, 1.0)

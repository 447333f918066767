"""Opposite habits: every offer makes loyal users redeem more and dormant ones less, and no feature shows how many came.

Averaged over users the past has no effect, so that a test of its mean effect finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.families.hidden_habit import HiddenHabit
from trials.families.laws import FloatArray, State
from trials.families.sending import SEGMENTS

_DIRECTIONS = np.array([{"loyal": 1.0, "dormant": -1.0}.get(segment, 0.0) for segment in SEGMENTS])


@dataclass(frozen=True)
class OppositeHabits(HiddenHabit):
    """The chance of redeeming grows with every envelope for loyal users and falls for dormant ones."""

    loyal_respond: bool = False
    """Whether loyal users respond most, so that a good plan sends to those whom envelopes make dearer."""

    @property
    def growth(self) -> float:
        """What an envelope adds to, or takes from, the chance of redeeming the next."""
        return float(np.random.default_rng([self.seed, 3]).uniform(0.04, 0.24))

    @property
    def parameters(self) -> dict[str, Any]:
        """See Sending."""
        lifts = {"segment_lifts": 1.0 + 0.6 * _DIRECTIONS} if self.loyal_respond else {}
        return super().parameters | lifts

    def redemption(self, state: State, step: int) -> FloatArray:
        """See Sending: the same for all at first."""
        change = self.growth * _DIRECTIONS[state["segment"]] * state["received"]
        return np.clip(self.parameters["redeemed"] + change, 0.02, 0.98)

"""Personalised groups: a static group and the dynamic state together decide who responds; the state tells all.

What moves one group when it is warm moves the next one when it is cold, so that no sum of an effect of the group and
an effect of the state describes where a good plan takes users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import FloatArray, State
from trials.families.sending import Sending, sigmoid

GROUPS = 6


@dataclass(frozen=True)
class Groups(Sending):
    """Half the groups respond when warm, the others when cold."""

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        return {**super().start(users, generator, rare), "group": generator.integers(GROUPS, size=users)}

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """See Laws."""
        return {**super().features(state, step), "group": np.array([f"g{n}" for n in range(GROUPS)])[state["group"]]}

    def activity(self, state: State, step: int) -> FloatArray:
        """See Sending."""
        own = self.parameters
        even, warm = state["group"] % 2 == 0, state["warm"]
        strength = np.random.default_rng([self.seed, 4]).uniform(1.5, 2.5, size=GROUPS)[state["group"]]
        responds = np.where(even == warm, strength, 0.1)
        level = own["base"] + own["affinity"] * state["affinity"] + np.where(even, 1.0, -0.6) * warm
        return sigmoid(level[:, None] + responds[:, None] * own["lifts"])

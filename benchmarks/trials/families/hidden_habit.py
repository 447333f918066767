"""Hidden habit: who has been sent envelopes redeems them more often, and no feature shows how many that were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import FloatArray, State
from trials.families.sending import Sending


@dataclass(frozen=True)
class HiddenHabit(Sending):
    """The chance of redeeming grows with every envelope received."""

    @property
    def steps(self) -> int:
        """Decisions per user: a habit takes time."""
        return 5

    @property
    def growth(self) -> float:
        """What an envelope adds to the chance of redeeming the next."""
        return float(np.random.default_rng([self.seed, 3]).uniform(0.12, 0.2))

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        return {**super().start(users, generator, rare), "received": np.zeros(users, dtype=np.int64)}

    def redemption(self, state: State, step: int) -> FloatArray:
        """See Sending: from a low chance upwards."""
        return np.minimum(0.2 + self.growth * state["received"], 0.95)

    def moved(
        self, state: State, action: NDArray[np.intp], active: NDArray[np.bool_], generator: np.random.Generator
    ) -> State:
        """See Sending."""
        following = super().moved(state, action, active, generator)
        return {**following, "received": state["received"] + (action > 0)}

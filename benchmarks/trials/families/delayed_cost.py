"""Delayed cost: what an envelope costs is booked with the user's next step; the last one's with the last row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import FloatArray, Happened, State
from trials.families.sending import Sending


@dataclass(frozen=True)
class DelayedCost(Sending):
    """The log shows a cost beside the action that follows it."""

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        return {**super().start(users, generator, rare), "owed": np.zeros(users)}

    def means(self, state: State, step: int) -> FloatArray:
        """See Laws: what is owed does not depend on the action any more."""
        rewards, costs = super().means(state, step)
        booked = costs if step == self.steps - 1 else np.zeros_like(costs)
        return np.stack([rewards, booked + state["owed"][:, None]])

    def happen(self, state: State, step: int, action: NDArray[np.intp], generator: np.random.Generator) -> Happened:
        """See Laws."""
        happened = super().happen(state, step, action, generator)
        last = step == self.steps - 1
        booked = state["owed"] + happened.cost if last else state["owed"]
        return happened._replace(cost=booked, state={**happened.state, "owed": happened.cost})

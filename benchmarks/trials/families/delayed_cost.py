"""Delayed cost: what an envelope costs is booked some steps later; what is still open at the end, with the last row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import FloatArray, Happened, State
from trials.families.sending import Sending


@dataclass(frozen=True)
class DelayedCost(Sending):
    """The log shows a cost beside an action that follows it."""

    lag: int = 1
    """How many steps later."""

    @property
    def steps(self) -> int:
        """Decisions per user: a longer lag needs more of them."""
        return 4 if self.lag == 1 else 6

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        owed = {f"owed {later}": np.zeros(users) for later in range(self.lag)}
        return {**super().start(users, generator, rare), **owed}

    def means(self, state: State, step: int) -> FloatArray:
        """See Laws: what is owed does not depend on the action any more."""
        rewards, costs = super().means(state, step)
        booked = costs if step == self.steps - 1 else np.zeros_like(costs)
        return np.stack([rewards, booked + self._due(state, step)[:, None]])

    def happen(self, state: State, step: int, action: NDArray[np.intp], generator: np.random.Generator) -> Happened:
        """See Laws."""
        happened = super().happen(state, step, action, generator)
        last = step == self.steps - 1
        booked = self._due(state, step) + (happened.cost if last else 0.0)
        owed = {f"owed {later}": state[f"owed {later + 1}"] for later in range(self.lag - 1)}
        return happened._replace(cost=booked, state={**happened.state, **owed, f"owed {self.lag - 1}": happened.cost})

    def _due(self, state: State, step: int) -> FloatArray:
        """What is booked now of earlier envelopes: at the end all that is owed, [users]."""
        due = self.lag if step == self.steps - 1 else 1
        return np.asarray(sum(state[f"owed {later}"] for later in range(due)))

"""The planned policy: a tree planner at one dual."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.models.environment import EnvironmentModel
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.policy import normalised

__all__ = ["PlannedPolicy", "constrained_bandit"]


@dataclass(frozen=True, eq=False)
class PlannedPolicy:
    """Plans anew at every step, at one price of cost."""

    planner: TreePlanner
    dual: float
    """Price of one unit of cost; infinity plans on cost alone."""

    def __post_init__(self) -> None:
        if not self.dual >= 0:
            raise UsageError(f"dual must be a number of at least 0 or infinity, not {self.dual}")

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.planner.model.actions

    def probabilities(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """[users, width], a number or [users], and [users, actions] -> [users, actions]."""
        return normalised(self.planner.plan(states, steps_left, [self.dual], eligible).probabilities[:, 0])


def constrained_bandit(model: EnvironmentModel, dual: float, steps: int, temperature: float = 0.0) -> PlannedPolicy:
    """The policy that weighs reward against cost one step at a time, blind to what comes after."""
    return PlannedPolicy(TreePlanner(model, horizon=1, temperature=temperature, steps=steps), dual)

"""The planned policy: a tree planner at one price for each budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.planning.planner import TreePlanner
from redenvelope.policies.eligibility_state import Eligible
from redenvelope.policies.policy import normalised
from redenvelope.prices import checked_prices

__all__ = ["PlannedPolicy"]


@dataclass(frozen=True, eq=False)
class PlannedPolicy:
    """Plans anew at every step, at one price for each budget."""

    planner: TreePlanner
    price: float | tuple[float, ...]
    """Price of one unit of cost, one for each budget; infinity plans on that cost alone."""

    def __post_init__(self) -> None:
        checked_prices(self._row, self.planner.budgets)

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.planner.actions

    @property
    def _row(self) -> NDArray[np.float64]:
        return np.atleast_1d(np.asarray(self.price, dtype=np.float64))[None]

    def probabilities(self, states: ArrayLike, steps_left: ArrayLike, eligible: Eligible = None) -> NDArray[np.float64]:
        """[users, width], a number or [users], and [users, actions] -> [users, actions]."""
        return normalised(self.planner.values(states, steps_left, self._row, eligible).probabilities[:, 0])

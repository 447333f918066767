"""Decisions for some users at once, in calls that are small enough for somebody who waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.planning.one_program import decide_in_one_program
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.values import Valuer

__all__ = ["USERS_PER_CALL", "can_decide_together", "decide_together"]

FloatArray = NDArray[np.float64]
USERS_PER_CALL = 32
"""Whose trees one call of the compiled program plans, whether there are so many or not."""


def can_decide_together(valuer: Valuer) -> bool:
    """Whether there is one compiled program for it: rules at the nodes of a tree do not fit in."""
    return isinstance(valuer, TreePlanner) and valuer.constraint is None


def decide_together(
    planner: TreePlanner, states: Sequence[NDArray[np.float32]], depth: int, table: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Probabilities [prices, actions] and outcomes of this step [outcomes, actions] of each state [width].

    All plan `depth` steps ahead, at the prices of a table [prices, budgets].
    """
    found = []
    shape = planner.branching.at_depth(depth)
    for first in range(0, len(states), USERS_PER_CALL):
        rows = np.stack(states[first : first + USERS_PER_CALL])
        terms = (planner.temperature, planner.discount, planner.explore, USERS_PER_CALL)
        part = decide_in_one_program(planner.model, rows, shape, table, *terms)
        if not part.finite.all():
            raise ModelError("the model's predictions for a user are not finite numbers; the state lies far outside")
        for row in range(len(rows)):
            outcomes = np.asarray(part.outcomes[:, row], dtype=np.float64)
            found.append((np.asarray(part.probabilities[row], dtype=np.float64), outcomes))
    return found

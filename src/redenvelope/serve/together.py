"""Decisions for some users at once, in calls that are small enough for somebody who waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.planning.one_program import decide_in_one_program
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.values import Valuer

__all__ = ["CALL_SIZES", "can_decide_together", "decide_together"]

FloatArray = NDArray[np.float64]
CALL_SIZES = (8, 16, 32)
"""Whose trees one call of the compiled program plans, whether there are so many or not: the least that are enough."""


def can_decide_together(valuer: Valuer) -> bool:
    """Whether there is one compiled program for it: rules at the nodes of a tree do not fit in."""
    return isinstance(valuer, TreePlanner) and valuer.constraint is None


def decide_together(
    planner: TreePlanner, states: Sequence[NDArray[np.float32]], left: NDArray[np.int64], table: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Probabilities [prices, actions] and outcomes of this step [outcomes, actions] of each state [width].

    Users have so many decisions `left` [users]: those near the end share the program of the others, and their trees
    end where the campaign does. Prices are a table [prices, budgets].
    """
    found: list[tuple[FloatArray, FloatArray]] = []
    reach = np.minimum(left, planner.depth).astype(np.int32)
    shape = planner.branching.at_depth(planner.depth)
    for first in range(0, len(states), CALL_SIZES[-1]):
        rows = np.stack(states[first : first + CALL_SIZES[-1]])
        size = next(size for size in CALL_SIZES if len(rows) <= size)
        terms = (planner.temperature, planner.discount, planner.explore, size)
        part = decide_in_one_program(planner.model, rows, shape, table, *terms, reach[first : first + len(rows)])
        if not part.finite.all():
            raise ModelError("the model's predictions for a user are not finite numbers; the state lies far outside")
        outcomes = np.asarray(part.outcomes, dtype=np.float64).swapaxes(0, 1)
        found.extend(zip(np.asarray(part.probabilities, dtype=np.float64), outcomes, strict=True))
    return found

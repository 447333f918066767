"""Constraints: which actions a state allows. Everything that plans, checks or decides asks them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Constraint"]


class Constraint(Protocol):
    """Says which actions a state allows; of one without any, the cheapest stays allowed.

    A planner asks it at every node of a tree, so that what it forbids later counts in what an action is worth now.
    States are encoded; rows are users, or nodes of their trees.

    A small one forbids the dearest action at the last step:

    >>> class NoLastSplurge:
    ...     actions = 3
    ...
    ...     def eligible(self, states, steps_left):
    ...         mask = np.ones((len(states), self.actions), dtype=bool)
    ...         mask[steps_left == 1, -1] = False
    ...         return mask
    >>> NoLastSplurge().eligible(np.zeros((2, 5), np.float32), np.array([2, 1])).tolist()
    [[True, True, True], [True, True, False]]
    """

    def eligible(self, states: NDArray[np.float32], steps_left: NDArray[np.intp]) -> NDArray[np.bool_]:
        """States [n, width] and steps left, this one included, [n] -> which actions are allowed, [n, actions]."""
        ...

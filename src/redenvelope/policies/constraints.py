"""Constraints: which actions a state allows. Everything that plans, checks or decides asks them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Constraint", "Memory"]

Memory = NDArray[np.int16]
"""What a constraint remembers of rows, [rows, columns]: known, not predicted, and moved by every action."""


class Constraint(Protocol):
    """Says which actions a state allows; of one without any, the cheapest stays allowed.

    A planner asks it at every node of a tree, so that what it forbids later counts in what an action is worth now.
    States are encoded; rows are users, or nodes of their trees. What must be known of the past stands in a memory of so
    many columns as it `remembers`, zeros where nothing has happened.

    A small one forbids the dearest action at the last step:

    >>> class NoLastSplurge(Constraint):
    ...     actions = 3
    ...
    ...     def eligible(self, states, steps_left, memory):
    ...         mask = np.ones((len(states), self.actions), dtype=bool)
    ...         mask[steps_left == 1, -1] = False
    ...         return mask
    >>> NoLastSplurge().eligible(np.zeros((2, 5), np.float32), np.array([2, 1]), np.zeros((2, 0))).tolist()
    [[True, True, True], [True, True, False]]
    """

    @property
    def remembers(self) -> int:
        """Columns of its memory; 0 where it needs none."""
        return 0

    def eligible(self, states: NDArray[np.float32], steps_left: NDArray[np.intp], memory: Memory) -> NDArray[np.bool_]:
        """States [n, width], steps left, this one included, [n] and memory [n, columns] -> what is allowed, [n,
        actions]."""
        ...

    def after(self, memory: Memory, action: NDArray[np.intp]) -> Memory:
        """What is remembered one step on, when rows with a memory [n, columns] got an action [n]."""
        return memory

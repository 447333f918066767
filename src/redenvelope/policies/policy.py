"""The protocols of a policy (states to action probabilities) and of a constraint (states to allowed actions)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError


class Policy(Protocol):
    """Anything that maps users' states to action probabilities."""

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        ...

    def probabilities(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Probability of each action, [users, actions]; rows sum to one.

        `states` are [users, width]; `steps_left` is a number or [users], this step included; `eligible`
        [users, actions] marks the actions that may be taken, None all.
        """
        ...


def normalised(weights: ArrayLike) -> NDArray[np.float64]:
    """Rows [users, actions] of non-negative numbers, divided by their sums in float64."""
    rows = np.asarray(weights, dtype=np.float64)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


# Checks of the arguments of a policy, with messages for its user.


def checked_steps_left(steps_left: ArrayLike, users: int, steps: int) -> NDArray[np.intp]:
    """Steps left as [users], between 1 and the steps of the campaign."""
    given = np.asarray(steps_left)
    if given.shape not in ((), (users,)):
        raise UsageError(f"steps_left must be a number or one for each of {users} users, not {given.shape}")
    left = given if given.shape else np.broadcast_to(given, (users,))
    wrong = (left < 1) | (left > steps)
    if given.dtype.kind != "i":
        wrong |= left != np.floor(left)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UsageError(
            f"row {row} has {left[row]} steps left; it must be a whole number between 1 and the campaign's {steps}"
        )
    return left.astype(np.intp)


def checked_eligible(eligible: ArrayLike | None, users: int, actions: int) -> NDArray[np.bool_] | None:
    """The mask [users, actions], refused unless every user has an eligible action; None, which allows all, stays."""
    if eligible is None:
        return None
    mask = np.asarray(eligible, dtype=bool)
    if mask.shape != (users, actions):
        raise UsageError(f"eligible must be [users, actions] = {(users, actions)}, not {mask.shape}")
    served = mask.any(axis=1)
    if not served.all():
        row = int(np.flatnonzero(~served)[0])
        raise UsageError(f"row {row} has no eligible action; allow at least one, such as sending nothing")
    return mask


def whole_mask(eligible: ArrayLike | None, users: int, actions: int) -> NDArray[np.bool_]:
    """The same, with None written out as a mask [users, actions]."""
    mask = checked_eligible(eligible, users, actions)
    return np.ones((users, actions), dtype=bool) if mask is None else mask


# Constraints: which actions a state allows, in planning, checking and deciding.


Memory = NDArray[np.int16]
"""A constraint's memory of rows, [rows, columns]: known, not predicted, and updated by every action."""


class Constraint(Protocol):
    """Which actions a state allows; if it allows none, the cheapest stays allowed.

    A planner evaluates it at every node of a tree, so that action values account for what is forbidden later. States
    are encoded; rows are users, or nodes of their trees. What must be known of the past is kept in a memory of
    `remembers` columns, zeros if nothing has happened. Its methods are compiled into programs: arrays may be jax
    arrays, so combine them by operators and never change them in place; programs are looked up by the constraint, so it
    must be hashable.

    A small example forbids the dearest action at the last step:

    >>> class NoLastSplurge(Constraint):
    ...     actions = 3
    ...
    ...     def eligible(self, states, steps_left, memory):
    ...         dearest = np.arange(self.actions) == self.actions - 1
    ...         return ~(dearest & (steps_left == 1)[:, None])
    >>> NoLastSplurge().eligible(np.zeros((2, 5), np.float32), np.array([2, 1]), np.zeros((2, 0))).tolist()
    [[True, True, True], [True, True, False]]
    """

    @property
    def remembers(self) -> int:
        """Number of columns of the memory; 0 if it needs none."""
        return 0

    def eligible(self, states: Any, steps_left: Any, memory: Any) -> Any:
        """Allowed actions, [n, actions], in states [n, width] with steps left, this one included, [n] and memory
        [n, columns]."""
        ...

    def after(self, memory: Any, action: NDArray[np.intp]) -> Any:
        """The memory one step later, after rows with a memory [n, columns] got an action [n]."""
        return memory

    def told(self, memory: Any) -> Any:
        """The memory [n, columns] as regressors of values to go: float32, [n, any]."""
        return memory.astype(np.float32)

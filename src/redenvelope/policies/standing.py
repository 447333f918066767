"""Where rows stand: what each may get at any step, and what constraints remember of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.policies.checks import whole_mask
from redenvelope.policies.constraints import Constraint, Memory

__all__ = ["Eligible", "Standing", "allowed", "standing_of"]

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Standing:
    """What is known of rows (users, or nodes of their trees) beside their states."""

    always: BoolArray
    """What each may get at this and every later step, [rows, actions]; at least one action each."""
    memory: Memory
    """Of the constraint, [rows, columns]."""

    def __len__(self) -> int:
        return len(self.always)

    def __getitem__(self, rows: slice | NDArray[np.integer] | BoolArray) -> Standing:
        """Some of the rows, in this order."""
        return Standing(self.always[rows], self.memory[rows])

    def joined(self, other: Standing) -> Standing:
        """These rows, and then others."""
        return Standing(np.concatenate([self.always, other.always]), np.concatenate([self.memory, other.memory]))

    def after(self, constraint: Constraint | None, action: NDArray[np.integer]) -> Standing:
        """One step on, when each row got an action [rows]."""
        if constraint is None or not constraint.remembers:
            return self
        return Standing(self.always, constraint.after(self.memory, action.astype(np.intp)))


Eligible = ArrayLike | Standing | None
"""What rows may get: a mask [rows, actions] for this and every later step, or where they stand; None allows all."""


def standing_of(eligible: Eligible, rows: int, actions: int, constraint: Constraint | None) -> Standing:
    """Where rows stand; a mask, or nothing, says that nothing has happened yet."""
    columns = 0 if constraint is None else constraint.remembers
    if not isinstance(eligible, Standing):
        return Standing(whole_mask(eligible, rows, actions), np.zeros((rows, columns), np.int16))
    whole_mask(eligible.always, rows, actions)
    if eligible.memory.shape != (rows, columns):
        raise UsageError(
            f"what the rules remember must be [rows, columns] = {(rows, columns)}, not {eligible.memory.shape}"
        )
    return eligible


def allowed(
    standing: Standing, constraint: Constraint | None, states: NDArray[np.float32], steps_left: NDArray[np.intp]
) -> BoolArray:
    """What rows with states [rows, width] and steps left [rows] may get now, [rows, actions].

    A row with nothing left gets the cheapest action that it may ever get.
    """
    own = standing.always
    if constraint is None:
        return own
    said = np.asarray(constraint.eligible(states, steps_left, standing.memory), dtype=bool)
    if said.shape != own.shape:
        raise UsageError(f"a constraint must answer with a mask of shape {own.shape}, not {said.shape}")
    both: BoolArray = own & said
    nothing = np.flatnonzero(~both.any(axis=1))
    both[nothing, own[nothing].argmax(axis=1)] = True
    return both

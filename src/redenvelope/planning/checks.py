"""Checks of what a planner is given, in words that its user understands."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import ModelError, UsageError

__all__ = ["checked_eligible", "checked_states", "checked_steps_left"]


def checked_states(states: ArrayLike, columns: tuple[str, ...] = ()) -> NDArray[np.float32]:
    """States as finite float32 [users, width]; `columns` [width] names the columns for the message."""
    rows = np.asarray(states, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise UsageError(f"states must be [users, width], not of shape {rows.shape}")
    wrong = ~np.isfinite(rows)
    if wrong.any():
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        name = f"column '{columns[column]}'" if column < len(columns) else f"column {column}"
        others = int(wrong.sum()) - 1
        more = f", and {others} more cells like it" if others else ""
        raise ModelError(
            f"row {row} of the states holds {rows[row, column]} in {name}{more}: a plan needs a number in "
            "every feature; fill in what is missing as it was done for training, or leave the user out"
        )
    return rows


def checked_steps_left(steps_left: ArrayLike, users: int, steps: int) -> NDArray[np.intp]:
    """Steps left as [users], between 1 and the steps of the campaign."""
    given = np.asarray(steps_left)
    if given.shape not in ((), (users,)):
        raise UsageError(f"steps_left must be a number or one for each of {users} users, not {given.shape}")
    left = np.broadcast_to(given, (users,))
    wrong = (left < 1) | (left > steps) | (left != np.floor(left))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UsageError(
            f"row {row} has {left[row]} steps left; it must be a whole number between 1 and the campaign's {steps}"
        )
    return left.astype(np.intp)


def checked_eligible(eligible: ArrayLike | None, users: int, actions: int) -> NDArray[np.bool_] | None:
    """A mask [users, actions] in which every user has an action left, or None."""
    if eligible is None:
        return None
    mask = np.asarray(eligible, dtype=bool)
    if mask.shape != (users, actions):
        raise UsageError(f"eligible must be [users, actions] = {(users, actions)}, not {mask.shape}")
    barred = ~mask.any(axis=1)
    if barred.any():
        row = int(np.flatnonzero(barred)[0])
        raise UsageError(f"row {row} has no eligible action; allow at least one, such as sending nothing")
    return mask

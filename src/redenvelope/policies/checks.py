"""Checks of what a policy is asked, in words that its user understands."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError

__all__ = ["checked_eligible", "checked_steps_left", "whole_mask"]


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
    """A mask [users, actions] in which every user has an action left, or None, which allows all."""
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


def whole_mask(eligible: ArrayLike | None, users: int, actions: int) -> NDArray[np.bool_]:
    """The same as a mask [users, actions] in any case."""
    mask = checked_eligible(eligible, users, actions)
    return np.ones((users, actions), dtype=bool) if mask is None else mask

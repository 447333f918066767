"""Quick checks of what is asked about one user; what is wrong is said by the checks of many."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from redenvelope.planning.checks import checked_states
from redenvelope.policies.checks import checked_eligible, checked_steps_left
from redenvelope.policies.constraints import Constraint
from redenvelope.policies.standing import Standing, standing_of

__all__ = ["OneEligible", "one_standing", "penalties", "require_asked"]

BoolArray = NDArray[np.bool_]
OneEligible = Standing | BoolArray | None
"""What one user may get: a mask [actions], or where the user stands, as one row; None is all."""


def require_asked(
    state: NDArray[np.float32],
    steps_left: int,
    steps: int,
    eligible: OneEligible,
    actions: int,
    columns: tuple[str, ...] = (),
) -> None:
    """Raise unless a state [width] is finite, 1 to `steps` steps are left, and some action is eligible."""
    if not math.isfinite(np.add.reduce(state)):
        checked_states(state[None], columns)
    if not 1 <= steps_left <= steps:
        checked_steps_left(steps_left, 1, steps)
    if isinstance(eligible, Standing):
        return
    if eligible is not None and not (eligible.shape == (actions,) and eligible.any()):
        checked_eligible(eligible[None], 1, actions)


def one_standing(eligible: OneEligible, actions: int, constraint: Constraint | None) -> Standing | None:
    """Where the user stands, one row; None where nothing is ruled out."""
    if eligible is None and constraint is None:
        return None
    mask = eligible[None] if isinstance(eligible, np.ndarray) else eligible
    return standing_of(mask, 1, actions, constraint)


def penalties(allowed: BoolArray) -> NDArray[np.float64]:
    """−inf for what may not be chosen, else 0."""
    return np.where(allowed, 0.0, -np.inf)

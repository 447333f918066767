"""Quick checks of what is asked about one user; what is wrong is said by the checks of many."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from redenvelope.planning.checks import checked_states
from redenvelope.policies.checks import checked_eligible, checked_steps_left

__all__ = ["penalties", "require_state", "require_steps_left"]


def require_state(state: NDArray[np.float32], columns: tuple[str, ...]) -> None:
    """Raise unless a state [width] holds finite numbers; `columns` [width] names them for the message."""
    if not math.isfinite(np.add.reduce(state)):
        checked_states(state[None], columns)


def require_steps_left(steps_left: int, steps: int) -> None:
    """Raise unless there are between 1 and `steps` steps left."""
    if not 1 <= steps_left <= steps:
        checked_steps_left(steps_left, 1, steps)


def penalties(eligible: NDArray[np.bool_] | None, actions: int) -> NDArray[np.float64] | None:
    """−inf for each action [actions] that may not be chosen, else 0; None where all may."""
    if eligible is None:
        return None
    if eligible.shape != (actions,) or not eligible.any():
        checked_eligible(eligible[None], 1, actions)
    return np.where(eligible, 0.0, -np.inf)

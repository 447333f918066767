"""The one question that a policy answers: with what probability does a user get each action?"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Policy", "normalised"]


class Policy(Protocol):
    """Anything that decides."""

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
    """Rows [users, actions] of numbers of at least 0, divided by their sums in float64."""
    rows = np.asarray(weights, dtype=np.float64)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))

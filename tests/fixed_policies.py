"""Policies that look at nothing but which actions are eligible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.policies.policy import normalised, whole_mask

__all__ = ["CheapestPolicy", "DearestPolicy", "UniformPolicy"]


@dataclass(frozen=True)
class UniformPolicy:
    """Every eligible action with the same probability."""

    actions: int

    def probabilities(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """[users, actions]."""
        return normalised(_mask(states, eligible, self.actions))


@dataclass(frozen=True)
class CheapestPolicy:
    """The eligible action that comes first in the catalogue, which is sorted by mean cost.

    Cheapest at each step: over a sequence a planner at an infinite dual may be cheaper still.
    """

    actions: int

    def probabilities(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """[users, actions]."""
        return _one_hot(_mask(states, eligible, self.actions).argmax(axis=1), self.actions)


@dataclass(frozen=True)
class DearestPolicy:
    """The eligible action that comes last in the catalogue, which is sorted by mean cost."""

    actions: int

    def probabilities(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """[users, actions]."""
        from_last = _mask(states, eligible, self.actions)[:, ::-1].argmax(axis=1)
        return _one_hot(self.actions - 1 - from_last, self.actions)


def _mask(states: ArrayLike, eligible: ArrayLike | None, actions: int) -> NDArray[np.bool_]:
    return whole_mask(eligible, np.shape(states)[0], actions)


def _one_hot(chosen: NDArray[np.intp], actions: int) -> NDArray[np.float64]:
    return np.eye(actions)[chosen]

"""Mixtures: each user follows one of a few policies from the first step to the last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from redenvelope.chance import user_fraction
from redenvelope.errors import UsageError
from redenvelope.policies.policy import Policy

__all__ = ["MixturePolicy"]

FloatArray = NDArray[np.float64]

# Weights come out of a division or two.
_WEIGHT_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class MixturePolicy:
    """Policies and the shares of users who follow them.

    Drawn once a user, not once a step: only then are its mean cost and reward the weighted means of
    those of its components, which is how two hard plans land on a budget exactly.
    """

    components: tuple[Policy, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.components or len(self.components) != len(self.weights):
            raise UsageError(
                f"a mixture needs a weight for each policy, not {len(self.weights)} for {len(self.components)}"
            )
        if min(self.weights) < 0 or abs(sum(self.weights) - 1) > _WEIGHT_TOLERANCE:
            raise UsageError(f"the weights of a mixture must be shares that sum to 1, not {self.weights}")
        if len({component.actions for component in self.components}) > 1:
            raise UsageError("the policies of a mixture must share one action catalogue")

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.components[0].actions

    def draw(self, users: Iterable[object], seed: int) -> NDArray[np.intp]:
        """The component that each user follows, [users].

        Depends on the written form of the user's name and on the seed alone, so that a user keeps the
        same component at every step, in every batch and on every machine.
        """
        if len(self.components) == 1:
            return np.zeros(len(list(users)), dtype=np.intp)
        names = users if isinstance(users, pl.Series) else pl.Series([str(user) for user in users])
        # The last bound is left out: rounding must not leave a user beyond it.
        return np.searchsorted(np.cumsum(self.weights)[:-1], user_fraction(names, "pricing", seed), side="right")

    def probabilities_for(
        self,
        drawn: NDArray[np.intp],
        states: ArrayLike,
        steps_left: ArrayLike,
        eligible: ArrayLike | None = None,
    ) -> FloatArray:
        """Probabilities [users, actions] of users who follow the components `drawn` [users]."""
        rows = np.asarray(states)
        left = np.broadcast_to(np.asarray(steps_left), (len(rows),))
        result = np.empty((len(rows), self.actions))
        for position in np.unique(drawn):
            users = np.flatnonzero(drawn == position)
            mask = None if eligible is None else np.asarray(eligible)[users]
            result[users] = self.components[position].probabilities(rows[users], left[users], mask)
        return result

    def mix(self, values: ArrayLike) -> FloatArray:
        """The mixture's value from those of its components: [components, ...] -> [...]."""
        return np.asarray(np.tensordot(self.weights, np.asarray(values, dtype=np.float64), axes=1))

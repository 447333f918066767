"""Learned values behind the interfaces of planning: a policy at one price, a price function over prices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.planning.learned_values import LearnedValues, checked_duals
from redenvelope.policies.policy import normalised
from redenvelope.policies.standing import Eligible, Standing

__all__ = ["LearnedPolicy", "LearnedPrice"]

FloatArray = NDArray[np.float64]

_VALUES_AT_ONCE = 2**26  # numbers kept between the steps of a search: 256 MB


@dataclass(frozen=True, eq=False)
class LearnedPolicy:
    """Takes what learned values find best, at one price of cost."""

    learned: LearnedValues
    dual: float
    """Price of one unit of cost; infinity looks at cost alone."""

    def __post_init__(self) -> None:
        self.learned.around(checked_duals(self.dual))

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.learned.actions

    def probabilities(self, states: ArrayLike, steps_left: ArrayLike, eligible: Eligible = None) -> FloatArray:
        """[users, width], a number or [users], and [users, actions] -> [users, actions]."""
        return normalised(self.learned.values(states, steps_left, self.dual, eligible).probabilities[:, 0])


@dataclass(frozen=True, eq=False)
class LearnedPrice:
    """A price function without any training: what the values say of the users' first states."""

    learned: LearnedValues
    states: NDArray[np.float32]
    """First states, [users, width]."""
    steps_left: NDArray[np.int64] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: Standing | NDArray[np.bool_] | None = None
    """Where users stand, or a mask [users, actions]; None allows all."""

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Mean outcomes at prices [prices, 1], without entropy bonus, [outcomes, prices]."""
        duals = checked_duals(prices)
        sums = np.zeros((2, len(duals)))
        for values, allowed in [self._whole] if self._size >= len(self.states) else map(self._part, self._parts()):
            sums += self.learned.between(values, allowed, duals).expected().sum(axis=1)
        return sums / len(self.states)

    @property
    def _size(self) -> int:
        """Users whose values fit in memory at once."""
        return _VALUES_AT_ONCE // (len(self.learned.duals) * self.learned.components * self.learned.actions)

    def _parts(self) -> list[slice]:
        return [slice(first, first + self._size) for first in range(0, len(self.states), self._size)]

    def _part(self, users: slice) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The values of some users, at the prices learned; see `LearnedValues.at_knots`."""
        left = np.broadcast_to(self.learned.steps if self.steps_left is None else self.steps_left, (len(self.states),))
        mask = None if self.eligible is None else self.eligible[users]
        return self.learned.at_knots(self.states[users], left[users], mask)

    @cached_property
    def _whole(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        # The networks need not be asked again at every step of a search.
        return self._part(slice(None))

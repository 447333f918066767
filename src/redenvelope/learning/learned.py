"""Learned values behind the interfaces of planning: a policy at one dual, a price function over duals."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.learning.settings import StageProgress
from redenvelope.learning.soft_q import SoftQ
from redenvelope.learning.values import LearnedValues, scaled_dual
from redenvelope.policies.policy import normalised
from redenvelope.prices import checked_prices

__all__ = ["LearnedPolicy", "LearnedPrice", "RetrainedPrice"]

FloatArray = NDArray[np.float64]

_VALUES_AT_ONCE = 2**26  # numbers kept between the steps of a search: 256 MB


@dataclass(frozen=True, eq=False)
class LearnedPolicy:
    """Takes what learned values find best, at one price of cost."""

    values: LearnedValues
    dual: float
    """Price of one unit of cost; infinity looks at cost alone."""

    def __post_init__(self) -> None:
        self.values.around([self.dual])

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.values.actions

    def probabilities(self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None) -> FloatArray:
        """[users, width], a number or [users], and [users, actions] -> [users, actions]."""
        return normalised(self.values.worth(states, steps_left, [self.dual], eligible).probabilities[:, 0])


@dataclass(frozen=True, eq=False)
class LearnedPrice:
    """A price function without any training: what the values say of the users' first states."""

    values: LearnedValues
    states: NDArray[np.float32]
    """First states, [users, width]."""
    steps_left: NDArray[np.int64] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: NDArray[np.bool_] | None = None
    """[users, actions]; None allows all."""

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Prices [prices, budgets] -> mean reward and cost, without entropy bonus, [outcomes, prices]."""
        duals = checked_prices(prices)[:, 0]
        sums = np.zeros((2, len(duals)))
        for values, allowed in [self._whole] if self._size >= len(self.states) else map(self._part, self._parts()):
            worth = self.values.between(values, allowed, duals)
            for place, to_go in enumerate((worth.reward_to_go, worth.cost_to_go)):
                sums[place] += np.einsum("nda,nda->nd", worth.probabilities, to_go).sum(axis=0, dtype=np.float64)
        return np.asarray(sums / len(self.states))

    @property
    def _size(self) -> int:
        """Users whose values fit in memory at once."""
        return _VALUES_AT_ONCE // (len(self.values.duals) * self.values.components * self.values.actions)

    def _parts(self) -> list[slice]:
        return [slice(first, first + self._size) for first in range(0, len(self.states), self._size)]

    def _part(self, users: slice) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The values of some users, at the duals learned; see `LearnedValues.at_knots`."""
        left = np.broadcast_to(self.values.steps if self.steps_left is None else self.steps_left, (len(self.states),))
        mask = None if self.eligible is None else self.eligible[users]
        return self.values.at_knots(self.states[users], left[users], mask)

    @cached_property
    def _whole(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        # The networks need not be asked again at every step of a search.
        return self._part(slice(None))


@dataclass(eq=False)
class RetrainedPrice:
    """A price function that learns anew at every dual it is asked for, from the nearest one it knows."""

    learner: SoftQ
    states: NDArray[np.float32]
    """First states, [users, width]."""
    temperature: float = 0.0
    steps_left: NDArray[np.int64] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: NDArray[np.bool_] | None = None
    """[users, actions]; None allows all."""
    progress: StageProgress | None = None
    known: dict[float, LearnedValues] = field(default_factory=dict)
    """The values learned so far, by dual."""

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Prices [prices, budgets] -> mean reward and cost, without entropy bonus, [outcomes, prices]."""
        points = []
        for row in checked_prices(prices):
            price = LearnedPrice(self.values(float(row[0])), self.states, self.steps_left, self.eligible)
            points.append(price(row[None]))
        return np.concatenate(points, axis=1)

    def values(self, dual: float) -> LearnedValues:
        """The values at a dual, learned if they are not known yet."""
        if not dual >= 0:
            raise UsageError(f"dual must be a number of at least 0 or infinity, not {dual}")
        if dual not in self.known:
            warm = self.known[self._nearest(dual)] if self.known else None
            self.known[dual] = self.learner.learn([dual], self.temperature, warm, self.progress)
        return self.known[dual]

    def policy(self, dual: float) -> LearnedPolicy:
        """The policy at a dual."""
        return LearnedPolicy(self.values(dual), dual)

    def _nearest(self, dual: float) -> float:
        known = np.array(sorted(self.known))
        unit = self.learner.unit
        return float(known[np.abs(scaled_dual(known, unit) - scaled_dual(np.array(dual), unit)).argmin()])

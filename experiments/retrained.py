"""Values learned again at every price of a search, the paper's Algorithm 2; and the policy that values make at a price.

`fit` has no use for either: its values are learned for all prices at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.learning.backward import StageProgress
from redenvelope.learning.soft_q import SoftQ
from redenvelope.planning.q_values import LearnedPrice, LearnedValues, checked_duals
from redenvelope.policies.eligibility_state import EligibilityState, Eligible
from redenvelope.policies.policy import normalised
from redenvelope.prices import scaled_dual


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


@dataclass(eq=False)
class RetrainedPrice:
    """A price function that learns again at every price, starting from the nearest known one."""

    learner: SoftQ
    states: NDArray[np.float32]
    """First states, [users, width]."""
    temperature: float = 0.0
    steps_left: NDArray[np.int64] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: EligibilityState | NDArray[np.bool_] | None = None
    """Eligibility of the users, or a mask [users, actions]; None allows all."""
    progress: StageProgress | None = None
    known: dict[float, LearnedValues] = field(default_factory=dict)
    """The values learned so far, by dual."""

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Mean outcomes at prices [prices, 1], without entropy bonus, [outcomes, prices]."""
        points = [
            LearnedPrice(self.learned(dual), self.states, self.steps_left, self.eligible)(np.array([[dual]]))
            for dual in checked_duals(prices).tolist()
        ]
        return np.concatenate(points, axis=1)

    def learned(self, dual: float) -> LearnedValues:
        """The values at a dual, learned unless they are known."""
        (dual,) = checked_duals(dual).tolist()
        if dual not in self.known:
            warm = self.known[self._nearest(dual)] if self.known else None
            self.known[dual] = self.learner.learn([dual], self.temperature, warm, self.progress)
        return self.known[dual]

    def policy(self, dual: float) -> LearnedPolicy:
        """The policy at a dual."""
        return LearnedPolicy(self.learned(dual), dual)

    def _nearest(self, dual: float) -> float:
        known = np.array(sorted(self.known))
        unit = self.learner.unit
        return float(known[np.abs(scaled_dual(known, unit) - scaled_dual(np.array(dual), unit)).argmin()])

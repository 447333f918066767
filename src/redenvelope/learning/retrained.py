"""A price function that learns anew at every price it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from redenvelope.learning.settings import StageProgress
from redenvelope.learning.soft_q import SoftQ
from redenvelope.planning.learned_price import LearnedPolicy, LearnedPrice
from redenvelope.planning.learned_values import LearnedValues, checked_duals, scaled_dual
from redenvelope.policies.standing import Standing

__all__ = ["RetrainedPrice"]

FloatArray = NDArray[np.float64]


@dataclass(eq=False)
class RetrainedPrice:
    """Learns at a price from the nearest one it knows."""

    learner: SoftQ
    states: NDArray[np.float32]
    """First states, [users, width]."""
    temperature: float = 0.0
    steps_left: NDArray[np.int64] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: Standing | NDArray[np.bool_] | None = None
    """Where users stand, or a mask [users, actions]; None allows all."""
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
        """The values at a dual, learned if they are not known yet."""
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

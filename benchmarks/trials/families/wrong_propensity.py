"""Wrong propensity: for one action the log writes down another probability than it was drawn with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trials.families.laws import FloatArray, State
from trials.families.sending import Sending


@dataclass(frozen=True)
class WrongPropensity(Sending):
    """The dearest action was drawn less, or more, often than the log says."""

    @property
    def factor(self) -> float:
        """What the propensity of the dearest action is multiplied by."""
        return float(np.random.default_rng([self.seed, 6]).choice([0.6, 0.7, 1.4, 1.6]))

    def noted(self, probabilities: FloatArray, state: State, step: int) -> FloatArray:
        """See Laws."""
        wrong = np.ones(probabilities.shape[1])
        wrong[-1] = self.factor
        return np.minimum(probabilities * wrong, 1.0)

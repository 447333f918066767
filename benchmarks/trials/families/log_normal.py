"""Log-normal amounts: what a redemption costs has a moderately heavy tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trials.families.laws import FloatArray
from trials.families.sending import Sending


@dataclass(frozen=True)
class LogNormal(Sending):
    """Redemptions cost their amount on average, spread by a log-normal."""

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm."""
        return float(np.random.default_rng([self.seed, 5]).uniform(0.8, 1.3))

    def noise(self, users: int, generator: np.random.Generator) -> FloatArray:
        """See Sending: mean 1."""
        return generator.lognormal(-(self.spread**2) / 2, self.spread, size=users)

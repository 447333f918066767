"""Leaving: users stay with .45, .9 or .95, by what they were sent; who leaves has no further rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import State
from trials.families.sending import Sending

STAYING = np.array([0.45, 0.9, 0.95])


@dataclass(frozen=True)
class Leaving(Sending):
    """Envelopes keep users."""

    @property
    def steps(self) -> int:
        """Decisions of a user who stays."""
        return 5

    def stays(self, state: State, action: NDArray[np.intp], generator: np.random.Generator) -> NDArray[np.bool_]:
        """See Sending."""
        return np.asarray(generator.random(len(action)) < STAYING[action])

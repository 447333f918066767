"""Seasons: how users respond changes with the calendar, which the log shows as the week; users enter all year."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import FloatArray, State
from trials.families.sending import Sending, sigmoid

_YEAR = 26


@dataclass(frozen=True)
class Seasons(Sending):
    """Level and lift are waves over half a year of weeks."""

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        return {**super().start(users, generator, rare), "entered": generator.integers(_YEAR, size=users)}

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """See Laws."""
        return {**super().features(state, step), "week": (state["entered"] + 3 * step) % _YEAR}

    def activity(self, state: State, step: int) -> FloatArray:
        """See Sending."""
        own, week = self.parameters, state["entered"] + 3 * step
        phase = float(np.random.default_rng([self.seed, 7]).uniform(0, 2 * np.pi))
        wave = np.sin(2 * np.pi * week / _YEAR + phase)
        level = own["base"] + own["segments"][state["segment"]] + own["warm"] * state["warm"] + 0.5 * wave
        lifts = (own["segment_lifts"][state["segment"]] * (1 + 0.8 * wave))[:, None] * own["lifts"]
        return sigmoid(level[:, None] + lifts)

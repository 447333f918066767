"""Users of the envelopes campaign who walk in one after another, and do what they do with what they are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.simulate.envelope_dynamics import state_rows
from redenvelope.simulate.envelopes import EnvelopeCampaign, envelope_frame

__all__ = ["EnvelopeCrowd"]

FloatArray = NDArray[np.float64]
_STREAM = 4  # other users than those of a log, of the population and of a run


class EnvelopeCrowd:
    """Some users of a campaign, each at a state of their own; `consumption` turns redemption up or down."""

    def __init__(self, campaign: EnvelopeCampaign, users: int, seed: int, consumption: float = 1.0) -> None:
        self._campaign = campaign
        self._generator = np.random.default_rng([seed, _STREAM])
        drawn = campaign.users.take(self._generator.integers(len(campaign.users), size=users))
        self._state = state_rows(drawn.habits, drawn.fatigues, np.zeros_like(drawn.habits))
        self._users = replace(drawn, consumption=np.clip(drawn.consumption * consumption, 0.0, 1.0))

    def __len__(self) -> int:
        return len(self._users)

    def seen(self, rows: NDArray[np.intp], step: int) -> list[dict[str, Any]]:
        """The features of some users, by name."""
        frame = envelope_frame(self._users, rows, rows, np.full(len(rows), step), self._state[rows])
        return frame.drop("user", "step").to_dicts()

    def happen(self, rows: NDArray[np.intp], action: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Rewards and costs [rows] of what some users were given; they are at their next state then."""
        dynamics = self._campaign.dynamics
        active, used, following = dynamics.happen(self._users.take(rows), self._state[rows], action, self._generator)
        self._state[rows] = following
        return active.astype(np.float64), used * dynamics.amounts[action]

"""Envelopes: the package's own campaign of users with features, habits and fatigue, with random parameters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[3]))

from experiments.random_campaigns import random_parameters

from redenvelope.simulate.dynamics import (
    OUTCOMES,
    EnvelopeDynamics,
    EnvelopeUsers,
    draw_users,
    state_parts,
    state_rows,
)
from trials.families.laws import FloatArray, Happened, State

_TRAITS = ("activity", "lifts", "consumption", "logging_tilts", "habits", "fatigues")


@dataclass(frozen=True)
class Envelopes:
    """Random parameters under the laws of `EnvelopeCampaign`."""

    seed: int

    @cached_property
    def dynamics(self) -> EnvelopeDynamics:
        """The campaign's laws."""
        return EnvelopeDynamics(random_parameters(self.seed))

    @property
    def actions(self) -> tuple[str, ...]:
        """See Laws."""
        return tuple(str(amount) for amount in self.dynamics.parameters.amounts)

    @property
    def steps(self) -> int:
        """See Laws."""
        return self.dynamics.parameters.steps

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        drawn = draw_users(self.dynamics.parameters, users, generator)
        state = state_rows(drawn.habits, drawn.fatigues, np.zeros_like(drawn.habits))
        shown = {f"shown {name}": drawn.features[name].to_numpy() for name in drawn.features.columns}
        return {name: getattr(drawn, name) for name in _TRAITS} | shown | {"state": state}

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """See Laws."""
        habit, fatigue, outcome = state_parts(state["state"])
        static = {name.removeprefix("shown "): column for name, column in state.items() if name.startswith("shown ")}
        return static | {"habit": habit, "fatigue": fatigue, "last_outcome": np.array(OUTCOMES)[outcome]}

    def logger(self, state: State, step: int) -> FloatArray:
        """See Laws."""
        return self.dynamics.logging_policy(_users(state), state["state"])

    def noted(self, probabilities: FloatArray, state: State, step: int) -> FloatArray:
        """See Laws: the true ones."""
        return probabilities

    def means(self, state: State, step: int) -> FloatArray:
        """See Laws."""
        users, here = _users(state), state["state"]
        every = [np.full(len(here), action) for action in range(len(self.actions))]
        active = np.stack([self.dynamics.activity(users, here, action) for action in every], axis=1)
        return np.stack([active, active * users.consumption[:, None] * self.dynamics.amounts])

    def happen(self, state: State, step: int, action: NDArray[np.intp], generator: np.random.Generator) -> Happened:
        """See Laws."""
        active, used, following = self.dynamics.happen(_users(state), state["state"], action, generator)
        cost = used * self.dynamics.amounts[action]
        return Happened(
            active.astype(np.float64), cost, {**state, "state": following}, np.ones(len(action), dtype=bool)
        )


def _users(state: State) -> EnvelopeUsers:
    """What differs between users; their features play no part in what happens."""
    return EnvelopeUsers(pl.DataFrame(), *(state[name] for name in _TRAITS))

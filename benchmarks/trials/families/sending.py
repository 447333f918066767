"""The plain campaign that most families are a variation of: envelopes of several amounts, and all that matters shown.

An active user is a reward; an envelope that an active user redeems is a cost. Being active now makes it likelier to be
active next (`warm`), and moves a number of visits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import FloatArray, Happened, State

SEGMENTS = ("new", "loyal", "dormant")


@dataclass(frozen=True)
class Sending:
    """Everything relevant is a feature; the control of all families."""

    seed: int

    @cached_property
    def amounts(self) -> FloatArray:
        """Money in each envelope, [actions]."""
        generator = np.random.default_rng([self.seed, 1])
        return np.array([0.0, *np.round(np.sort(generator.uniform([1.0, 3.0], [2.5, 6.0])), 1)])

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Of the response, varying by campaign."""
        generator = np.random.default_rng([self.seed, 2])
        lift = generator.uniform(0.5, 1.2)
        return {
            "base": generator.uniform(-1.3, -0.4),
            "lifts": np.array([0.0, lift, lift + generator.uniform(0.3, 0.9)]),
            "segments": generator.normal(0.0, 0.4, size=len(SEGMENTS)),
            "segment_lifts": generator.uniform(0.6, 1.4, size=len(SEGMENTS)),
            "affinity": generator.uniform(0.1, 0.5),
            "warm": generator.uniform(0.4, 1.0),
            "redeemed": generator.uniform(0.35, 0.6),
            "tilt": generator.normal(0.0, 0.3, size=3),
        }

    @property
    def actions(self) -> tuple[str, ...]:
        """The amounts as text."""
        return tuple(f"{amount:g}" for amount in self.amounts)

    @property
    def steps(self) -> int:
        """Decisions per user."""
        return 4

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        return {
            "segment": generator.integers(len(SEGMENTS), size=users),
            "affinity": generator.standard_normal(users),
            "warm": generator.random(users) < 0.4,
            "visits": generator.gamma(2.0, 1.0, size=users),
        }

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """See Laws."""
        return {
            "segment": np.array(SEGMENTS)[state["segment"]],
            "affinity": state["affinity"],
            "warm": state["warm"],
            "visits": state["visits"],
        }

    def logger(self, state: State, step: int) -> FloatArray:
        """See Laws: sends less to the warm, and anything to anybody."""
        tilt = self.parameters["tilt"][state["segment"]] - 0.5 * state["warm"]
        weights = np.exp(tilt[:, None] * np.linspace(0, 1, len(self.actions)))
        return np.asarray(0.8 * weights / weights.sum(axis=1, keepdims=True) + 0.2 / len(self.actions))

    def noted(self, probabilities: FloatArray, state: State, step: int) -> FloatArray:
        """See Laws: the true ones."""
        return probabilities

    def activity(self, state: State, step: int) -> FloatArray:
        """Chance of being active with every action, [users, actions]."""
        own = self.parameters
        level = own["base"] + own["segments"][state["segment"]] + own["affinity"] * state["affinity"]
        level = level + own["warm"] * state["warm"] + 0.1 * (state["visits"] - 2)
        return sigmoid(level[:, None] + own["segment_lifts"][state["segment"]][:, None] * own["lifts"])

    def redemption(self, state: State, step: int) -> FloatArray:
        """Chance that an active user redeems what was sent, [users]."""
        return np.full(len(state["segment"]), self.parameters["redeemed"])

    def size(self, state: State) -> FloatArray:
        """What a user's redemption costs, in amounts, [users]."""
        return np.ones(len(state["segment"]))

    def noise(self, users: int, generator: np.random.Generator) -> FloatArray:
        """What a redemption costs by chance, in its mean, [users]."""
        return np.ones(users)

    def means(self, state: State, step: int) -> FloatArray:
        """See Laws."""
        active = self.activity(state, step)
        redeemed = (self.redemption(state, step) * self.size(state))[:, None] * self.amounts
        return np.stack([active, active * redeemed])

    def happen(self, state: State, step: int, action: NDArray[np.intp], generator: np.random.Generator) -> Happened:
        """See Laws."""
        draws = generator.random((2, len(action)))
        active = draws[0] < self.activity(state, step)[np.arange(len(action)), action]
        used = active & (draws[1] < self.redemption(state, step))
        cost = used * self.amounts[action] * self.size(state) * self.noise(len(action), generator)
        stays = self.stays(state, action, generator)
        return Happened(active.astype(np.float64), cost, self.moved(state, action, active, generator), stays)

    def moved(
        self, state: State, action: NDArray[np.intp], active: NDArray[np.bool_], generator: np.random.Generator
    ) -> State:
        """The state that follows."""
        visits = 0.6 * state["visits"] + active + generator.gamma(0.8, 0.5, size=len(action))
        return {**state, "warm": active, "visits": visits}

    def stays(self, state: State, action: NDArray[np.intp], generator: np.random.Generator) -> NDArray[np.bool_]:
        """Who has a next step: everybody."""
        return np.ones(len(action), dtype=bool)


def sigmoid(logits: FloatArray) -> FloatArray:
    """Chances from logits, any shape."""
    return np.asarray(1 / (1 + np.exp(-logits)))

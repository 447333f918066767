"""The envelopes campaign: red envelopes to users with features, habits and fatigue, its optimum exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.finite.evaluate import Value
from redenvelope.simulate.campaign import Decide, Optimum, Run, ask, draw_actions, summarise_run
from redenvelope.simulate.envelope_dynamics import (
    OUTCOMES,
    STATES,
    EnvelopeDynamics,
    state_parts,
    state_rows,
)
from redenvelope.simulate.envelope_parameters import EnvelopeParameters
from redenvelope.simulate.envelope_planning import plan
from redenvelope.simulate.envelope_users import EnvelopeUsers, draw_users
from redenvelope.simulate.landing import bisect_price, climb_envelope

__all__ = ["EnvelopeCampaign", "envelope_frame"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
Choose = Callable[[IndexArray, int, FloatArray], FloatArray]
"""Rows of the population, step and mass [users, states] in, probabilities [users, states, actions] out."""

# Users at a time: tables [users, states, actions] that fit a core's cache, and frames worth a policy's while.
_USERS_PER_TABLE, _USERS_PER_FRAME = 128, 2_048
# The same seed means different users in a log, in the population and in a run.
_LOG_STREAM, _POPULATION_STREAM, _RUN_STREAM = 1, 2, 3


@dataclass(frozen=True)
class EnvelopeCampaign:
    """Users are sent an envelope at every step; an active user is a reward, a consumed envelope a cost.

    The truth is that of a fixed population of fresh users, `population` of them drawn by `population_seed`.
    """

    parameters: EnvelopeParameters = field(default_factory=EnvelopeParameters)
    population: int = 4_000
    population_seed: int = 0
    extra_noise_features: int = 0

    @property
    def actions(self) -> tuple[str, ...]:
        """The amounts as text, rising."""
        return tuple(str(amount) for amount in self.parameters.amounts)

    @property
    def steps(self) -> int:
        """Decisions a user."""
        return self.parameters.steps

    @cached_property
    def dynamics(self) -> EnvelopeDynamics:
        """The campaign's laws."""
        return EnvelopeDynamics(self.parameters)

    @cached_property
    def users(self) -> EnvelopeUsers:
        """The population on which values and optima are taken."""
        return self._draw(self.population, _POPULATION_STREAM, self.population_seed)[0]

    def log(self, users: int, seed: int) -> pl.DataFrame:
        """The contract's columns, then static and dynamic features; a row a user and step, sorted."""
        drawn, generator = self._draw(users, _LOG_STREAM, seed)
        everyone = np.arange(users)
        columns: dict[str, list[NDArray[np.generic]]] = {
            name: [] for name in ("state", "action", "propensity", "reward", "cost")
        }
        state = state_rows(drawn.habits, drawn.fatigues, np.zeros_like(drawn.habits))
        for _ in range(self.steps):
            probabilities = self.dynamics.logging_policy(drawn, state)
            action = draw_actions(probabilities, generator)
            active, used, following = self.dynamics.happen(drawn, state, action, generator)
            happened = (
                state,
                action,
                probabilities[everyone, action],
                active.astype(np.float64),
                used * self.dynamics.amounts[action],
            )
            for column, values in zip(columns.values(), happened, strict=True):
                column.append(values)
            state = following
        flat = {name: np.stack(values, axis=1).reshape(-1) for name, values in columns.items()}
        user = np.repeat(everyone, self.steps)
        frame = envelope_frame(drawn, user, user, np.tile(np.arange(self.steps), users), flat["state"])
        labels = pl.Series("action", self.actions).gather(flat["action"])
        outcomes = [labels, *(pl.Series(name, flat[name]) for name in ("propensity", "reward", "cost"))]
        return frame.select("user", "step", *outcomes, pl.exclude("user", "step"))

    def run(self, decide: Decide, users: int, seed: int) -> Run:
        """Let a policy act on `users` users, drawn from the population with replacement."""
        generator = np.random.default_rng([seed, _RUN_STREAM])
        drawn = self.users.take(generator.integers(len(self.users), size=users))
        everyone = np.arange(users)
        state = state_rows(drawn.habits, drawn.fatigues, np.zeros_like(drawn.habits))
        totals = np.zeros((2, users))
        for step in range(self.steps):
            frame = envelope_frame(drawn, everyone, everyone, np.full(users, step), state)
            action = draw_actions(ask(decide, frame, len(self.actions)), generator)
            active, used, state = self.dynamics.happen(drawn, state, action, generator)
            totals += active, used * self.dynamics.amounts[action]
        return summarise_run(totals)

    def value(self, decide: Decide) -> Value:
        """The exact reward and cost of a policy; it is asked for every state a user may come to be in."""

        def choose(rows: IndexArray, step: int, mass: FloatArray) -> FloatArray:
            row, state = np.nonzero(mass > 0)
            frame = envelope_frame(self.users, rows[row], rows[row], np.full(len(row), step), state)
            probabilities = np.zeros((len(rows), STATES, len(self.actions)))
            probabilities[row, state] = ask(decide, frame, len(self.actions))
            return probabilities

        return self._follow(choose)

    def optimum(self, budget: float) -> Optimum:
        """The most any policy can earn within the budget: exact induction for a price, then a mixture."""
        return climb_envelope(partial(self._price, foresight=1.0), budget)

    def bandit(self, budget: float) -> Optimum:
        """What the constrained bandit earns: the greatest r − λc of each step alone, the truth known."""
        return bisect_price(partial(self._price, foresight=0.0), budget)

    def uniform(self) -> Value:
        """Every envelope equally likely."""
        actions = len(self.actions)
        return self._follow(lambda rows, step, mass: np.full((1, 1, actions), 1 / actions))

    def cheapest(self) -> Value:
        """Always the smallest amount."""
        return self._always(0)

    def dearest(self) -> Value:
        """Always the greatest amount."""
        return self._always(len(self.actions) - 1)

    def _always(self, action: int) -> Value:
        probabilities = np.eye(len(self.actions))[action][None, None, :]
        return self._follow(lambda rows, step, mass: probabilities)

    def _follow(self, choose: Choose) -> Value:
        """Carry every user's distribution over dynamic states forward under a policy."""
        totals = np.zeros(2)
        for rows, users in self._chunks(_USERS_PER_FRAME):
            activities = self.dynamics.activities(users)
            mass = np.zeros((len(users), STATES))
            start = state_rows(users.habits, users.fatigues, np.zeros_like(users.habits))
            mass[np.arange(len(users)), start] = 1.0
            for step in range(self.steps):
                visits = mass[:, :, None] * choose(rows, step, mass)
                active = visits * activities
                consumed = active * users.consumption[:, None, None]
                totals += active.sum(), (consumed @ self.dynamics.amounts).sum()
                mass = self.dynamics.advance(users, activities, visits)
        return Value(totals / len(self.users))

    def _price(self, dual: float, foresight: float) -> Value:
        """Value of the policy that maximises reward − dual · cost now plus `foresight` times that to go."""
        totals = np.zeros(2)
        for _, users in self._chunks(_USERS_PER_TABLE):
            to_go = plan(self.dynamics, users, dual, foresight)
            start = state_rows(users.habits, users.fatigues, np.zeros_like(users.habits))
            totals += to_go[:, np.arange(len(users)), start].sum(axis=1)
        return Value(totals / len(self.users))

    def _chunks(self, size: int) -> Iterator[tuple[IndexArray, EnvelopeUsers]]:
        """The population in parts, each with its rows, so that memory does not grow with it."""
        for first in range(0, len(self.users), size):
            rows = np.arange(first, min(first + size, len(self.users)))
            yield rows, self.users.take(rows)

    def _draw(self, users: int, stream: int, seed: int) -> tuple[EnvelopeUsers, np.random.Generator]:
        if users < 1:
            raise UsageError(f"a campaign needs at least one user, not {users}")
        generator = np.random.default_rng([seed, stream])
        return draw_users(self.parameters, users, generator, self.extra_noise_features), generator


def envelope_frame(
    users: EnvelopeUsers, rows: IndexArray, names: IndexArray, step: IndexArray, state: IndexArray
) -> pl.DataFrame:
    """What a deployed policy sees of some users: columns user, step, and the features; all [rows]."""
    habit, fatigue, outcome = state_parts(state)
    last_outcome = pl.Series("last_outcome", OUTCOMES).gather(outcome)
    dynamic = [pl.Series("habit", habit), pl.Series("fatigue", fatigue), last_outcome]
    known = [pl.Series("user", names), pl.Series("step", step)]
    return pl.DataFrame(known).hstack(users.features[rows]).hstack(dynamic)

"""The envelopes campaign: red envelopes for users with features, habits and fatigue, with an exact optimum.

`RuledEnvelopes` adds a second budget, a cap and an eligibility rule; `EnvelopeCrowd` simulates single users of a live
service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray, IndexArray
from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.records import Budget, Rule
from redenvelope.errors import UsageError
from redenvelope.finite.problem import Value
from redenvelope.prices import checked_prices, outcome_weights
from redenvelope.simulate.campaign import (
    Decide,
    Optimum,
    Run,
    ask,
    bisect_price,
    climb_envelope,
    draw_actions,
    summarise_run,
)
from redenvelope.simulate.dynamics import (
    OUTCOMES,
    STATES,
    Caps,
    EnvelopeDynamics,
    EnvelopeParameters,
    EnvelopeUsers,
    draw_users,
    plan,
    state_parts,
    state_rows,
)

Choose = Callable[[IndexArray, int, FloatArray], FloatArray]
"""A policy: (rows of the population, step, mass [users, states]) -> probabilities [users, states, actions]."""

# Users per block: tables [users, states, actions] that fit the cache, and frames large enough for a policy.
_USERS_PER_TABLE, _USERS_PER_FRAME = 128, 2_048
# With streams, the same seed gives different users in a log, in the population and in a run.
_LOG_STREAM, _POPULATION_STREAM, _RUN_STREAM = 1, 2, 3


@dataclass(frozen=True)
class EnvelopeCampaign:
    """Users may get an envelope at every step; an active user is a reward, a consumed envelope a cost.

    Exact values and optima are those of a fixed population: `population` users drawn with `population_seed`.
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
        """Decisions per user."""
        return self.parameters.steps

    @cached_property
    def dynamics(self) -> EnvelopeDynamics:
        """How users respond to envelopes, and how their states change."""
        return EnvelopeDynamics(self.parameters)

    @cached_property
    def users(self) -> EnvelopeUsers:
        """The population whose values and optima are computed."""
        return self._draw(self.population, _POPULATION_STREAM, self.population_seed)[0]

    def log(self, users: int, seed: int) -> pl.DataFrame:
        """A log: the contract's columns, then static and dynamic features; one row per user and step, sorted."""
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
        """The exact reward and cost of a policy, which is asked for every state that a user may reach."""

        def choose(rows: IndexArray, step: int, mass: FloatArray) -> FloatArray:
            row, state = np.nonzero(mass > 0)
            frame = envelope_frame(self.users, rows[row], rows[row], np.full(len(row), step), state)
            probabilities = np.zeros((len(rows), STATES, len(self.actions)))
            probabilities[row, state] = ask(decide, frame, len(self.actions))
            return probabilities

        return self._follow(choose)

    def optimum(self, budget: float) -> Optimum:
        """The most any policy can earn within the budget: exact backward induction at prices, then a mixture."""
        return climb_envelope(partial(self._price, foresight=1.0), budget)

    def bandit(self, budget: float) -> Optimum:
        """See Campaign."""
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
        """The value of a policy: carries every user's distribution over dynamic states forward."""
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
        """Value of the policy that maximises reward − dual · cost now plus `foresight` times the same to go."""
        return Value(self.planned(outcome_weights(np.array([[dual]])), foresight)[:, 0])

    def planned(self, weights: FloatArray, foresight: float = 1.0, caps: Caps | None = None) -> FloatArray:
        """Mean outcomes of the policies of `plan` at weights [outcomes, prices], in the same shape."""
        totals = np.zeros_like(weights)
        for _, users in self._chunks(_USERS_PER_TABLE):
            start = np.arange(len(users)), state_rows(users.habits, users.fatigues, np.zeros_like(users.habits))
            for place, weight in enumerate(weights.T):
                totals[:, place] += plan(self.dynamics, users, weight, foresight, caps)[:, *start].sum(axis=1)
        return totals / len(self.users)

    def _chunks(self, size: int) -> Iterator[tuple[IndexArray, EnvelopeUsers]]:
        """The population in blocks that bound memory: rows and users of each."""
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
    """The frame that a deployed policy sees of some users: user, step and features; all arguments [rows]."""
    habit, fatigue, outcome = state_parts(state)
    last_outcome = pl.Series("last_outcome", OUTCOMES).gather(outcome)
    dynamic = [pl.Series("habit", habit), pl.Series("fatigue", fatigue), last_outcome]
    known = [pl.Series("user", names), pl.Series("step", step)]
    return pl.DataFrame(known).hstack(users.features[rows]).hstack(dynamic)


@dataclass(frozen=True)
class RuledEnvelopes:
    """Budgets for money and for envelopes; per user at most `most` large envelopes, the largest only from a minimum
    tenure on.

    The largest reward within rules and budgets is that of `solve_budgets(campaign.price, campaign.limits)`.
    """

    envelopes: EnvelopeCampaign = field(default_factory=EnvelopeCampaign)
    limits: tuple[float, float] = (2.0, 2.0)
    """Money and number of envelopes per user."""
    audience: int | None = 50_000
    """Number of users of the campaign; the money is then given as a total."""
    large: tuple[str, ...] = ("5", "8")
    most: int = 2
    """How many large envelopes a user may get."""
    least_tenure: int = 30
    """Days of tenure from which a user may get the largest envelope."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Labels of the actions, by increasing cost."""
        return self.envelopes.actions

    @property
    def steps(self) -> int:
        """Decisions per user."""
        return self.envelopes.steps

    @property
    def rules(self) -> Campaign:
        """The campaign as its campaign.toml describes it."""
        sent = tuple(label for label in self.actions if label != "0")
        money, envelopes = self.limits
        if self.audience is None:
            coupons = Budget("money", column="cost", per_user=money)
        else:
            coupons = Budget("money", column="cost", total=money * self.audience)
        return Campaign(
            budgets=(coupons, Budget("envelopes", count=sent, per_user=envelopes)),
            rules=(
                Rule(self.actions[-1:], only_where=f"tenure_days >= {self.least_tenure}"),
                Rule(self.large, at_most=self.most),
            ),
            audience=self.audience,
        )

    def toml(self) -> str:
        """The text of campaign.toml."""

        def labels(given: tuple[str, ...]) -> str:
            return "[" + ", ".join(f'"{label}"' for label in given) + "]"

        money, envelopes = self.rules.budgets
        audience = "" if self.audience is None else f"audience = {self.audience}\n"
        limit = f"per_user = {money.per_user:g}" if money.total is None else f"total = {money.total:g}"
        return f"""# The rules of a simulated campaign: redenvelope fit reads them beside its log.
{audience}[[budget]]
name = "money"
column = "cost"
{limit}
[[budget]]
name = "envelopes"
count = {labels(envelopes.count or ())}
per_user = {envelopes.per_user:g}
[[rule]]
actions = {labels(self.actions[-1:])}
only_where = "tenure_days >= {self.least_tenure}"
[[rule]]
actions = {labels(self.large)}
at_most = {self.most}
"""

    def log(self, users: int, seed: int) -> pl.DataFrame:
        """A log of `users` new users, made without the rules: the contract's columns, then the features."""
        return self.envelopes.log(users, seed)

    @property
    def caps(self) -> Caps:
        """The rules in the form that `plan` takes."""
        return Caps(tuple(self.actions.index(label) for label in self.large), self.most, self.least_tenure)

    def price(self, prices: ArrayLike) -> FloatArray:
        """Price function: outcomes [outcomes, prices] of the optimal policy within the rules at prices [prices, 2]."""
        return self.envelopes.planned(outcome_weights(checked_prices(prices, 2)), caps=self.caps)

    def cheapest(self) -> Value:
        """No user gets an envelope."""
        money = self.envelopes.cheapest()
        return Value(np.array([money.reward, money.cost, 0.0]))


_STREAM = 4  # other users than in a log, the population or a run


class EnvelopeCrowd:
    """Users of a campaign who arrive one by one, each with a state of its own; `consumption` scales redemption."""

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
        """Rewards and costs [rows] of some users' actions; moves the users to their next states."""
        dynamics = self._campaign.dynamics
        active, used, following = dynamics.happen(self._users.take(rows), self._state[rows], action, self._generator)
        self._state[rows] = following
        return active.astype(np.float64), used * dynamics.amounts[action]

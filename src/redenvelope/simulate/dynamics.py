"""The users of the envelopes campaign: parameters, features and hidden traits, and 75 dynamic states.

A state is a level of habit, a level of fatigue and the last envelope's outcome. `EnvelopeParameters` is the truth,
`EnvelopeDynamics` its probabilities, and `plan` exact backward induction over the states of each user.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, IndexArray
from redenvelope.errors import ProblemError

LEVELS = 5
"""Habit and fatigue run from 0 to 4."""
OUTCOMES = ("none", "ignored", "used")
"""Outcome of the last envelope; "none" if nothing was sent."""
STATES = LEVELS * LEVELS * len(OUTCOMES)

_NONE, _IGNORED, _USED = range(len(OUTCOMES))
# The possible events of a step: (envelope sent, user active, outcome of the envelope).
_EVENTS = (
    (False, False, _NONE),
    (False, True, _NONE),
    (True, False, _IGNORED),
    (True, True, _IGNORED),
    (True, True, _USED),
)


def state_rows(habit: IndexArray, fatigue: IndexArray, outcome: IndexArray) -> IndexArray:
    """The index of each dynamic state, any shape."""
    return (habit * LEVELS + fatigue) * len(OUTCOMES) + outcome


def state_parts(state: IndexArray) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Habit, fatigue and last outcome of each dynamic state, any shape."""
    levels, outcome = np.divmod(state, len(OUTCOMES))
    habit, fatigue = np.divmod(levels, LEVELS)
    return habit, fatigue, outcome


@dataclass(frozen=True, eq=False)
class EnvelopeDynamics:
    """Probabilities of activity, consumption and transitions; traits that differ between users are in EnvelopeUsers."""

    parameters: EnvelopeParameters

    @cached_property
    def amounts(self) -> FloatArray:
        """Money in each envelope, [actions]."""
        return np.array(self.parameters.amounts, dtype=np.float64)

    @cached_property
    def sent(self) -> IndexArray:
        """1 if the action sends an envelope, else 0, [actions]."""
        return (self.amounts > 0).astype(np.intp)

    @cached_property
    def state_effects(self) -> FloatArray:
        """Effect of each dynamic state on the logit of activity, [states]."""
        parameters = self.parameters
        habit, fatigue, outcome = state_parts(np.arange(STATES))
        after = np.array([0.0, parameters.ignored_effect, parameters.used_effect])
        levels = parameters.habit_effect * habit - parameters.fatigue_effect * fatigue
        return np.asarray(levels + after[outcome])

    @cached_property
    def lift_shares(self) -> FloatArray:
        """Share of an envelope's lift that is left by fatigue, [states]."""
        return np.asarray(np.exp(-self.parameters.fatigue_decay * state_parts(np.arange(STATES))[1]))

    @cached_property
    def moves(self) -> FloatArray:
        """Probability of the next state after each event, [events, states, states]."""
        state = np.arange(STATES)
        habit, fatigue, _ = state_parts(state)
        moves = np.zeros((len(_EVENTS), STATES, STATES))
        for event, (sent, active, outcome) in enumerate(_EVENTS):
            tired = (fatigue + (1 if sent else -1)).clip(0, LEVELS - 1)
            moved = (habit + (1 if active else -1)).clip(0, LEVELS - 1)
            chance = self.parameters.habit_rise if active else self.parameters.habit_fall
            left = np.full(STATES, outcome)
            moves[event, state, state_rows(moved, tired, left)] += chance
            moves[event, state, state_rows(habit, tired, left)] += 1 - chance
        return moves

    def activities(self, users: EnvelopeUsers) -> FloatArray:
        """Probability of being active, [users, states, actions]."""
        logits = self.lift_shares[:, None] * users.lifts[:, None, :]
        logits += self.state_effects[:, None]
        logits += users.activity[:, None, None]
        return _sigmoid_in_place(logits)

    def activity(self, users: EnvelopeUsers, state: IndexArray, action: IndexArray) -> FloatArray:
        """Probability of being active in one state with one action each, [users]."""
        lift = users.lifts[np.arange(len(users)), action] * self.lift_shares[state]
        return _sigmoid_in_place(users.activity + self.state_effects[state] + lift)

    def logging_policy(self, users: EnvelopeUsers, state: IndexArray) -> FloatArray:
        """Probability of each action in the log, [users, actions]."""
        parameters = self.parameters
        habit, fatigue, _ = state_parts(state)
        tilt = users.logging_tilts + parameters.logging_habit * habit + parameters.logging_fatigue * fatigue
        weights = np.exp(tilt[:, None] * np.linspace(0, 1, len(self.amounts)))
        chosen = weights / weights.sum(axis=1, keepdims=True)
        exploration = parameters.logging_exploration
        return np.asarray((1 - exploration) * chosen + exploration / len(self.amounts))

    def follow_up(self, users: EnvelopeUsers, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean of `values` [users, states] at the next step, for users inactive now and for users active now.

        Both are [2, users, states], without and with an envelope. Transitions given an event do not depend on the user,
        so one matrix product serves all users.
        """
        after = values @ self.moves.transpose(0, 2, 1)
        share = users.consumption[:, None]
        return after[[0, 2]], np.stack([after[1], after[3] + share * (after[4] - after[3])])

    def advance(self, users: EnvelopeUsers, activities: FloatArray, visits: FloatArray) -> FloatArray:
        """Probability of each state at the next step, [users, states], from the visits [users, states, actions]."""
        active = visits * activities
        idle = visits - active
        unsent, sent = self.sent == 0, self.sent == 1
        share = users.consumption[:, None]
        active_sent = active[:, :, sent].sum(axis=2)
        events = [
            idle[:, :, unsent].sum(axis=2),
            active[:, :, unsent].sum(axis=2),
            idle[:, :, sent].sum(axis=2),
            (1 - share) * active_sent,
            share * active_sent,
        ]
        following: FloatArray = np.concatenate(events, axis=1) @ self.moves.reshape(-1, STATES)
        return following

    def happen(
        self, users: EnvelopeUsers, state: IndexArray, action: IndexArray, generator: np.random.Generator
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], IndexArray]:
        """Draw one step at random: who is active, who consumes the envelope, and the next states, [users] each."""
        draws = generator.random((3, len(users)))
        active = draws[0] < self.activity(users, state, action)
        sent = self.sent[action] == 1
        used = active & sent & (draws[1] < users.consumption)
        habit, fatigue, _ = state_parts(state)
        chance = np.where(active, self.parameters.habit_rise, self.parameters.habit_fall)
        habit = habit + np.where(draws[2] < chance, np.where(active, 1, -1), 0)
        fatigue = fatigue + np.where(sent, 1, -1)
        outcome = np.where(sent, np.where(used, _USED, _IGNORED), _NONE)
        return active, used, state_rows(habit.clip(0, LEVELS - 1), fatigue.clip(0, LEVELS - 1), outcome)


def _sigmoid_in_place(logits: FloatArray) -> FloatArray:
    """The sigmoid, in place: callers must own the logits."""
    np.negative(logits, out=logits)
    np.exp(logits, out=logits)
    logits += 1
    return np.reciprocal(logits, out=logits)


CITIES = ("Arden", "Brixby", "Corvale", "Dunmore", "Eastwick", "Farrow", "Glenholm", "Harwich")
CHANNELS = ("app", "web", "partner")


@dataclass(frozen=True)
class Response:
    """How one hidden trait of a user depends on the features; each weight multiplies a curve of one feature."""

    intercept: float
    age: float = 0.0
    """Times a hump around the early thirties."""
    tenure: float = 0.0
    """Times a logarithm: the first months matter most."""
    sessions: float = 0.0
    """Times a curve that saturates at a dozen sessions."""
    balance: float = 0.0
    """Times a soft step between poor and rich balances."""
    recency: float = 0.0
    """Times a decay since the last purchase; nothing for users who never bought."""
    never_bought: float = 0.0
    subscriber: float = 0.0
    young_in_app: float = 0.0
    """An interaction: under thirty and on the app channel."""
    cities: tuple[float, ...] = (0.0,) * len(CITIES)
    channels: tuple[float, ...] = (0.0,) * len(CHANNELS)


@dataclass(frozen=True)
class EnvelopeParameters:
    """The truth of one envelopes campaign. Effects on activity are in logits."""

    amounts: tuple[int, ...] = (0, 1, 2, 3, 5, 8)
    steps: int = 5

    activity: Response = Response(
        intercept=-2.4, age=0.5, tenure=0.25, sessions=0.8, balance=0.2, recency=0.6, never_bought=-0.3,
        subscriber=0.4, young_in_app=0.3, cities=(0.3, 0.1, 0.0, -0.2, 0.2, -0.3, 0.0, -0.1),
        channels=(0.2, 0.0, -0.3),
    )  # fmt: skip
    """Logit of being active without envelope, habit or fatigue."""
    strength: Response = Response(
        intercept=-0.3, age=-0.9, tenure=-0.5, sessions=0.6, balance=-1.4, recency=0.9, never_bought=0.7,
        subscriber=-0.6, young_in_app=1.6, cities=(0.5, -0.6, 0.2, 0.8, -0.4, 0.0, -0.8, 0.3),
        channels=(0.3, 0.0, -0.5),
    )  # fmt: skip
    """Logit of the share of `greatest_lift` that an envelope without limit would bring."""
    appetite: Response = Response(
        intercept=1.2, age=-0.3, tenure=0.2, sessions=-0.6, balance=0.9, recency=-0.4,
        subscriber=-0.3, young_in_app=-0.5, cities=(0.2, 0.0, -0.3, 0.3, 0.1, -0.2, 0.0, -0.1),
        channels=(-0.2, 0.1, 0.3),
    )  # fmt: skip
    """Logarithm of the amount that brings 63 % of the lift: small for users who react to small amounts."""
    consumption: Response = Response(
        intercept=0.5, age=0.3, sessions=0.5, balance=-0.6, recency=0.4, never_bought=-0.5,
        subscriber=0.5, channels=(0.3, 0.0, -0.4),
    )  # fmt: skip
    """Logit of consuming the envelope once active."""

    greatest_lift: float = 3.2
    habit_effect: float = 0.55
    """Effect on activity per level of habit."""
    habit_rise: float = 0.75
    """Probability that an active step raises habit by one."""
    habit_fall: float = 0.45
    """Probability that an inactive step lowers habit by one."""
    fatigue_effect: float = 0.12
    """Loss of activity per level of fatigue."""
    fatigue_decay: float = 0.3
    """An envelope's lift shrinks by exp(−fatigue_decay · fatigue)."""
    used_effect: float = 0.25
    """Effect on activity after a consumed envelope."""
    ignored_effect: float = -0.25
    """Effect on activity after an envelope that was not consumed."""

    logging_tilt: float = -0.6
    """Preference of the behaviour policy for the dearest envelope over none, in logits."""
    logging_tenure: float = 0.8
    logging_channels: tuple[float, ...] = (0.5, 0.0, -0.5)
    logging_habit: float = 0.35
    logging_fatigue: float = -0.3
    logging_exploration: float = 0.2
    """Uniform share of the behaviour policy; divided by the number of actions, it is the least possible propensity."""

    def __post_init__(self) -> None:
        amounts = self.amounts
        if len(amounts) < 2 or amounts[0] < 0 or list(amounts) != sorted(set(amounts)):
            raise ProblemError(f"amounts must be two or more, rising, from 0 up; not {amounts}")
        if self.steps < 1:
            raise ProblemError(f"steps must be at least 1, not {self.steps}")
        shares = (self.habit_rise, self.habit_fall, self.logging_exploration)
        if not all(0 <= share <= 1 for share in shares):
            raise ProblemError("habit_rise, habit_fall and logging_exploration lie between 0 and 1")


_CITY_SHARES = (0.24, 0.18, 0.15, 0.13, 0.11, 0.09, 0.06, 0.04)
_CHANNEL_SHARES = (0.55, 0.3, 0.15)
_NEVER_BOUGHT_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class EnvelopeUsers:
    """Users: everything about them that does not change. Traits are functions of the features alone."""

    features: pl.DataFrame
    """The static features, one row per user."""
    activity: FloatArray
    """Logit of being active before habit, fatigue and envelopes, [users]."""
    lifts: FloatArray
    """Effect of each envelope on that logit for a user without fatigue, [users, actions]."""
    consumption: FloatArray
    """Probability that an active user consumes the envelope, [users]."""
    logging_tilts: FloatArray
    """The behaviour policy's preference for large envelopes, [users]."""
    habits: NDArray[np.int64]
    """Habit at the first step, [users]."""
    fatigues: NDArray[np.int64]
    """Fatigue at the first step, [users]."""

    def __len__(self) -> int:
        return len(self.activity)

    def take(self, rows: NDArray[np.intp] | slice) -> EnvelopeUsers:
        """Some of the users, in the given order."""
        return EnvelopeUsers(*(getattr(self, part.name)[rows] for part in fields(self)))


def draw_users(
    parameters: EnvelopeParameters, users: int, generator: np.random.Generator, noise_features: int = 0
) -> EnvelopeUsers:
    """Draw new users, with `noise_features` further columns of pure noise."""
    features = _draw_features(users, generator)
    curves = _curves(features)
    traits = {
        name: _follow(getattr(parameters, name), curves, features)
        for name in ("activity", "strength", "appetite", "consumption")
    }
    amounts = np.array(parameters.amounts, dtype=np.float64)
    doses = 1 - np.exp(-amounts / np.exp(traits["appetite"])[:, None])
    lifts = parameters.greatest_lift * _sigmoid(traits["strength"])[:, None] * doses
    channel = _codes(features["channel"], CHANNELS)
    tilts = (
        parameters.logging_tilt
        + parameters.logging_tenure * curves["tenure"]
        + np.array(parameters.logging_channels)[channel]
    )
    # Active users start with a habit; nobody starts with more than one level of fatigue.
    habits = generator.binomial(4, 0.1 + 0.5 * curves["sessions"])
    fatigues = generator.binomial(1, 0.3, size=users)
    # Noise has a stream of its own, so that a seed gives the same users and events with noise or without.
    (spare,) = generator.spawn(1)
    noise = {f"noise_{number}": spare.standard_normal(users) for number in range(noise_features)}
    return EnvelopeUsers(
        features=features.with_columns(pl.Series(name, values) for name, values in noise.items()),
        activity=traits["activity"],
        lifts=lifts,
        consumption=_sigmoid(traits["consumption"]),
        logging_tilts=tilts,
        habits=habits,
        fatigues=fatigues,
    )


def _draw_features(users: int, generator: np.random.Generator) -> pl.DataFrame:
    tenure = generator.gamma(1.2, 350.0, size=users).round()
    days_since_purchase = generator.exponential(45.0, size=users).round(1)
    never_bought = generator.random(users) < _NEVER_BOUGHT_SHARE
    sessions = generator.poisson(generator.gamma(1.5, 4.0, size=users))
    return pl.DataFrame(
        {
            "age": generator.normal(38.0, 13.0, size=users).clip(18, 85).astype(np.int64),
            "tenure_days": tenure.astype(np.int64),
            "sessions": sessions,
            "balance": generator.lognormal(4.0, 1.1, size=users).round(2),
            "days_since_purchase": days_since_purchase,
            "screen_size": generator.normal(5.9, 0.5, size=users).round(1),
            "lucky_number": generator.integers(100, size=users),
            "city": np.array(CITIES)[generator.choice(len(CITIES), size=users, p=_CITY_SHARES)],
            "channel": np.array(CHANNELS)[generator.choice(len(CHANNELS), size=users, p=_CHANNEL_SHARES)],
            "subscriber": generator.random(users) < _sigmoid(tenure / 500 - 1.5),
        }
    ).with_columns(pl.when(pl.Series(never_bought)).then(None).otherwise("days_since_purchase").name.keep())


def _curves(features: pl.DataFrame) -> dict[str, FloatArray]:
    """The curves of features that a Response weighs, [users] each, with values of the order of one."""
    column = {
        name: features[name].cast(pl.Float64).fill_null(np.inf).to_numpy()
        for name in ("age", "tenure_days", "sessions", "balance", "days_since_purchase", "subscriber")
    }
    app = (features["channel"] == "app").to_numpy()
    return {
        "age": np.exp(-(((column["age"] - 32) / 14) ** 2)),
        "tenure": np.log1p(column["tenure_days"] / 100) - 1.4,
        "sessions": 1 - np.exp(-column["sessions"] / 6),
        "balance": np.tanh((np.log(column["balance"] + 1) - 4.0) / 0.9),
        "recency": np.exp(-column["days_since_purchase"] / 30),
        "never_bought": np.isinf(column["days_since_purchase"]).astype(np.float64),
        "subscriber": column["subscriber"],
        "young_in_app": ((column["age"] < 30) & app).astype(np.float64),
    }


def _follow(response: Response, curves: dict[str, FloatArray], features: pl.DataFrame) -> FloatArray:
    """The trait of each user, [users]."""
    trait = np.full(features.height, response.intercept)
    for name, curve in curves.items():
        trait += getattr(response, name) * curve
    trait += np.array(response.cities)[_codes(features["city"], CITIES)]
    trait += np.array(response.channels)[_codes(features["channel"], CHANNELS)]
    return trait


def _codes(labels: pl.Series, known: tuple[str, ...]) -> NDArray[np.intp]:
    return labels.cast(pl.Enum(known)).to_physical().to_numpy().astype(np.intp)


def _sigmoid(logits: FloatArray) -> FloatArray:
    return 1 / (1 + np.exp(-logits))


@dataclass(frozen=True)
class Caps:
    """Rules on envelopes; the defaults restrict nothing."""

    large: tuple[int, ...] = ()
    """Actions of which a user may get at most `most`."""
    most: int = 0
    least_tenure: int = 0
    """Days of tenure from which a user may get the largest envelope."""

    def entitled(self, users: EnvelopeUsers) -> NDArray[np.bool_]:
        """Whether each user may get the largest envelope, [users]."""
        return (users.features["tenure_days"] >= self.least_tenure).to_numpy()


def plan(
    dynamics: EnvelopeDynamics,
    users: EnvelopeUsers,
    weights: FloatArray,
    foresight: float = 1.0,
    caps: Caps | None = None,
) -> FloatArray:
    """Outcomes of the whole campaign under the policy at a price, [outcomes, users, states].

    Outcomes are the reward, the money and, if `weights` [outcomes] has three, the number of envelopes. The policy
    maximises their weighted sum at this step plus `foresight` times that to go: 1 plans to the end, 0 is the bandit.
    """
    caps = caps or Caps()
    rewards = np.ascontiguousarray(dynamics.activities(users).transpose(2, 0, 1))
    costs = rewards * (users.consumption * dynamics.amounts[:, None])[:, :, None]
    entitled = caps.entitled(users)[:, None]
    # Indexed by the number of large envelopes so far, which only the caps depend on.
    to_go = np.zeros((len(weights), caps.most + 1, len(users), STATES))
    for _ in range(dynamics.parameters.steps):
        follow_ups = [[dynamics.follow_up(users, values) for values in outcome] for outcome in to_go]
        to_go = np.zeros_like(to_go)
        for given in range(caps.most + 1):
            best = np.full(to_go.shape[2:], -np.inf)
            # Whole arrays, one action after the other: an argmax over a short last axis takes three times as long.
            for action, (reward, cost, sent) in enumerate(zip(rewards, costs, dynamics.sent, strict=True)):
                following = given + (action in caps.large)
                if following > caps.most:
                    continue
                now = (reward, cost, float(sent))[: len(weights)]
                after = [outcome[following] for outcome in follow_ups]
                later = [idle[sent] + reward * (busy[sent] - idle[sent]) for idle, busy in after]
                parts = zip(weights, now, later, strict=True)
                score = sum(weight * (gained + foresight * rest) for weight, gained, rest in parts)
                better = score > best
                if action == len(costs) - 1:
                    better &= entitled
                np.copyto(best, score, where=better)
                for place, (gained, rest) in enumerate(zip(now, later, strict=True)):
                    np.copyto(to_go[place, given], gained + rest, where=better)
    return to_go[:, 0]

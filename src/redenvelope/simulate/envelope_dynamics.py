"""How users of the envelopes campaign change: 75 dynamic states, moved by what was sent and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.simulate.envelope_parameters import EnvelopeParameters
from redenvelope.simulate.envelope_users import EnvelopeUsers

__all__ = ["LEVELS", "OUTCOMES", "STATES", "EnvelopeDynamics", "state_parts", "state_rows"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

LEVELS = 5
"""Habit and fatigue run from 0 to 4."""
OUTCOMES = ("none", "ignored", "used")
"""What came of the last envelope; none when nothing was sent."""
STATES = LEVELS * LEVELS * len(OUTCOMES)

_NONE, _IGNORED, _USED = range(len(OUTCOMES))
# What can happen at a step, as (sent, active, outcome left behind).
_EVENTS = (
    (False, False, _NONE),
    (False, True, _NONE),
    (True, False, _IGNORED),
    (True, True, _IGNORED),
    (True, True, _USED),
)


def state_rows(habit: IndexArray, fatigue: IndexArray, outcome: IndexArray) -> IndexArray:
    """The number of each dynamic state, any shape."""
    return (habit * LEVELS + fatigue) * len(OUTCOMES) + outcome


def state_parts(state: IndexArray) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Habit, fatigue and last outcome of each dynamic state, any shape."""
    levels, outcome = np.divmod(state, len(OUTCOMES))
    habit, fatigue = np.divmod(levels, LEVELS)
    return habit, fatigue, outcome


@dataclass(frozen=True, eq=False)
class EnvelopeDynamics:
    """The campaign's laws. What differs between users stays in EnvelopeUsers."""

    parameters: EnvelopeParameters

    @cached_property
    def amounts(self) -> FloatArray:
        """Money in each envelope, [actions]."""
        return np.array(self.parameters.amounts, dtype=np.float64)

    @cached_property
    def sent(self) -> IndexArray:
        """1 where the action sends an envelope, 0 where it sends none, [actions]."""
        return (self.amounts > 0).astype(np.intp)

    @cached_property
    def state_effects(self) -> FloatArray:
        """What a dynamic state adds to the logit of activity, [states]."""
        parameters = self.parameters
        habit, fatigue, outcome = state_parts(np.arange(STATES))
        after = np.array([0.0, parameters.ignored_effect, parameters.used_effect])
        levels = parameters.habit_effect * habit - parameters.fatigue_effect * fatigue
        return np.asarray(levels + after[outcome])

    @cached_property
    def lift_shares(self) -> FloatArray:
        """What fatigue leaves of an envelope's lift, [states]."""
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
        return _sigmoid(logits)

    def activity(self, users: EnvelopeUsers, state: IndexArray, action: IndexArray) -> FloatArray:
        """Probability of being active in one state with one action each, [users]."""
        lift = users.lifts[np.arange(len(users)), action] * self.lift_shares[state]
        return _sigmoid(users.activity + self.state_effects[state] + lift)

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
        """Mean of `values` [users, states] at the next step for users inactive and active now.

        Both are [2, users, states], without and with an envelope. What follows an event does not depend on
        the user, so a matrix product serves all of them.
        """
        after = values @ self.moves.transpose(0, 2, 1)
        share = users.consumption[:, None]
        return after[[0, 2]], np.stack([after[1], after[3] + share * (after[4] - after[3])])

    def advance(self, users: EnvelopeUsers, activities: FloatArray, visits: FloatArray) -> FloatArray:
        """Share of each state at the next step, [users, states], after visits [users, states, actions]."""
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
        """One step drawn at random: who is active, who consumed, and the next states, each [users]."""
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


def _sigmoid(logits: FloatArray) -> FloatArray:
    """In place: the logits are always the caller's own."""
    np.negative(logits, out=logits)
    np.exp(logits, out=logits)
    logits += 1
    return np.reciprocal(logits, out=logits)

"""The envelopes campaign for a planner who knows its laws and sees no column of what happened before.

What such a planner knows of a user is a belief over the dynamic states: at first what the user's features say of habit
and fatigue, then Bayes' rule, after every action, by whether the user was active and whether the envelope was consumed.
All beliefs that can come are written out as a tree, which no price changes, and planned in exactly: no policy that sees
only histories earns more at the same cost. Beside it stands the optimum that sees the columns; both are means
over what users may come with, so that chance plays no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from redenvelope.prices import outcome_weights
from redenvelope.simulate.dynamics import LEVELS, STATES, EnvelopeDynamics, EnvelopeUsers, plan, state_rows
from redenvelope.simulate.envelopes import EnvelopeCampaign

FloatArray = NDArray[np.float64]


class Limit(NamedTuple):
    """At each budget, [budgets]."""

    blind: FloatArray
    """Reward of the best policy that looks at histories."""
    seeing: FloatArray
    """Reward of the best policy that sees the columns."""
    cheapest: float
    """Reward without any envelope."""

    @property
    def kept(self) -> FloatArray:
        """Share of the gain with the columns that is left without them, at best, [budgets]."""
        return (self.blind - self.cheapest) / (self.seeing - self.cheapest)


def history_limit(campaign: EnvelopeCampaign, budgets: FloatArray, duals: FloatArray) -> Limit:
    """The limit for a campaign's users at budgets [budgets], from plans at duals [duals], mixed to land on them."""
    dynamics, users = campaign.dynamics, campaign.users
    beliefs = first_beliefs(users)
    prices = np.append(duals, np.inf)
    blind = np.mean([_Beliefs(dynamics, users, user).outcomes(beliefs[user], prices) for user in range(len(users))], 0)
    weights = outcome_weights(prices[:, None]).T
    plans = [(plan(dynamics, users, weight) * beliefs).sum(axis=2).mean(axis=1) for weight in weights]
    seeing = np.array(plans).T
    # Without an envelope nothing is spent: the plan at an infinite price, with the columns or without.
    return Limit(_landed(blind, budgets), _landed(seeing, budgets), float(seeing[0, -1]))


def first_beliefs(users: EnvelopeUsers) -> FloatArray:
    """Chance of each dynamic state at the first step given the features, [users, states]; see `draw_users`."""
    sessions = 1 - np.exp(-users.features["sessions"].to_numpy() / 6)
    habits = binom.pmf(np.arange(LEVELS), LEVELS - 1, (0.1 + 0.5 * sessions)[:, None])
    found = np.zeros((len(users), STATES))
    for fatigue, chance in enumerate((0.7, 0.3)):
        found[:, state_rows(np.arange(LEVELS), np.full(LEVELS, fatigue), np.zeros(LEVELS, np.intp))] = chance * habits
    return found


def _landed(outcomes: FloatArray, budgets: FloatArray) -> FloatArray:
    """Reward at budgets [budgets] of plans [outcomes, prices], mixed."""
    order = np.argsort(outcomes[1])
    return np.interp(budgets, outcomes[1][order], outcomes[0][order])


class _Beliefs:
    """The beliefs that can come of one user."""

    def __init__(self, dynamics: EnvelopeDynamics, users: EnvelopeUsers, user: int) -> None:
        own = users.take(np.array([user]))
        self.dynamics = dynamics
        self.active = dynamics.activities(own)[0]  # [states, actions]
        self.consumption = float(own.consumption[0])

    def outcomes(self, belief: FloatArray, duals: FloatArray) -> FloatArray:
        """Reward and cost of the best plans at duals [duals], [2, duals], from a belief [states]."""
        weights = np.stack([np.isfinite(duals), np.where(np.isfinite(duals), duals, 1.0)]).astype(float)
        return self._to_go(belief[None], self.dynamics.parameters.steps, weights)[:, 0]

    def _to_go(self, beliefs: FloatArray, steps: int, weights: FloatArray) -> FloatArray:
        """[2, nodes, duals] from beliefs [nodes, states]."""
        amounts = self.dynamics.amounts
        events = [self._events(beliefs, action) for action in range(len(amounts))] if steps > 1 else []
        # The beliefs of all actions and events at once: one pass a step, not one a node.
        following = [belief for event in events for _, belief in event]
        later: Iterator[FloatArray] = iter(())
        if following:
            together = self._to_go(np.concatenate(following), steps - 1, weights)
            later = iter(np.split(together, len(following), axis=1))
        best = np.full((len(beliefs), weights.shape[1]), -np.inf)
        found = np.zeros((2, *best.shape))
        for action, amount in enumerate(amounts):
            active = beliefs @ self.active[:, action]
            to_go = np.stack([active, active * self.consumption * amount])[:, :, None] + np.zeros(best.shape)
            for chance, _ in events[action] if events else []:
                to_go += chance[:, None] * next(later)
            score = weights[0] * to_go[0] - weights[1] * to_go[1]
            better = score > best
            np.copyto(best, score, where=better)
            np.copyto(found, to_go, where=better)
        return found

    def _events(self, beliefs: FloatArray, action: int) -> list[tuple[FloatArray, FloatArray]]:
        """What may be seen of an action: its chance [nodes], and the belief that it leaves [nodes, states]."""
        active, moves = beliefs * self.active[:, action], self.dynamics.moves
        idle, busy = beliefs - active, active
        parts = [(0, idle, 1.0), (1, busy, 1.0)]
        if self.dynamics.sent[action]:
            parts = [(2, idle, 1.0), (3, busy, 1 - self.consumption), (4, busy, self.consumption)]
        found = []
        for event, joint, share in parts:
            chance = joint.sum(axis=1)
            following = (joint / np.maximum(chance, 1e-300)[:, None]) @ moves[event]
            found.append((share * chance, following))
        return found

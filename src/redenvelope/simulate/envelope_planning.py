"""Exact backward induction over the dynamic states of many users at once, for one price."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.simulate.envelope_dynamics import STATES, EnvelopeDynamics
from redenvelope.simulate.envelope_users import EnvelopeUsers

__all__ = ["plan"]

FloatArray = NDArray[np.float64]


def plan(dynamics: EnvelopeDynamics, users: EnvelopeUsers, dual: float, foresight: float) -> FloatArray:
    """Reward and cost of the whole campaign, [outcomes, users, states], under the policy of a price.

    The policy maximises reward − dual · cost of the step plus `foresight` times what it will be from the next
    state on: 1 plans to the end, 0 is the bandit. An infinite dual minimises cost.
    """
    rewards = np.ascontiguousarray(dynamics.activities(users).transpose(2, 0, 1))
    costs = rewards * (users.consumption * dynamics.amounts[:, None])[:, :, None]
    reward_weight, cost_weight = (0.0, 1.0) if np.isinf(dual) else (1.0, dual)
    to_go = np.zeros((2, len(users), STATES))
    for _ in range(dynamics.parameters.steps):
        follow_ups = [dynamics.follow_up(users, values) for values in to_go]
        to_go = np.empty_like(to_go)
        best = np.full(to_go.shape[1:], -np.inf)
        # Whole arrays, action after action: an argmax over a short last axis takes three times as long.
        for now_cost, now_reward, sent in zip(costs, rewards, dynamics.sent, strict=True):
            later = [idle[sent] + now_reward * (busy[sent] - idle[sent]) for idle, busy in follow_ups]
            score = reward_weight * (now_reward + foresight * later[0])
            score -= cost_weight * (now_cost + foresight * later[1])
            better = score > best
            np.copyto(best, score, where=better)
            np.copyto(to_go[0], now_reward + later[0], where=better)
            np.copyto(to_go[1], now_cost + later[1], where=better)
    return to_go

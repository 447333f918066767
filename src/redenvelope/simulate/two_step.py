"""The two-step problem: four envelopes, sent twice, the first deciding what the second earns."""

from __future__ import annotations

import numpy as np

from redenvelope.finite.problem import FiniteProblem
from redenvelope.simulate.finite import FiniteCampaign

__all__ = ["two_step", "two_step_problem"]

_ACTIONS = 4
_BASE_REWARD = 1.18155
_FIRST_REWARD = 0.84396
_SECOND_REWARD = 0.65112
_BASE_COST = 0.71475
_COST_STEP = 0.5


def two_step_problem() -> FiniteProblem:
    """State 0 first, then state i + 1 after action i; the parameters are calibrated to the paper's table."""
    action = np.arange(_ACTIONS)
    state = np.arange(_ACTIONS + 1)
    first = _BASE_REWARD + _FIRST_REWARD * np.sqrt(state)
    rewards = first[:, None] + (action - state[:, None]) * _SECOND_REWARD
    rewards[0] = first[:_ACTIONS]
    transitions = np.zeros((len(state), _ACTIONS, len(state)))
    transitions[0, action, action + 1] = 1.0
    return FiniteProblem(
        rewards=rewards,
        costs=np.tile(_BASE_COST + _COST_STEP * action, (len(state), 1)),
        transitions=transitions,
        initial=np.eye(len(state))[0],
        steps=2,
    )


def two_step(reward_variance: float = 0.1) -> FiniteCampaign:
    """The campaign of the two-step problem: uniform logging, cost variance 0.1, reward variance free."""
    return FiniteCampaign(two_step_problem(), reward_variance=reward_variance, cost_variance=0.1)

"""Reward and cost of every action from one forward pass: one Wide & Deep trunk, two response structures."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.log.layout import StateLayout
from redenvelope.models.examples import Rows
from redenvelope.models.response import Response, new_response
from redenvelope.models.targets import CostTarget, RewardTarget
from redenvelope.models.wide_deep import WideDeep

__all__ = ["OutcomeNetwork"]


class OutcomeNetwork(eqx.Module):
    """States [n, width] -> scores of reward and of cost, [n, actions] each; a target says what scores mean."""

    network: WideDeep
    reward_response: Response
    cost_response: Response

    def __init__(
        self,
        layout: StateLayout,
        actions: int,
        hidden: tuple[int, ...],
        structures: tuple[str, str],
        generator: np.random.Generator,
    ) -> None:
        self.reward_response = new_response(structures[0], actions)
        self.cost_response = new_response(structures[1], actions)
        outputs = self.reward_response.outputs + self.cost_response.outputs
        self.network = WideDeep(layout, hidden, outputs, generator)

    def start(self, reward: NDArray[np.float64], cost: NDArray[np.float64]) -> OutcomeNetwork:
        """The same network, giving these scores [actions] until it learns to tell states apart."""
        started: OutcomeNetwork = eqx.tree_at(
            lambda part: (part.reward_response, part.cost_response),
            self,
            (self.reward_response.start(reward), self.cost_response.start(cost)),
        )
        return started

    def __call__(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Scores of all actions."""
        raw = self.network(states)
        split = self.reward_response.outputs
        return self.reward_response(raw[:, :split]), self.cost_response(raw[:, split:])

    def losses(self, rows: Rows, rewarding: RewardTarget, costing: CostTarget) -> tuple[jax.Array, jax.Array]:
        """Loss of the logged action's reward and of its cost, [rows] each."""
        action, reward, cost = jnp.asarray(rows.action), jnp.asarray(rows.reward), jnp.asarray(rows.cost)
        reward_scores, cost_scores = self(jnp.asarray(rows.states))
        # A product with a one-hot row instead of a gather: its gradient needs no scatter.
        taken = jax.nn.one_hot(action, reward_scores.shape[1])
        reward_score, cost_score = (reward_scores * taken).sum(axis=1), (cost_scores * taken).sum(axis=1)
        return rewarding.loss(reward_score, reward), costing.loss(cost_score, action, cost, reward)

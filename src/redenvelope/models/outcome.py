"""Reward and costs of every action from one forward pass: one Wide & Deep trunk, a response structure an outcome."""

from __future__ import annotations

from itertools import accumulate, pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.log.layout import StateLayout
from redenvelope.models.examples import Rows
from redenvelope.models.response import Response, new_response
from redenvelope.models.targets import OutcomeTargets
from redenvelope.models.wide_deep import FixedPart, WideDeep

__all__ = ["OutcomeNetwork", "outcome_names"]


def outcome_names(budgets: int) -> tuple[str, ...]:
    """What reports call the outcomes of so many budgets: reward, cost, cost 2, …"""
    return ("reward", "cost", *(f"cost {number}" for number in range(2, budgets + 1)))[: 1 + budgets]


class OutcomeNetwork(eqx.Module):
    """States -> scores of every outcome and action; targets say what scores mean."""

    network: WideDeep
    responses: tuple[Response, ...]
    """Of the reward, then of each cost, and where users leave of who stays."""

    def __init__(
        self,
        layout: StateLayout,
        actions: int,
        hidden: tuple[int, ...],
        structures: tuple[str, ...],
        generator: np.random.Generator,
    ) -> None:
        self.responses = tuple(new_response(structure, actions) for structure in structures)
        outputs = sum(response.outputs for response in self.responses)
        self.network = WideDeep(layout, hidden, outputs, generator)

    def start(self, scores: NDArray[np.float64]) -> OutcomeNetwork:
        """The same network, giving these scores [responses, actions] until it learns to tell states apart."""
        responses = tuple(response.start(own) for response, own in zip(self.responses, scores, strict=True))
        started: OutcomeNetwork = eqx.tree_at(lambda part: part.responses, self, responses)
        return started

    def expected(self, states: jax.Array, targets: OutcomeTargets) -> tuple[jax.Array, ...]:
        """Expected outcomes of all actions, and who stays where users leave: [n, width] -> [actions, n] of each."""
        return targets.means(self._scores(self.network(states)))

    def expected_at(self, fixed: FixedPart, nodes: jax.Array, targets: OutcomeTargets) -> tuple[jax.Array, ...]:
        """The same for the changing columns of nodes [groups, size, changing] and a fixed part [groups, ...]:
        [actions, groups · size] of each."""
        return targets.means(self._scores(self.network.at(fixed, nodes)))

    def losses(self, rows: Rows, targets: OutcomeTargets) -> jax.Array:
        """Loss of the logged action's scores, [responses, rows]."""
        action = jnp.asarray(rows.action)
        scores = self._scores(self.network(jnp.asarray(rows.states)))
        # A product with a one-hot row instead of a gather: its gradient needs no scatter.
        taken = jax.nn.one_hot(action, scores[0].shape[0], axis=0)
        return targets.losses([(own * taken).sum(axis=0) for own in scores], action, jnp.asarray(rows.outcomes))

    def _scores(self, raw: jax.Array) -> list[jax.Array]:
        """Raw outputs [n, outputs] -> scores [actions, n] of each response."""
        edges = pairwise(accumulate((response.outputs for response in self.responses), initial=0))
        turned = raw.T
        return [response(turned[first:last]) for response, (first, last) in zip(self.responses, edges, strict=True)]

"""What needs no price: the outcomes of a step, and how often the logger takes an action in a state."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from redenvelope.models.targets import CostTarget, OutcomeTargets, RewardTarget

__all__ = ["Folded", "Immediate"]


class Folded(eqx.Module):
    """A network and the fold of users that it learned from."""

    network: Any
    slot: jax.Array
    """One-hot, [folds]; not learned."""


class Immediate(eqx.Module):
    """Reward and cost of a step, and the logger's habits. Learned once, whatever the price."""

    outcome: Folded
    """Arrays with a leading axis [folds]."""
    behaviour: Folded
    """Arrays with a leading axis [folds]."""
    rewarding: RewardTarget
    costing: CostTarget
    actions: int = eqx.field(static=True)

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Mean outcomes of every action by every fold: [n, width] -> [outcomes, folds, n, actions]."""

        def one(folded: Folded) -> jax.Array:
            outcomes = folded.network.expected(states, OutcomeTargets(self.rewarding, (self.costing,)))
            return jnp.stack([outcome.T for outcome in outcomes])

        return jax.vmap(one, out_axes=1)(self.outcome)

    def chances(self, states: jax.Array) -> jax.Array:
        """Probability with which the logger takes each action, mean over folds: [n, width] -> [n, actions]."""
        chances = jax.vmap(lambda folded: jax.nn.softmax(folded.network(states)))(self.behaviour)
        return chances.mean(axis=0)

"""A learned world whose costs are those of budgets: what is measured is predicted, what is charged follows from it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from redenvelope.log.layout import StateLayout
from redenvelope.models.charges import Charges
from redenvelope.models.neural import NeuralModel

__all__ = ["ChargedModel"]


class ChargedModel(eqx.Module):
    """A model seen through the budgets' charges (see EnvironmentModel, LeavingModel and SplitModel)."""

    model: NeuralModel
    charges: Charges = eqx.field(static=True)

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        return self.model.actions

    @property
    def budgets(self) -> int:
        """Number of budgets."""
        return len(self.charges.budgets)

    @property
    def leaves(self) -> bool:
        """See LeavingModel."""
        return self.model.leaves

    @property
    def layout(self) -> StateLayout:
        """Where each part of a state stands."""
        return self.model.layout

    @property
    def fixed_width(self) -> int:
        """See SplitModel."""
        return self.model.fixed_width

    def fixed_parts(self, states: jax.Array) -> tuple[Any, Any]:
        """See SplitModel; beside the model's own, the columns that conditions may look at, [users, fixed or 0]."""
        outcome, transition = self.model.fixed_parts(states)
        head = states[:, : self.fixed_width if self.charges.look_at_states else 0]
        return (outcome, head), (transition, head)

    def node_outcomes(self, fixed: Any, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """See SplitModel."""
        own, head = fixed
        return self._charged(self.model.node_outcomes(own, nodes), head, nodes)

    def node_steps(self, fixed: tuple[Any, Any], nodes: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """See SplitModel."""
        (outcome, head), (transition, _) = fixed
        responses, changed = self.model.node_steps((outcome, transition), nodes)
        measured = self.charges.measured
        return (*self._charged(responses[:measured], head, nodes), *responses[measured:]), changed

    def survival(self, states: jax.Array) -> jax.Array:
        """See LeavingModel."""
        return self.model.survival(states)

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Mean reward, then one mean cost for each budget: [n, width] -> [outcomes, n, actions]."""
        now = jnp.asarray(states)
        found = self.node_outcomes(self.fixed_parts(now)[0], now[:, None, self.fixed_width :])
        return jnp.stack([outcome.T for outcome in found])

    def successors(self, states: jax.Array) -> jax.Array:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        return self.model.successors(states)

    def _charged(self, measured: tuple[jax.Array, ...], head: jax.Array, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """Of nodes [groups, size, changing] whose users' other columns are [groups, fixed or 0]."""
        groups, size, _ = nodes.shape
        # Where only the step is asked for, what stands before it does not matter.
        missing = self.fixed_width - head.shape[1]
        whole = jnp.concatenate([head, jnp.zeros((groups, missing), head.dtype)], axis=1)
        before = jnp.broadcast_to(whole[:, None], (groups, size, self.fixed_width))
        states = jnp.concatenate([before, nodes], axis=2).reshape(groups * size, -1)
        return self.charges.outcomes(measured, states, jnp)

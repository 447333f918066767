"""The value network: what follows an action, for a vector of prices at once, with dueling heads."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.learning.folds import FoldedRows, pick, slots, stack
from redenvelope.log.layout import StateLayout
from redenvelope.models.response import LowRankResponse
from redenvelope.models.wide_deep import WideDeep

__all__ = ["ValueNetwork", "aim_at", "future_loss", "new_value_networks"]


class ValueNetwork(eqx.Module):
    """States [n, width] -> reward, cost (and entropy bonus) to go after every action, at every price.

    Dueling: one output of a head is the value of the state, the others weigh curves over the actions that sum
    to zero. The prices share the trunk and the curves; every row teaches all of them at once.
    """

    network: WideDeep
    level: jax.Array
    """[heads, components, actions]"""
    shapes: jax.Array
    """Advantage curves, [rank, actions]."""
    centre: jax.Array
    """Mean of the targets, [heads, components]; not learned."""
    scale: jax.Array
    """Standard deviation of the targets, [heads, components]; not learned."""
    slot: jax.Array
    """Which fold the network learns from, one-hot, [folds]; not learned."""

    def __call__(self, states: jax.Array) -> jax.Array:
        """[n, width] -> [n, heads, components, actions]."""
        raw = self._raw(states)
        score = self.level + raw[..., :1] + raw[..., 1:] @ self._curves()
        return self.centre[..., None] + self.scale[..., None] * score

    def loss(self, rows: FoldedRows) -> jax.Array:
        """Half the squared error of the logged action's score, mean over rows, heads and components, []."""
        states, action, target = (pick(column, self.slot) for column in (rows.states, rows.action, rows.target))
        raw = self._raw(states)
        taken = jax.nn.one_hot(action, self.level.shape[-1])
        # Only the logged action's score is needed: the others are never computed.
        score = raw[..., 0] + jnp.einsum("hca,na->nhc", self.level, taken)
        # Products that are summed fuse into one loop; a product of small matrices a row would not.
        score = score + (raw[..., 1:] * (taken @ self._curves().T)[:, None, None]).sum(axis=-1)
        aim = (target - jax.lax.stop_gradient(self.centre)) / jax.lax.stop_gradient(self.scale)
        return 0.5 * jnp.square(aim - score).mean()

    def _raw(self, states: jax.Array) -> jax.Array:
        """[n, width] -> [n, heads, components, 1 + rank]."""
        return self.network(states).reshape(len(states), *self.level.shape[:2], 1 + self.shapes.shape[0])

    def _curves(self) -> jax.Array:
        return self.shapes - self.shapes.mean(axis=1, keepdims=True)


def new_value_networks(
    layout: StateLayout,
    actions: int,
    heads: int,
    components: int,
    hidden: tuple[int, ...],
    rank: int | None,
    folds: int,
    seed: int,
) -> ValueNetwork:
    """Untrained networks, every array with a leading axis [folds]."""
    curves = LowRankResponse(actions, rank=actions - 1 if rank is None else rank).shapes
    outputs = heads * components * (1 + curves.shape[0])
    networks = [
        ValueNetwork(
            network=WideDeep(layout, hidden, outputs, np.random.default_rng([seed, fold])),
            level=jnp.asarray(np.zeros((heads, components, actions), np.float32)),
            shapes=curves,
            centre=jnp.asarray(np.zeros((heads, components), np.float32)),
            scale=jnp.asarray(np.ones((heads, components), np.float32)),
            slot=jnp.asarray(slots(folds)[fold]),
        )
        for fold in range(folds)
    ]
    stacked: ValueNetwork = stack(networks)
    return stacked


def aim_at(networks: ValueNetwork, target: NDArray[np.float32]) -> ValueNetwork:
    """The same networks, with the centre and scale of other targets [rows, heads, components]."""
    centre = target.mean(axis=0, dtype=np.float64)
    scale = target.std(axis=0, dtype=np.float64)
    # A target that hardly varies (no cost left to go, say) is its mean; dividing by its scale would blow up noise.
    scale = np.where(scale > 1e-6 * (1.0 + np.abs(centre)), scale, 1.0)
    folds = len(networks.slot)
    aimed: ValueNetwork = eqx.tree_at(
        lambda network: (network.centre, network.scale),
        networks,
        tuple(np.repeat(array[None], folds, axis=0).astype(np.float32) for array in (centre, scale)),
    )
    return aimed


def future_loss(networks: Any, constants: Any, rows: Any) -> dict[str, jax.Array]:
    """Mean Bellman loss of one fold's value network on FoldedRows, as training takes it."""
    network: ValueNetwork = networks["future"]
    return {"future": network.loss(rows)}

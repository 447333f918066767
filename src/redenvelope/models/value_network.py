"""The value network: what follows an action, for a vector of prices at once, with dueling heads."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.log.layout import StateLayout
from redenvelope.models.response import LowRankResponse
from redenvelope.models.stacked import slots, stack
from redenvelope.models.wide_deep import WideDeep

__all__ = ["ValueNetwork", "networks_at", "new_value_networks"]


class ValueNetwork(eqx.Module):
    """States [n, width] -> reward, cost (and entropy bonus) to go after every action, at every price.

    Dueling: one output of a curve is the value of the state, the others weigh shapes over the actions that sum
    to zero. The prices share the trunk, the curves and the shapes; every row teaches all of them at once. So
    many prices cost little more to learn than one.
    """

    network: WideDeep
    level: jax.Array
    """[curves, actions]"""
    shapes: jax.Array
    """Advantages over the actions, [rank, actions]."""
    basis: jax.Array
    """What a unit of every curve adds to each head, in the scale of its targets, [curves, heads, components]; the
    curves are at right angles to each other; not learned."""
    centre: jax.Array
    """Mean of the targets, [heads, components]; not learned."""
    scale: jax.Array
    """Standard deviation of the targets, [heads, components]; not learned."""
    slot: jax.Array
    """Which fold the network learns from, one-hot, [folds]; not learned."""

    def __call__(self, states: jax.Array) -> jax.Array:
        """[n, width] -> [n, heads, components, actions]."""
        spread = self.basis * self.scale
        over_actions = jnp.concatenate([jnp.ones((1, self.level.shape[1])), self.advantages()])
        # Curves and actions are spread out by one product of matrices: far cheaper than a small one a row.
        outwards = jnp.einsum("khc,ja->kjhca", spread, over_actions)
        level = self.centre[..., None] + jnp.einsum("khc,ka->hca", spread, self.level)
        flat = self.network(states) @ outwards.reshape(-1, level.size) + level.reshape(-1)
        return flat.reshape(len(states), *level.shape)

    def advantages(self) -> jax.Array:
        """Shapes over the actions that sum to zero, [rank, actions]."""
        return self.shapes - self.shapes.mean(axis=1, keepdims=True)


def new_value_networks(
    layout: StateLayout,
    actions: int,
    heads: int,
    components: int,
    hidden: tuple[int, ...],
    rank: int | None,
    curves: int,
    folds: int,
    seed: int,
) -> ValueNetwork:
    """Untrained networks, every array with a leading axis [folds]; never more curves than numbers to say."""
    shapes = LowRankResponse(actions, rank=actions - 1 if rank is None else rank).shapes
    curves = min(curves, heads * components)
    basis = np.eye(curves, heads * components, dtype=np.float32).reshape(curves, heads, components)
    networks = [
        ValueNetwork(
            network=WideDeep(layout, hidden, curves * (1 + shapes.shape[0]), np.random.default_rng([seed, fold])),
            level=jnp.asarray(np.zeros((curves, actions), np.float32)),
            shapes=shapes,
            basis=jnp.asarray(basis),
            centre=jnp.asarray(np.zeros((heads, components), np.float32)),
            scale=jnp.asarray(np.ones((heads, components), np.float32)),
            slot=jnp.asarray(slots(folds)[fold]),
        )
        for fold in range(folds)
    ]
    stacked: ValueNetwork = stack(networks)
    return stacked


def networks_at(futures: ValueNetwork | None, stage: int) -> ValueNetwork | None:
    """The networks of one step out of those of all, [steps - 1, folds] -> [folds]; None if nothing follows."""
    if futures is None or stage >= futures.centre.shape[0]:
        return None
    chosen: ValueNetwork = jax.tree.map(lambda array: np.asarray(array)[stage], futures)
    return chosen

"""The one path that a policy without chance takes through a full tree: what comes of it, for many prices at once.

On the way up nodes carry a value, what is spent, and which action is the best, however many budgets there are; costs
are looked up on the way down, at the nodes of the path alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from redenvelope.planning.grow import Tree
from redenvelope.planning.worth import best, cheaper, futures, if_staying, unrolled, worth

__all__ = ["followed", "is_followed"]


def is_followed(tree: Tree) -> bool:
    """Whether every action leads to one node: in a thinned tree it may lead to two."""
    return all(share is None for share in tree.shares)


def followed(tree: Tree, weights: jax.Array, discount: jax.Array) -> jax.Array:
    """Outcomes [outcomes, users, prices] of the best actions at finite prices, weights [outcomes, prices]."""
    users = tree.levels[0].shape[2]
    node = jnp.zeros((users, weights.shape[1]), jnp.int32)
    reached = jnp.ones(node.shape, weights.dtype)
    total = jnp.zeros((len(weights), *node.shape), weights.dtype)
    survival = (*(tree.survival or (None,) * len(tree.shares)), None)
    for level, choice, staying in zip(tree.levels, _choices(tree, weights, discount), survival, strict=True):
        actions, nodes = level.shape[1], level.shape[3]
        action = jnp.take_along_axis(choice.reshape(users, nodes, -1), node[:, None], axis=1)[:, 0]
        place = (action * users + jnp.arange(users)[:, None]) * nodes + node
        total = total + reached * level.reshape(len(level), -1)[:, place]
        reached = discount * reached if staying is None else discount * reached * staying.reshape(-1)[place]
        node = node * actions + action
    return total


def _choices(tree: Tree, weights: jax.Array, discount: jax.Array) -> list[jax.Array]:
    """The best action at every node of every level, from the root, [users · nodes, prices] each."""
    masks, survival = tree.masks or (None,) * len(tree.levels), tree.survival or (None,) * len(tree.shares)
    actions, prices = tree.levels[0].shape[1], weights.shape[1]
    choices, later = [], None
    for depth in range(len(tree.levels) - 1, -1, -1):
        ask = worth(tree.levels[depth], masks[depth], later, weights, _spent)
        below, chosen = best(ask, actions, cheaper, unrolled(actions, prices, last_level=False))
        choices.append(chosen)
        if depth:
            later = futures(tree.levels[depth - 1], None, below, discount)
            staying = survival[depth - 1]
            later = later if staying is None else if_staying(later, staying)
    return choices[::-1]


def _spent(own: list[jax.Array]) -> list[jax.Array]:
    """What is spent in all."""
    return [sum(own[2:], start=own[1])]

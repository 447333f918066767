"""Expand: every user's tree of mean rewards and costs, grown once for all duals."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from redenvelope.errors import UsageError
from redenvelope.models.environment import EnvironmentModel
from redenvelope.planning.batches import in_batches

__all__ = ["Level", "Shares", "Tree", "expand", "expand_shared", "grow"]

Shares = tuple[jax.Array | None, ...]


class Level(NamedTuple):
    """The nodes at one depth of every user's tree, parents in order and their branches beside each other."""

    rewards: jax.Array
    """Mean reward of every action at every node, [users, nodes, actions]."""
    costs: jax.Array
    """Mean cost of every action at every node, [users, nodes, actions]."""


class Tree(NamedTuple):
    """Outcomes along every sequence of actions. No dual inside: only the backup knows the price of cost."""

    levels: tuple[Level, ...]
    """From the root, which has one node a user, to the last step planned."""
    shares: Shares
    """For each level but the last, what each action's future takes from the branches below it,
    [actions, branches]; None where every action has a branch of its own."""

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.levels[0].rewards.shape[2]

    @property
    def deepest_nodes(self) -> int:
        """Nodes a user at the last level."""
        return self.levels[-1].rewards.shape[1]


def expand(model: EnvironmentModel, states: ArrayLike, depth: int) -> Tree:
    """The full tree to `depth` steps for states [users, width]: level d has actions**d nodes a user.

    The tree of all users is held in memory; a planner that only needs what a tree is worth grows and
    backs up a few users at a time instead.
    """
    if depth < 1:
        raise UsageError(f"depth must be at least 1 step, not {depth}")
    return expand_shared(model, states, (None,) * (depth - 1), model.actions ** (depth - 1))


def expand_shared(model: EnvironmentModel, states: ArrayLike, shares: Shares, deepest_nodes: int) -> Tree:
    """The tree of `len(shares) + 1` levels, `deepest_nodes` nodes a user at the last, as `grow` grows it."""
    return Tree(_levels(model, jnp.asarray(states, dtype=jnp.float32), shares, deepest_nodes), shares)


@eqx.filter_jit
def _levels(model: EnvironmentModel, states: jax.Array, shares: Shares, deepest_nodes: int) -> tuple[Level, ...]:
    return in_batches(lambda batch: grow(model, batch, shares).levels, states, deepest_nodes)


def grow(model: EnvironmentModel, states: jax.Array, shares: Shares) -> Tree:
    """A tree of `len(shares) + 1` levels for one batch of states [users, width], inside a compiled program.

    Where `shares` has [actions, branches] for a level, a branch grows under it for each column's own
    action only; where it has None, for every action.
    """
    users, width = states.shape
    levels = []
    nodes = states
    for share in (*shares, None):
        rewards, costs = model.outcomes(nodes)
        levels.append(Level(_by_user(rewards, users), _by_user(costs, users)))
        if len(levels) <= len(shares):
            # The parents' states are not kept: only their children's are needed from here on.
            children = model.successors(nodes)
            nodes = (children if share is None else children[:, _own_action(share)]).reshape(-1, width)
    return Tree(tuple(levels), tuple(shares))


def _own_action(share: jax.Array) -> jax.Array:
    """The action that each branch belongs to, which takes all its future from it: [branches]."""
    return jnp.argmax(share, axis=0)


def _by_user(values: jax.Array, users: int) -> jax.Array:
    """[users * nodes, actions] -> [users, nodes, actions]."""
    return values.reshape(users, -1, values.shape[-1])

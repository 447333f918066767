"""Trees grown and backed up by themselves, outside of a planner's program."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from numpy.typing import ArrayLike

from redenvelope.models.environment import EnvironmentModel, split_model
from redenvelope.planning.choice import Choice, action_values, price_blocks
from redenvelope.planning.tree import Tree, TreeRows, grow
from redenvelope.policies.action_values import ActionValues


def grown(model: EnvironmentModel, states: ArrayLike, depth: int, eligible: np.ndarray | None = None) -> Tree:
    """The trees of states [users, width]; `eligible` is a mask [users, actions]."""
    rows = np.asarray(states, np.float32)
    memory = None if eligible is None else np.zeros((len(rows), 0), np.int16)
    asked = TreeRows(rows, np.full(len(rows), depth, np.int32), eligible, memory)
    return jax.jit(lambda model, asked: grow(model, asked, depth, None, ragged=False))(split_model(model), asked)


def backup(
    tree: Tree, prices: ArrayLike, temperature: float, discount: float = 1.0, explore: float = 0.0
) -> ActionValues:
    """Values at prices [prices, budgets], in numpy."""
    return ActionValues(*_by_block(_values, tree, prices, temperature, discount, explore))


def _by_block(function, tree, prices, temperature, discount, explore) -> list[np.ndarray]:
    blocks = price_blocks(prices, len(tree.levels[0]) - 1, temperature)
    order = np.argsort(np.concatenate([block.places for block in blocks]))
    share = np.float32(explore) if explore else None
    found = []
    for block in blocks:
        values = function(tree, block.weights, np.float32(temperature), np.float32(discount), share, block.soft)
        found.append([np.asarray(array)[..., : len(block.places), :] for array in values])
    return [np.concatenate(arrays, axis=-2)[..., order, :] for arrays in zip(*found, strict=True)]


@partial(jax.jit, static_argnums=5)
def _values(tree, weights, temperature, discount, explore, soft):
    return action_values(tree, weights, Choice(temperature if soft else None, discount, explore))

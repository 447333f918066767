"""Grow, back up and decide in one compiled program: no tree leaves the processor's cache.

Several times faster than level by level, where a table of users is long and the prices are few, as they are when a plan
decides. It is compiled for every depth, number of prices and shape of model; so a fit, which asks for many prices of
trees that it grows once, works level by level.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.models.apply import split_model
from redenvelope.models.environment import EnvironmentModel, SplitModel
from redenvelope.planning.backup import hard_backup, soft_backup
from redenvelope.planning.batches import power_of_two
from redenvelope.planning.branching import Branching
from redenvelope.planning.grow import Tree, grow_inside
from redenvelope.planning.price_block import PriceBlock, price_blocks

__all__ = ["USERS_PER_CALL", "DecidedPart", "decide_in_one_program"]

# Measured: half and twice as many nodes in a block are slower by a tenth; so are calls of a quarter of the users.
_NODES_PER_BLOCK = 4_608
USERS_PER_CALL = 4_096
"""Most users of one call."""


class DecidedPart(NamedTuple):
    """What deciding needs of some users; arrays of numpy, or of jax inside the program."""

    probabilities: Any
    """[users, prices, actions]"""
    outcomes: Any
    """Of this step alone, [outcomes, users, actions]."""
    finite: Any
    """Whether all that was predicted for a user are numbers, [users]."""


def decide_in_one_program(
    model: EnvironmentModel,
    states: NDArray[np.float32],
    branching: Branching,
    prices: ArrayLike,
    temperature: float,
    discount: float,
    explore: float = 0.0,
    users_per_call: int = USERS_PER_CALL,
    reach: NDArray[np.int32] | None = None,
) -> DecidedPart:
    """Decide for the states [users, width] of one call at prices [prices, budgets].

    A call is always made for `users_per_call` users; of few, it takes less time, and is compiled for itself. `reach`
    says how many steps each user [users] has left, where not all have as many as the trees: nothing follows the last.
    """
    blocks = price_blocks(prices, model.budgets, temperature)
    order = np.argsort(np.concatenate([block.places for block in blocks]))
    by_block = [
        _run(model, states, branching, block, temperature, discount, explore, users_per_call, reach) for block in blocks
    ]
    probabilities = np.concatenate([part.probabilities for part in by_block], axis=1)[:, order]
    return by_block[0]._replace(probabilities=probabilities)


def _run(
    model: EnvironmentModel,
    states: NDArray[np.float32],
    branching: Branching,
    block: PriceBlock,
    temperature: float,
    discount: float,
    explore: float,
    users_per_call: int,
    reach: NDArray[np.int32] | None,
) -> DecidedPart:
    """One call, filled up with states of zeros: one shape, one compilation."""
    users = len(states)
    size = min(users_per_call, power_of_two(_NODES_PER_BLOCK // branching.deepest_nodes))
    filled = states
    if users < users_per_call:
        filled = np.zeros((users_per_call, states.shape[1]), np.float32)
        filled[:users] = states
    ends = None if reach is None else np.resize(reach.astype(np.int32), users_per_call)
    share = np.float32(explore) if explore else None
    numbers = (np.float32(temperature), np.float32(discount), share, np.int32(-(-users // size)))
    whole = _compiled(
        split_model(model),
        filled,
        ends,
        block.weights,
        *numbers,
        branching=branching,
        soft=block.soft,
        finite=block.finite,
        size=size,
    )
    found = jax.tree.map(np.asarray, whole)
    return DecidedPart(
        found.probabilities[:users, : len(block.places)], found.outcomes[:, :users], found.finite[:users]
    )


@partial(jax.jit, static_argnames=("branching", "soft", "finite", "size"))
def _compiled(
    model: SplitModel,
    states: jax.Array,
    reach: jax.Array | None,
    weights: jax.Array,
    temperature: jax.Array,
    discount: jax.Array,
    explore: jax.Array | None,
    count: jax.Array,
    branching: Branching,
    soft: bool,
    finite: bool,
    size: int,
) -> DecidedPart:
    """The first `count` blocks of `size` users one after the other; zeros for the other users."""
    axes = DecidedPart(0, 1, 0)  # that of the users

    def block(position: jax.Array | int) -> DecidedPart:
        tree = grow_inside(model, jax.lax.dynamic_slice_in_dim(states, position * size, size), branching)
        if reach is not None:
            tree = _ending(tree, jax.lax.dynamic_slice_in_dim(reach, position * size, size))
        if soft:
            values = soft_backup(tree, weights, temperature, discount, explore)
        else:
            values = hard_backup(tree, weights, discount, explore, finite)
        # One sum of all is finite only if all are.
        total = sum(level.sum(axis=(0, 1, 3)) for level in tree.levels)
        return DecidedPart(values.probabilities, tree.levels[0][..., 0].swapaxes(1, 2), jnp.isfinite(total))

    def store(position: jax.Array, results: DecidedPart) -> DecidedPart:
        def put(whole: jax.Array, own: jax.Array, axis: int) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(whole, own, position * size, axis)

        stored: DecidedPart = jax.tree.map(put, results, block(position), axes)
        return stored

    def empty(shape: jax.ShapeDtypeStruct, axis: int) -> jax.Array:
        return jnp.zeros((*shape.shape[:axis], len(states), *shape.shape[axis + 1 :]), shape.dtype)

    start: DecidedPart = jax.tree.map(empty, jax.eval_shape(block, 0), axes)
    decided: DecidedPart = jax.lax.fori_loop(0, count, store, start)
    return decided


def _ending(tree: Tree, reach: jax.Array) -> Tree:
    """Trees of users who have so many steps left [users]: below those nothing happens, and nobody gets there."""
    levels = tuple(
        jnp.where((reach > number)[None, None, :, None], level, 0.0) for number, level in enumerate(tree.levels)
    )
    staying = tree.survival or tuple(jnp.ones(level.shape[1:], level.dtype) for level in tree.levels[:-1])
    survival = tuple(
        jnp.where((reach > number + 1)[None, :, None], chance, 0.0) for number, chance in enumerate(staying)
    )
    return Tree(levels, tree.masks, tree.shares, survival)

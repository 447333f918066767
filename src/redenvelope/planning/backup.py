"""Backup: from the leaves of trees to the value of every first action, for many prices at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from redenvelope.planning.batches import parts, users_per_block, users_per_call
from redenvelope.planning.grow import Tree
from redenvelope.planning.price_block import PriceBlock, price_blocks
from redenvelope.policies.values import ActionValues

__all__ = ["backup", "hard_backup", "soft_backup"]


class _Worth(NamedTuple):
    """What nodes are worth, [nodes, prices], or actions at nodes, [actions, nodes, prices].

    The prices come last: they fill the vector registers, or, where there is one, the nodes do.
    """

    value: jax.Array
    outcomes: tuple[jax.Array, ...]
    """Reward and costs to go, without entropy bonus, [outcomes]."""


# What one action, given by its index, or all of them, given by `_ALL`, are worth at the nodes of a level.
_Ask = Callable[[Any], _Worth]
# From that, and the number of actions, to what the nodes are worth.
_Choose = Callable[[_Ask, int], _Worth]
_ALL = slice(None)


def backup(tree: Tree, prices: ArrayLike, temperature: float, discount: float = 1.0) -> ActionValues:
    """Back trees up for prices [prices, budgets], softly where the temperature is above 0; arrays of numpy.

    A row with an infinite price plans on those costs alone, and then on the least costs and the greatest reward, at
    any temperature.
    """
    outcomes, actions, users, _ = tree.levels[0].shape
    blocks = price_blocks(prices, outcomes - 1, temperature)
    count = sum(len(block.places) for block in blocks)
    shape = (users, count, actions)
    result = ActionValues(
        np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty((outcomes, *shape), np.float32)
    )
    for part in parts(users, users_per_call(tree.deepest_nodes)):
        some = _filled(tree, part)
        for block in blocks:
            found = _run(some, part.stop - part.start, block, temperature, discount)
            for whole, own in zip(result, found, strict=True):
                whole[..., part, block.places, :] = own
    return result


def _filled(tree: Tree, part: slice) -> Tree:
    """The trees of some users, filled up with trees of zeros: one shape, one compilation."""
    size = users_per_call(tree.deepest_nodes)

    def fill(array: Any) -> Any:
        some = array[..., part, :]
        if some.shape[-2] == size:
            return some
        whole = np.zeros((*some.shape[:-2], size, some.shape[-1]), some.dtype)
        whole[..., : some.shape[-2], :] = some
        return whole

    return tree._replace(levels=jax.tree.map(fill, tree.levels), masks=jax.tree.map(fill, tree.masks))


def _run(tree: Tree, users: int, block: PriceBlock, temperature: float, discount: float) -> ActionValues:
    """The values of the first users at the prices that the block was asked for, in numpy."""
    size = users_per_block(tree.deepest_nodes, block.weights.shape[1])
    count = np.int32(-(-users // size))
    numbers = (np.float32(temperature), np.float32(discount))
    arrays = _compiled(tree, block.weights, *numbers, count, soft=block.soft, size=size)
    asked = len(block.places)
    return ActionValues(*(np.asarray(array)[..., :users, :asked, :] for array in arrays))


@partial(jax.jit, static_argnames=("soft", "size"))
def _compiled(
    tree: Tree, weights: jax.Array, temperature: jax.Array, discount: jax.Array, count: jax.Array, soft: bool, size: int
) -> ActionValues:
    """Back up the first `count` blocks of `size` users one after the other, so that nothing of a block leaves the
    cache; zeros for the other users."""

    def block(first: jax.Array | int) -> ActionValues:
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        levels = tuple(cut(level, axis=2) for level in tree.levels)
        masks = None if tree.masks is None else tuple(cut(mask, axis=1) for mask in tree.masks)
        some = Tree(levels, masks, tree.shares)
        if soft:
            return soft_backup(some, weights, temperature, discount)
        return hard_backup(some, weights, discount)

    def store(position: jax.Array, results: ActionValues) -> ActionValues:
        found = block(position * size)
        return ActionValues(
            *(
                jax.lax.dynamic_update_slice_in_dim(whole, own, position * size, whole.ndim - 3)
                for whole, own in zip(results, found, strict=True)
            )
        )

    shapes = jax.eval_shape(block, 0)
    users = tree.levels[0].shape[2]
    empty = jax.tree.map(lambda shape: jnp.zeros((*shape.shape[:-3], users, *shape.shape[-2:]), shape.dtype), shapes)
    stored: ActionValues = jax.lax.fori_loop(0, count, store, empty)
    return stored


def soft_backup(tree: Tree, weights: jax.Array, temperature: jax.Array, discount: jax.Array) -> ActionValues:
    """With entropy: values are log-sum-exp. Weights [outcomes, prices] of finite prices, a temperature above 0."""

    def choose(worth: _Ask, actions: int) -> _Worth:
        # One action at a time, and twice, so that no exponential overflows and nothing of the size
        # [actions, nodes, prices] is ever written to memory.
        best = jax.lax.fori_loop(
            1, actions, lambda action, best: jnp.maximum(best, worth(action).value), worth(0).value
        )

        def add(action: jax.Array, sums: _Worth) -> _Worth:
            value, outcomes = worth(action)
            weight = jnp.exp((value - best) * (1 / temperature))
            added = tuple(total + weight * own for total, own in zip(sums.outcomes, outcomes, strict=True))
            return _Worth(sums.value + weight, added)

        zero = jnp.zeros_like(best)
        total, outcomes = jax.lax.fori_loop(0, actions, add, _Worth(zero, (zero,) * len(weights)))
        return _Worth(best + temperature * jnp.log(total), tuple(own / total for own in outcomes))

    root = _root(tree, weights, choose, discount)
    return _finish(root, jax.nn.softmax(root.value / temperature, axis=0))


def hard_backup(tree: Tree, weights: jax.Array, discount: jax.Array) -> ActionValues:
    """Without entropy: values are maxima; among equals the least costs, in the order of budgets, then the best
    reward."""

    def choose(worth: _Ask, actions: int) -> _Worth:
        return _lexicographic(worth(_ALL))[0]

    root = _root(tree, weights, choose, discount)
    chosen = jnp.argmax(_lexicographic(root)[1], axis=0)
    return _finish(root, jax.nn.one_hot(chosen, len(root.value), axis=0))


def _lexicographic(actions: _Worth) -> tuple[_Worth, jax.Array]:
    """Worth [nodes, prices] of the best action by value, then costs, then reward; and where that is,
    [actions, nodes, prices]. At an infinite price the value holds no reward, so that reward decides its ties."""
    value = actions.value.max(axis=0)
    best = actions.value == value
    reward, *costs = actions.outcomes
    least = []
    for cost in costs:
        least.append(jnp.where(best, cost, jnp.inf).min(axis=0))
        best &= cost == least[-1]
    greatest = jnp.where(best, reward, -jnp.inf).max(axis=0)
    return _Worth(value, (greatest, *least)), best & (reward == greatest)


def _root(tree: Tree, weights: jax.Array, choose: _Choose, discount: jax.Array) -> _Worth:
    """What the first actions are worth, [actions, users, prices]."""
    masks = tree.masks or (None,) * len(tree.levels)
    actions = tree.levels[0].shape[1]
    worth = _worth(tree.levels[-1], masks[-1], None, weights)
    for level, mask, share in zip(tree.levels[-2::-1], masks[-2::-1], tree.shares[::-1], strict=True):
        futures = _futures(level, share, choose(worth, actions), discount)
        worth = _worth(level, mask, futures, weights)
    return worth(_ALL)


def _worth(level: jax.Array, mask: jax.Array | None, futures: _Ask | None, weights: jax.Array) -> _Ask:
    """The function that tells what actions at the nodes of a level [outcomes, actions, users, nodes] are worth."""
    now = level.reshape(*level.shape[:2], -1)
    allowed = None if mask is None else mask.reshape(len(mask), -1)

    def worth(action: Any) -> _Worth:
        own = [outcome[action][..., None] for outcome in now]
        value = sum(
            (weight * outcome for weight, outcome in zip(weights[1:], own[1:], strict=True)), weights[0] * own[0]
        )
        if futures is not None:
            future = futures(action)
            value = value + future.value
            own = [outcome + later for outcome, later in zip(own, future.outcomes, strict=True)]
        if allowed is not None:
            value = jnp.where(allowed[action][..., None], value, -jnp.inf)
        return _Worth(value, tuple(jnp.broadcast_to(outcome, value.shape) for outcome in own))

    return worth


def _futures(level: jax.Array, share: Any | None, below: _Worth, discount: jax.Array) -> _Ask:
    """The function that tells what follows actions at the nodes of a level, given the nodes below."""
    nodes = level.shape[2] * level.shape[3]
    branches = jax.tree.map(lambda values: discount * values.reshape(nodes, -1, values.shape[-1]), below)
    if share is None:
        return lambda action: jax.tree.map(lambda values: jnp.moveaxis(values, 1, 0)[action], branches)
    return lambda action: jax.tree.map(
        lambda values: jnp.tensordot(jnp.asarray(share)[action], values, (-1, 1)), branches
    )


def _finish(root: _Worth, probabilities: jax.Array) -> ActionValues:
    """[actions, users, prices] -> [users, prices, actions]."""

    def turned(values: jax.Array) -> jax.Array:
        return jnp.moveaxis(values, 0, 2)

    to_go = jnp.stack([turned(outcome) for outcome in root.outcomes])
    return ActionValues(turned(root.value), turned(probabilities), to_go)

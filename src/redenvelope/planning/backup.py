"""Backup: from the leaves of trees to the value of every first action, for many prices at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.planning.batches import parts, users_per_block, users_per_call
from redenvelope.planning.followed import followed, is_followed
from redenvelope.planning.grow import Tree
from redenvelope.planning.price_block import PriceBlock, price_blocks
from redenvelope.planning.worth import (
    ALL,
    Ask,
    Carry,
    Worth,
    best,
    cheaper,
    futures,
    if_staying,
    in_order,
    unrolled,
    worth,
)
from redenvelope.policies.values import ActionValues

__all__ = ["backup", "expected_backup", "hard_backup", "soft_backup"]


# What of the values of some users is wanted: arrays [..., users, prices, anything].
_Keep = Callable[[ActionValues], tuple[jax.Array, ...]]
# From what actions are worth, their number, and how many are worked on in one turn of a loop, to what nodes are worth.
_Choose = Callable[[Ask, int, int], Worth]


def backup(
    tree: Tree, prices: ArrayLike, temperature: float, discount: float = 1.0, explore: float = 0.0
) -> ActionValues:
    """Back trees up for prices [prices, budgets], softly where the temperature is above 0; arrays of numpy.

    A row with an infinite price plans on those costs alone, and then on the least costs and the greatest reward, at
    any temperature. At every node a share `explore` of the decisions is drawn evenly among what the node allows.
    """
    return ActionValues(*_backed_up(tree, prices, temperature, discount, explore, _everything))


def expected_backup(
    tree: Tree, prices: ArrayLike, temperature: float, discount: float = 1.0, explore: float = 0.0
) -> NDArray[np.float32]:
    """Outcomes [outcomes, users, prices] of following the policy to the trees' end; far less to write than `backup`."""
    (expected,) = _backed_up(tree, prices, temperature, discount, explore, _expected)
    return np.asarray(expected[..., 0])


def _everything(values: ActionValues) -> tuple[jax.Array, ...]:
    return values


def _expected(values: ActionValues) -> tuple[jax.Array, ...]:
    return ((values.probabilities * values.to_go).sum(axis=-1, keepdims=True),)


def _backed_up(
    tree: Tree, prices: ArrayLike, temperature: float, discount: float, explore: float, keep: _Keep
) -> list[Any]:
    """What is to be kept of the values: arrays [..., users, prices, kept]."""
    blocks = price_blocks(prices, len(tree.levels[0]) - 1, temperature)
    order = np.argsort(np.concatenate([block.places for block in blocks]))
    found = []
    for part in parts(tree.users, users_per_call(tree.deepest_nodes)):
        some = _filled(tree, part)
        users = part.stop - part.start
        by_block = [_run(some, users, block, temperature, discount, explore, keep) for block in blocks]
        if len(by_block) == 1:
            found += by_block
        else:  # the prices back in the order they were asked for
            found.append([np.concatenate(arrays, axis=-2)[..., order, :] for arrays in zip(*by_block, strict=True)])
    # One part alone, as a planner gives it, is not copied.
    return found[0] if len(found) == 1 else [np.concatenate(arrays, axis=-3) for arrays in zip(*found, strict=True)]


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

    levels, masks, survival = (jax.tree.map(fill, part) for part in (tree.levels, tree.masks, tree.survival))
    return Tree(levels, masks, tree.shares, survival)


def _run(
    tree: Tree, users: int, block: PriceBlock, temperature: float, discount: float, explore: float, keep: _Keep
) -> list[NDArray[np.float32]]:
    """What is to be kept of the first users at the prices that the block was asked for, in numpy."""
    size = users_per_block(tree.deepest_nodes, block.weights.shape[1])
    count = np.int32(-(-users // size))
    # Without exploration its sums are not made at all.
    numbers = (np.float32(temperature), np.float32(discount), np.float32(explore) if explore else None)
    arrays = _compiled(tree, block.weights, *numbers, count, soft=block.soft, finite=block.finite, size=size, keep=keep)
    return [np.asarray(array)[..., :users, : len(block.places), :] for array in arrays]


@partial(jax.jit, static_argnames=("soft", "finite", "size", "keep"))
def _compiled(
    tree: Tree,
    weights: jax.Array,
    temperature: jax.Array,
    discount: jax.Array,
    explore: jax.Array | None,
    count: jax.Array,
    soft: bool,
    finite: bool,
    size: int,
    keep: _Keep,
) -> tuple[jax.Array, ...]:
    """Back up the first `count` blocks of `size` users one after the other, so that nothing of a block leaves the
    cache; zeros for the other users."""

    def block(first: jax.Array | int) -> tuple[jax.Array, ...]:
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        levels = tuple(cut(level, axis=2) for level in tree.levels)
        masks = None if tree.masks is None else tuple(cut(mask, axis=1) for mask in tree.masks)
        survival = None if tree.survival is None else tuple(cut(staying, axis=1) for staying in tree.survival)
        some = Tree(levels, masks, tree.shares, survival)
        if soft:
            return keep(soft_backup(some, weights, temperature, discount, explore))
        if keep is _expected and finite and explore is None and is_followed(some):
            return (followed(some, weights, discount)[..., None],)
        return keep(hard_backup(some, weights, discount, explore, finite))

    def store(position: jax.Array, results: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(whole, own, position * size, whole.ndim - 3)
            for whole, own in zip(results, block(position * size), strict=True)
        )

    users = tree.levels[0].shape[2]
    empty = tuple(
        jnp.zeros((*shape.shape[:-3], users, *shape.shape[-2:]), shape.dtype) for shape in jax.eval_shape(block, 0)
    )
    stored: tuple[jax.Array, ...] = jax.lax.fori_loop(0, count, store, empty)
    return stored


def soft_backup(
    tree: Tree, weights: jax.Array, temperature: jax.Array, discount: jax.Array, explore: jax.Array | None = None
) -> ActionValues:
    """With entropy: values are log-sum-exp. Weights [outcomes, prices] of finite prices, a temperature above 0."""

    def choose(ask: Ask, actions: int, unroll: int) -> Worth:
        # One action at a time, and twice, so that no exponential overflows and nothing of the size
        # [nodes, actions, prices] is ever written to memory.
        highest = jax.lax.fori_loop(
            1, actions, lambda action, best: jnp.maximum(best, ask(action).value), ask(0).value, unroll=unroll
        )

        def add(action: jax.Array, sums: Worth) -> Worth:
            value, outcomes = ask(action)
            weight = jnp.exp((value - highest) * (1 / temperature))
            added = tuple(total + weight * own for total, own in zip(sums.outcomes, outcomes, strict=True))
            return Worth(sums.value + weight, added)

        zero = jnp.zeros_like(highest)
        total, outcomes = jax.lax.fori_loop(0, actions, add, Worth(zero, (zero,) * len(weights)), unroll=unroll)
        return Worth(highest + temperature * jnp.log(total), tuple(own / total for own in outcomes))

    root = _root(tree, weights, _exploring(choose, explore), discount)
    return _finish(root, jax.nn.softmax(root.value / temperature, axis=1), explore)


def hard_backup(
    tree: Tree, weights: jax.Array, discount: jax.Array, explore: jax.Array | None = None, finite: bool = False
) -> ActionValues:
    """Without entropy: values are maxima. Among equals those win who spend least in all, where all prices are finite.

    At an infinite price the value holds no reward, and its ties are many: then the least costs win, in the order of
    budgets, and then the best reward.
    """
    wins, carry = (cheaper, _with_spent) if finite else (in_order, tuple)

    def choose(ask: Ask, actions: int, unroll: int) -> Worth:
        return best(ask, actions, wins, unroll)[0]

    root = _root(tree, weights, _exploring(choose, explore), discount, carry)
    actions = root.value.shape[1]
    chosen = best(lambda action: jax.tree.map(lambda values: values[:, action], root), actions, wins, 1)[1]
    root = Worth(root.value, root.outcomes[: len(weights)])
    return _finish(root, jax.nn.one_hot(chosen, actions, axis=1), explore)


def _with_spent(own: list[jax.Array]) -> list[jax.Array]:
    """Reward and costs, and last what is spent in all: of one budget that is its cost."""
    return own if len(own) == 2 else [*own, sum(own[2:], start=own[1])]


def _exploring(choose: _Choose, explore: jax.Array | None) -> _Choose:
    """What nodes are worth when a share of their decisions is drawn evenly among what they allow."""
    if explore is None:
        return choose

    def chosen(ask: Ask, actions: int, unroll: int) -> Worth:
        own, (even, count) = choose(ask, actions, unroll), _evenly(ask, actions, unroll)
        mixed: Worth = jax.tree.map(lambda one, total: (1 - explore) * one + explore * total / count, own, even)
        return mixed

    return chosen


def _evenly(ask: Ask, actions: int, unroll: int) -> tuple[Worth, jax.Array]:
    """Sums over what nodes allow, and how many actions that is."""

    def add(action: jax.Array, sums: tuple[Worth, jax.Array]) -> tuple[Worth, jax.Array]:
        own = ask(action)
        allowed = own.value > -jnp.inf
        total = jax.tree.map(lambda sum_, value: sum_ + jnp.where(allowed, value, 0.0), sums[0], own)
        return total, sums[1] + allowed

    shape = jax.eval_shape(ask, 0)
    zero = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shape)
    start = (zero, jnp.zeros(shape.value.shape, shape.value.dtype))
    found: tuple[Worth, jax.Array] = jax.lax.fori_loop(0, actions, add, start, unroll=unroll)
    return found


def _root(tree: Tree, weights: jax.Array, choose: _Choose, discount: jax.Array, carry: Carry = tuple) -> Worth:
    """What the first actions are worth, [users, actions, prices]."""
    masks, survival = tree.masks or (None,) * len(tree.levels), tree.survival or (None,) * len(tree.shares)
    actions, prices = tree.levels[0].shape[1], weights.shape[1]
    ask, unroll = worth(tree.levels[-1], masks[-1], None, weights, carry), unrolled(actions, prices, last_level=True)
    above = zip(tree.levels[-2::-1], masks[-2::-1], tree.shares[::-1], survival[::-1], strict=True)
    for level, mask, share, staying in above:
        later = futures(level, share, choose(ask, actions, unroll), discount)
        if staying is not None:
            later = if_staying(later, staying)
        ask, unroll = worth(level, mask, later, weights, carry), unrolled(actions, prices, last_level=False)
    return ask(ALL)


def _finish(root: Worth, probabilities: jax.Array, explore: jax.Array | None) -> ActionValues:
    """[users, actions, prices] -> [users, prices, actions]."""
    if explore is not None:
        allowed = root.value > -jnp.inf
        probabilities = (1 - explore) * probabilities + explore * allowed / allowed.sum(axis=1, keepdims=True)
    to_go = jnp.stack([outcome.swapaxes(1, 2) for outcome in root.outcomes])
    return ActionValues(root.value.swapaxes(1, 2), probabilities.swapaxes(1, 2), to_go)

"""Backup: from the leaves of trees to the value of every first action, for many prices at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.planning.batches import parts, users_per_block, users_per_call
from redenvelope.planning.grow import Tree
from redenvelope.planning.price_block import PriceBlock, price_blocks
from redenvelope.policies.values import ActionValues

__all__ = ["backup", "expected_backup", "hard_backup", "soft_backup"]


class _Worth(NamedTuple):
    """What nodes are worth, [nodes, prices], or actions at nodes, [nodes, actions, prices].

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
# What of the values of some users is wanted: arrays [..., users, prices, anything].
_Keep = Callable[[ActionValues], tuple[jax.Array, ...]]
# Actions in one turn of a loop over them: what is carried along is read and written less often.
_UNROLL = 3


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
    arrays = _compiled(tree, block.weights, *numbers, count, soft=block.soft, size=size, keep=keep)
    return [np.asarray(array)[..., :users, : len(block.places), :] for array in arrays]


@partial(jax.jit, static_argnames=("soft", "size", "keep"))
def _compiled(
    tree: Tree,
    weights: jax.Array,
    temperature: jax.Array,
    discount: jax.Array,
    explore: jax.Array | None,
    count: jax.Array,
    soft: bool,
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
        return keep(hard_backup(some, weights, discount, explore))

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

    def choose(worth: _Ask, actions: int) -> _Worth:
        # One action at a time, and twice, so that no exponential overflows and nothing of the size
        # [nodes, actions, prices] is ever written to memory.
        best = jax.lax.fori_loop(
            1, actions, lambda action, best: jnp.maximum(best, worth(action).value), worth(0).value, unroll=_UNROLL
        )

        def add(action: jax.Array, sums: _Worth) -> _Worth:
            value, outcomes = worth(action)
            weight = jnp.exp((value - best) * (1 / temperature))
            added = tuple(total + weight * own for total, own in zip(sums.outcomes, outcomes, strict=True))
            return _Worth(sums.value + weight, added)

        zero = jnp.zeros_like(best)
        total, outcomes = jax.lax.fori_loop(0, actions, add, _Worth(zero, (zero,) * len(weights)), unroll=_UNROLL)
        return _Worth(best + temperature * jnp.log(total), tuple(own / total for own in outcomes))

    root = _root(tree, weights, _exploring(choose, explore), discount)
    return _finish(root, jax.nn.softmax(root.value / temperature, axis=1), explore)


def hard_backup(tree: Tree, weights: jax.Array, discount: jax.Array, explore: jax.Array | None = None) -> ActionValues:
    """Without entropy: values are maxima; among equals the least costs, in the order of budgets, then the best
    reward. At an infinite price the value holds no reward, so that the other costs and the reward decide its ties."""
    root = _root(tree, weights, _exploring(lambda worth, actions: _best(worth, actions)[0], explore), discount)
    actions = root.value.shape[1]
    chosen = _best(lambda action: jax.tree.map(lambda values: values[:, action], root), actions)[1]
    return _finish(root, jax.nn.one_hot(chosen, actions, axis=1), explore)


def _exploring(choose: _Choose, explore: jax.Array | None) -> _Choose:
    """What nodes are worth when a share of their decisions is drawn evenly among what they allow."""
    if explore is None:
        return choose

    def chosen(worth: _Ask, actions: int) -> _Worth:
        best, (even, count) = choose(worth, actions), _evenly(worth, actions)
        mixed: _Worth = jax.tree.map(lambda own, total: (1 - explore) * own + explore * total / count, best, even)
        return mixed

    return chosen


def _evenly(worth: _Ask, actions: int) -> tuple[_Worth, jax.Array]:
    """Sums over what nodes allow, and how many actions that is."""

    def add(action: jax.Array, sums: tuple[_Worth, jax.Array]) -> tuple[_Worth, jax.Array]:
        own = worth(action)
        allowed = own.value > -jnp.inf
        total = jax.tree.map(lambda sum_, value: sum_ + jnp.where(allowed, value, 0.0), sums[0], own)
        return total, sums[1] + allowed

    shape = jax.eval_shape(worth, 0)
    zero = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shape)
    start = (zero, jnp.zeros(shape.value.shape, shape.value.dtype))
    found: tuple[_Worth, jax.Array] = jax.lax.fori_loop(0, actions, add, start, unroll=_UNROLL)
    return found


def _best(worth: _Ask, actions: int) -> tuple[_Worth, jax.Array]:
    """What the best action is worth, and which it is.

    One action at a time, so that nothing of the size [nodes, actions, prices] is ever written to memory; and in one
    pass: numbers that are made again in another loop may be rounded otherwise, and would not be found again.
    """

    def better(action: jax.Array, best: tuple[_Worth, jax.Array]) -> tuple[_Worth, jax.Array]:
        own = worth(action)
        wins = _wins(own, best[0])
        won: _Worth = jax.tree.map(lambda one, other: jnp.where(wins, one, other), own, best[0])
        return won, jnp.where(wins, action, best[1])

    shape = jax.eval_shape(worth, 0)
    least = jnp.full(shape.value.shape, -jnp.inf, shape.value.dtype)
    nothing = _Worth(least, (least, *(-least for _ in shape.outcomes[1:])))
    start = (nothing, jnp.zeros(least.shape, jnp.int32))
    found: tuple[_Worth, jax.Array] = jax.lax.fori_loop(0, actions, better, start, unroll=_UNROLL)
    return found


def _wins(own: _Worth, best: _Worth) -> jax.Array:
    """Whether an action is better: in value, then in the least costs, in the order of budgets, then in reward."""
    wins = own.outcomes[0] > best.outcomes[0]
    for cost, least in zip(own.outcomes[:0:-1], best.outcomes[:0:-1], strict=True):
        wins = (cost < least) | ((cost == least) & wins)
    found: jax.Array = (own.value > best.value) | ((own.value == best.value) & wins)
    return found


def _root(tree: Tree, weights: jax.Array, choose: _Choose, discount: jax.Array) -> _Worth:
    """What the first actions are worth, [users, actions, prices]."""
    masks, survival = tree.masks or (None,) * len(tree.levels), tree.survival or (None,) * len(tree.shares)
    actions = tree.levels[0].shape[1]
    worth = _worth(tree.levels[-1], masks[-1], None, weights)
    above = zip(tree.levels[-2::-1], masks[-2::-1], tree.shares[::-1], survival[::-1], strict=True)
    for level, mask, share, staying in above:
        futures = _futures(level, share, choose(worth, actions), discount)
        if staying is not None:
            futures = _if_staying(futures, staying)
        worth = _worth(level, mask, futures, weights)
    return worth(_ALL)


def _worth(level: jax.Array, mask: jax.Array | None, futures: _Ask | None, weights: jax.Array) -> _Ask:
    """The function that tells what actions at the nodes of a level [outcomes, actions, users, nodes] are worth."""
    now = level.reshape(*level.shape[:2], -1)
    allowed = None if mask is None else mask.reshape(len(mask), -1)

    def worth(action: Any) -> _Worth:
        # Turned around for all actions at once: they stand between nodes and prices.
        own = [outcome[action].T[..., None] for outcome in now]
        value = weights[0] * own[0]
        for weight, cost in zip(weights[1:], own[1:], strict=True):
            value = value + weight * cost
        if futures is not None:
            future = futures(action)
            value = value + future.value
            own = [outcome + later for outcome, later in zip(own, future.outcomes, strict=True)]
        if allowed is not None:
            value = jnp.where(allowed[action].T[..., None], value, -jnp.inf)
        return _Worth(value, tuple(jnp.broadcast_to(outcome, value.shape) for outcome in own))

    return worth


def _futures(level: jax.Array, share: Any | None, below: _Worth, discount: jax.Array) -> _Ask:
    """The function that tells what follows actions at the nodes of a level, given the nodes below."""
    nodes = level.shape[2] * level.shape[3]
    branches = jax.tree.map(lambda values: discount * values.reshape(nodes, -1, values.shape[-1]), below)
    if share is None:
        return lambda action: jax.tree.map(lambda values: values[:, action], branches)
    return lambda action: jax.tree.map(
        lambda values: jnp.moveaxis(jnp.tensordot(jnp.asarray(share)[action], values, (-1, 1)), -2, 0), branches
    )


def _if_staying(futures: _Ask, survival: jax.Array) -> _Ask:
    """The futures of those who stay, with a chance [actions, users, nodes]: who leaves brings nothing."""
    chances = survival.reshape(len(survival), -1)
    return lambda action: jax.tree.map(lambda values: chances[action].T[..., None] * values, futures(action))


def _finish(root: _Worth, probabilities: jax.Array, explore: jax.Array | None) -> ActionValues:
    """[users, actions, prices] -> [users, prices, actions]."""
    if explore is not None:
        allowed = root.value > -jnp.inf
        probabilities = (1 - explore) * probabilities + explore * allowed / allowed.sum(axis=1, keepdims=True)
    to_go = jnp.stack([outcome.swapaxes(1, 2) for outcome in root.outcomes])
    return ActionValues(root.value.swapaxes(1, 2), probabilities.swapaxes(1, 2), to_go)

"""The Bellman core: values backed up from the leaves of trees to every first action, for many prices at once; which
action is best, how ties are broken (the cheapest of equals), the soft maximum, and exploration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.planning.tree import Tree, parts, users_per_block, users_per_call
from redenvelope.policies.action_values import ActionValues
from redenvelope.prices import checked_prices, outcome_weights

# What actions at the nodes of trees are worth, for many prices at once, and which of them is the best.


class NodeValue(NamedTuple):
    """What nodes are worth, [nodes, prices], or actions at nodes, [nodes, actions, prices].

    The prices come last: they fill the vector registers, or, where there is one, the nodes do.
    """

    value: jax.Array
    outcomes: tuple[jax.Array, ...]
    """What is carried along to go, without entropy bonus: reward and costs, what of them is spent, or both."""


# What one action, given by its index, or all of them, given by `ALL`, are worth at the nodes of a level.
Ask = Callable[[Any], NodeValue]
# Whether one is better than another, [nodes, prices].
Wins = Callable[[NodeValue, NodeValue], jax.Array]
# From the outcomes of actions, [nodes, 1] each, to what is carried along.
Carry = Callable[[list[jax.Array]], Sequence[jax.Array]]
ALL = slice(None)
# Actions in one turn of a loop over them: what is carried along is read and written less often. Few actions at many
# prices are worked on without a loop, at the price of longer compiling, where it is worth it: on the last level, which
# has most of the nodes.
_UNROLL = 3
_FEW_ACTIONS = 12
_MANY_PRICES = 8


def unrolled(actions: int, prices: int, last_level: bool) -> int:
    """Actions in one turn of a loop over them."""
    return actions if last_level and actions <= _FEW_ACTIONS and prices >= _MANY_PRICES else _UNROLL


def node_value(
    level: jax.Array, mask: jax.Array | None, later: Ask | None, weights: jax.Array, carry: Carry = tuple
) -> Ask:
    """The function that tells what actions at the nodes of a level [outcomes, actions, users, nodes] are worth, with
    what follows them later."""
    now = level.reshape(*level.shape[:2], -1)
    allowed = None if mask is None else mask.reshape(len(mask), -1)

    def ask(action: Any) -> NodeValue:
        # Turned around for all actions at once: they stand between nodes and prices.
        own = [outcome[action].T[..., None] for outcome in now]
        value = weights[0] * own[0]
        for weight, cost in zip(weights[1:], own[1:], strict=True):
            value = value + weight * cost
        carried = list(carry(own))
        if later is not None:
            future = later(action)
            value = value + future.value
            carried = [outcome + after for outcome, after in zip(carried, future.outcomes, strict=True)]
        if allowed is not None:
            value = jnp.where(allowed[action].T[..., None], value, -jnp.inf)
        return NodeValue(value, tuple(jnp.broadcast_to(outcome, value.shape) for outcome in carried))

    return ask


def futures(level: jax.Array, share: Any | None, below: NodeValue, discount: jax.Array) -> Ask:
    """The function that tells what follows actions at the nodes of a level, given the nodes below."""
    nodes = level.shape[2] * level.shape[3]
    branches = jax.tree.map(lambda values: discount * values.reshape(nodes, -1, values.shape[-1]), below)
    if share is None:
        return lambda action: jax.tree.map(lambda values: values[:, action], branches)
    return lambda action: jax.tree.map(
        lambda values: jnp.moveaxis(jnp.tensordot(jnp.asarray(share)[action], values, (-1, 1)), -2, 0), branches
    )


def if_staying(later: Ask, survival: jax.Array) -> Ask:
    """The futures of those who stay, with a chance [actions, users, nodes]: who leaves brings nothing."""
    chances = survival.reshape(len(survival), -1)
    return lambda action: jax.tree.map(lambda values: chances[action].T[..., None] * values, later(action))


def best(ask: Ask, actions: int, wins: Wins, unroll: int) -> tuple[NodeValue, jax.Array]:
    """What the best action is worth, and which it is.

    One action at a time, so that nothing of the size [nodes, actions, prices] is ever written to memory; and in one
    pass: numbers that are made again in another loop may be rounded otherwise, and would not be found again.
    """

    def better(action: jax.Array, found: tuple[NodeValue, jax.Array]) -> tuple[NodeValue, jax.Array]:
        own = ask(action)
        won = wins(own, found[0])
        kept: NodeValue = jax.tree.map(lambda one, other: jnp.where(won, one, other), own, found[0])
        return kept, jnp.where(won, action, found[1])

    shape = jax.eval_shape(ask, 0)
    least = jnp.full(shape.value.shape, -jnp.inf, shape.value.dtype)
    # Less than anything: the first that is allowed wins.
    start = (NodeValue(least, tuple(least for _ in shape.outcomes)), jnp.zeros(least.shape, jnp.int32))
    found: tuple[NodeValue, jax.Array] = jax.lax.fori_loop(0, actions, better, start, unroll=unroll)
    return found


def cheaper(own: NodeValue, other: NodeValue) -> jax.Array:
    """Whether an action is better at finite prices: in value, then in what is spent, which is carried last."""
    less = own.outcomes[-1] < other.outcomes[-1]
    found: jax.Array = (own.value > other.value) | ((own.value == other.value) & less)
    return found


def in_order(own: NodeValue, other: NodeValue) -> jax.Array:
    """Whether an action is better: in value, then in the least costs, in the order of budgets, then in reward."""
    wins = own.outcomes[0] > other.outcomes[0]
    for cost, least in zip(own.outcomes[:0:-1], other.outcomes[:0:-1], strict=True):
        wins = (cost < least) | ((cost == least) & wins)
    found: jax.Array = (own.value > other.value) | ((own.value == other.value) & wins)
    return found


# What of the values of some users is wanted: arrays [..., users, prices, anything].
_Keep = Callable[[ActionValues], tuple[jax.Array, ...]]
# From what actions are worth, their number, and how many are worked on in one turn of a loop, to what nodes are worth.
_Choose = Callable[[Ask, int, int], NodeValue]


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
        if keep is _expected and finite and explore is None and has_greedy_path(some):
            return (greedy_path(some, weights, discount)[..., None],)
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

    def choose(ask: Ask, actions: int, unroll: int) -> NodeValue:
        # One action at a time, and twice, so that no exponential overflows and nothing of the size
        # [nodes, actions, prices] is ever written to memory.
        highest = jax.lax.fori_loop(
            1, actions, lambda action, best: jnp.maximum(best, ask(action).value), ask(0).value, unroll=unroll
        )

        def add(action: jax.Array, sums: NodeValue) -> NodeValue:
            value, outcomes = ask(action)
            weight = jnp.exp((value - highest) * (1 / temperature))
            added = tuple(total + weight * own for total, own in zip(sums.outcomes, outcomes, strict=True))
            return NodeValue(sums.value + weight, added)

        zero = jnp.zeros_like(highest)
        total, outcomes = jax.lax.fori_loop(0, actions, add, NodeValue(zero, (zero,) * len(weights)), unroll=unroll)
        return NodeValue(highest + temperature * jnp.log(total), tuple(own / total for own in outcomes))

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

    def choose(ask: Ask, actions: int, unroll: int) -> NodeValue:
        return best(ask, actions, wins, unroll)[0]

    root = _root(tree, weights, _exploring(choose, explore), discount, carry)
    actions = root.value.shape[1]
    chosen = best(lambda action: jax.tree.map(lambda values: values[:, action], root), actions, wins, 1)[1]
    root = NodeValue(root.value, root.outcomes[: len(weights)])
    return _finish(root, jax.nn.one_hot(chosen, actions, axis=1), explore)


def _with_spent(own: list[jax.Array]) -> list[jax.Array]:
    """Reward and costs, and last what is spent in all: of one budget that is its cost."""
    return own if len(own) == 2 else [*own, sum(own[2:], start=own[1])]


def _exploring(choose: _Choose, explore: jax.Array | None) -> _Choose:
    """What nodes are worth when a share of their decisions is drawn evenly among what they allow."""
    if explore is None:
        return choose

    def chosen(ask: Ask, actions: int, unroll: int) -> NodeValue:
        own, (even, count) = choose(ask, actions, unroll), _evenly(ask, actions, unroll)
        mixed: NodeValue = jax.tree.map(lambda one, total: (1 - explore) * one + explore * total / count, own, even)
        return mixed

    return chosen


def _evenly(ask: Ask, actions: int, unroll: int) -> tuple[NodeValue, jax.Array]:
    """Sums over what nodes allow, and how many actions that is."""

    def add(action: jax.Array, sums: tuple[NodeValue, jax.Array]) -> tuple[NodeValue, jax.Array]:
        own = ask(action)
        allowed = own.value > -jnp.inf
        total = jax.tree.map(lambda sum_, value: sum_ + jnp.where(allowed, value, 0.0), sums[0], own)
        return total, sums[1] + allowed

    shape = jax.eval_shape(ask, 0)
    zero = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shape)
    start = (zero, jnp.zeros(shape.value.shape, shape.value.dtype))
    found: tuple[NodeValue, jax.Array] = jax.lax.fori_loop(0, actions, add, start, unroll=unroll)
    return found


def _root(tree: Tree, weights: jax.Array, choose: _Choose, discount: jax.Array, carry: Carry = tuple) -> NodeValue:
    """What the first actions are worth, [users, actions, prices]."""
    masks, survival = tree.masks or (None,) * len(tree.levels), tree.survival or (None,) * len(tree.shares)
    actions, prices = tree.levels[0].shape[1], weights.shape[1]
    ask, unroll = (
        node_value(tree.levels[-1], masks[-1], None, weights, carry),
        unrolled(actions, prices, last_level=True),
    )
    above = zip(tree.levels[-2::-1], masks[-2::-1], tree.shares[::-1], survival[::-1], strict=True)
    for level, mask, share, staying in above:
        later = futures(level, share, choose(ask, actions, unroll), discount)
        if staying is not None:
            later = if_staying(later, staying)
        ask, unroll = node_value(level, mask, later, weights, carry), unrolled(actions, prices, last_level=False)
    return ask(ALL)


def _finish(root: NodeValue, probabilities: jax.Array, explore: jax.Array | None) -> ActionValues:
    """[users, actions, prices] -> [users, prices, actions]."""
    if explore is not None:
        allowed = root.value > -jnp.inf
        probabilities = (1 - explore) * probabilities + explore * allowed / allowed.sum(axis=1, keepdims=True)
    to_go = jnp.stack([outcome.swapaxes(1, 2) for outcome in root.outcomes])
    return ActionValues(root.value.swapaxes(1, 2), probabilities.swapaxes(1, 2), to_go)


# The one path that a policy without chance takes through a full tree: what comes of it, for many prices at once.
#
# On the way up nodes carry a value, what is spent, and which action is the best, however many budgets there are;
# costs are looked up on the way down, at the nodes of the path alone.


def has_greedy_path(tree: Tree) -> bool:
    """Whether every action leads to one node: in a thinned tree it may lead to two."""
    return all(share is None for share in tree.shares)


def greedy_path(tree: Tree, weights: jax.Array, discount: jax.Array) -> jax.Array:
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
        ask = node_value(tree.levels[depth], masks[depth], later, weights, _spent)
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


# Prices in blocks that are backed up together: finite ones, and those at the ends.


# Every new number of prices is compiled anew, so there are few such numbers.
_SIZES = (1, 2, 8, 24, 64)


@dataclass(frozen=True, eq=False)
class PriceBlock:
    """Some of the prices that were asked for."""

    places: NDArray[np.intp]
    """Where they stand among all, [asked]."""
    weights: NDArray[np.float32]
    """What each outcome counts, [outcomes, prices]: those asked for, the last repeated up to one of few lengths."""
    soft: bool
    """With entropy: only finite prices can be."""
    finite: bool


def price_blocks(prices: ArrayLike, budgets: int, temperature: float) -> tuple[PriceBlock, ...]:
    """Blocks of prices [prices, budgets]: the finite ones, at a temperature with entropy, and others."""
    table = checked_prices(prices, budgets)
    with np.errstate(over="ignore"):  # beyond 3e38 a price is as good as infinite
        table = table.astype(np.float32)
    finite = np.isfinite(table).all(axis=1)
    weights = outcome_weights(table).astype(np.float32)
    return tuple(
        PriceBlock(places, _padded(weights[:, places]), kind and temperature > 0, kind)
        for kind in (True, False)
        if len(places := np.flatnonzero(finite == kind))
    )


def _padded(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """[outcomes, prices], the last repeated."""
    count = weights.shape[1]
    unit = next((size for size in _SIZES if count <= size), _SIZES[-1])
    return np.pad(weights, ((0, 0), (0, -count % unit)), mode="edge")

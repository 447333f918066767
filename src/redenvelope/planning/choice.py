"""The Bellman core: hard or soft maximum over actions, tie-breaking (the cheapest of equals) and exploration.

Trees are backed up from their leaves to the first actions for many prices at once. At prices λ an action is worth
r − Σₖ λₖ cₖ plus the discounted value of its successor; a node is worth its best action, the log-sum-exp at a
temperature above 0, or either mixed with a uniform draw. Main names: `Choice`, `action_values`, `state_values`,
`in_order` (the tie-break) and `price_blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.planning.tree import Tree
from redenvelope.policies.action_values import ActionValues
from redenvelope.prices import PriceGrid, checked_prices, outcome_weights

# The values of actions at the nodes of trees, for many prices at once, and which action is the best.


class NodeValue(NamedTuple):
    """Values of nodes, [nodes, prices], or of actions at nodes, [nodes, actions, prices].

    Prices are the last axis, so that they fill the vector registers; with a single price, the nodes do.
    """

    value: jax.Array
    outcomes: tuple[jax.Array, ...]
    """Reward and costs to go, without entropy bonus."""


# The values, at the nodes of a level, of one action (by its index) or of all (`ALL`).
Ask = Callable[[Any], NodeValue]
ALL = slice(None)
# Actions per iteration of the loop over actions: unrolling reads and writes the loop's state less often. Few actions at
# many prices are unrolled completely on the last level, which has most of the nodes; elsewhere the longer compile time
# does not pay.
_UNROLL = 3
_FEW_ACTIONS = 12
_MANY_PRICES = 8
# With so few values (a single decision, which somebody waits for) the loop's overhead exceeds the arithmetic.
_FEW_VALUES = 256


def unrolled(actions: int, prices: int, nodes: int, last_level: bool) -> int:
    """Actions per iteration of the loop over actions."""
    few = actions <= _FEW_ACTIONS and (nodes * prices <= _FEW_VALUES or (last_level and prices >= _MANY_PRICES))
    return actions if few else _UNROLL


def node_value(level: jax.Array, mask: jax.Array | None, later: Ask | None, weights: jax.Array) -> Ask:
    """The function that returns the values of actions at the nodes of a level [outcomes, actions, users, nodes];
    `later` returns the value of what follows them."""
    now = level.reshape(*level.shape[:2], -1)
    allowed = None if mask is None else mask.reshape(len(mask), -1)

    def ask(action: Any) -> NodeValue:
        # Transposed, because with all actions at once their axis is between nodes and prices.
        own = [outcome[action].T[..., None] for outcome in now]
        value = weights[0] * own[0]
        for weight, cost in zip(weights[1:], own[1:], strict=True):
            value = value + weight * cost
        carried = own
        if later is not None:
            future = later(action)
            value = value + future.value
            carried = [outcome + after for outcome, after in zip(own, future.outcomes, strict=True)]
        if allowed is not None:
            value = jnp.where(allowed[action].T[..., None], value, -jnp.inf)
        return NodeValue(value, tuple(jnp.broadcast_to(outcome, value.shape) for outcome in carried))

    return ask


def futures(level: jax.Array, below: NodeValue, discount: jax.Array, survival: jax.Array | None) -> Ask:
    """The function that returns the discounted values that follow actions at the nodes of a level, given those of the
    nodes below and the survival probability [actions, users, nodes]: a user who leaves is worth 0 from then on."""
    nodes = level.shape[2] * level.shape[3]
    branches = jax.tree.map(lambda values: discount * values.reshape(nodes, -1, values.shape[-1]), below)
    if survival is None:
        return lambda action: jax.tree.map(lambda values: values[:, action], branches)
    chances = survival.reshape(len(survival), -1)
    return lambda action: jax.tree.map(lambda values: chances[action].T[..., None] * values[:, action], branches)


def best(ask: Ask, actions: int, unroll: int) -> tuple[NodeValue, jax.Array]:
    """Value of the best action, and its index, [nodes, prices].

    Actions are compared one at a time, so that no array [nodes, actions, prices] is written to memory, and in a single
    pass: a value computed again in a second loop may be rounded differently, and would not equal the maximum.
    """

    def better(action: jax.Array, found: tuple[NodeValue, jax.Array]) -> tuple[NodeValue, jax.Array]:
        own = ask(action)
        won = in_order(own, found[0])
        kept: NodeValue = jax.tree.map(lambda one, other: jnp.where(won, one, other), own, found[0])
        return kept, jnp.where(won, action, found[1])

    shape = jax.eval_shape(ask, 0)
    least = jnp.full(shape.value.shape, -jnp.inf, shape.value.dtype)
    # Below every value, so that the first allowed action wins.
    start = (NodeValue(least, tuple(least for _ in shape.outcomes)), jnp.zeros(least.shape, jnp.int32))
    found: tuple[NodeValue, jax.Array] = jax.lax.fori_loop(0, actions, better, start, unroll=unroll)
    return found


def in_order(own: NodeValue, other: NodeValue) -> jax.Array:
    """Whether `own` beats `other`: by value, then by lower costs in the order of budgets, then by reward; if all are
    equal, the earlier action stays. `finite` and the ends of the search in `dual/one_step.py` break ties alike."""
    wins = own.outcomes[0] > other.outcomes[0]
    for cost, least in zip(own.outcomes[:0:-1], other.outcomes[:0:-1], strict=True):
        wins = (cost < least) | ((cost == least) & wins)
    found: jax.Array = (own.value > other.value) | ((own.value == other.value) & wins)
    return found


@dataclass(frozen=True)
class Choice:
    """How an action is chosen at every node: by the hard or soft maximum, with an exploration share."""

    temperature: jax.Array | None
    """Above 0, and only at finite prices; None takes the best action."""
    discount: jax.Array
    explore: jax.Array | None
    """Exploration share; None skips the sums over allowed actions altogether."""

    def node(self, ask: Ask, actions: int, unroll: int) -> NodeValue:
        """Values of nodes, given those of their actions."""
        if self.temperature is None:
            own = best(ask, actions, unroll)[0]
        else:
            own = _soft_maximum(ask, actions, unroll, self.temperature)
        if self.explore is None:
            return own
        explore = self.explore
        even, count = _evenly(ask, actions, unroll)
        mixed: NodeValue = jax.tree.map(lambda one, total: (1 - explore) * one + explore * total / count, own, even)
        return mixed

    def probabilities(self, root: NodeValue) -> jax.Array:
        """Probabilities of first actions with values `root`, [users, actions, prices]."""
        if self.temperature is None:
            actions = root.value.shape[1]
            chosen = best(lambda action: jax.tree.map(lambda values: values[:, action], root), actions, 1)[1]
            found = jax.nn.one_hot(chosen, actions, axis=1)
        else:
            found = jax.nn.softmax(root.value / self.temperature, axis=1)
        return found if self.explore is None else explored(found, root.value > -jnp.inf, self.explore, axis=1)


_LEAST = -1e30
"""Below every value of an allowed action, and finite: an action that is not allowed has the value −∞."""


def _soft_maximum(ask: Ask, actions: int, unroll: int, temperature: jax.Array) -> NodeValue:
    """Values of nodes with entropy: log-sum-exp over actions; outcomes are means under the softmax policy."""
    # One pass with a running maximum: a value computed again in a second pass may be rounded differently, and at a low
    # temperature the exponential of that difference overflows, or is 0 for every action. One action at a time, so that
    # no array [nodes, actions, prices] is written to memory.

    def add(action: jax.Array, sums: tuple[NodeValue, jax.Array]) -> tuple[NodeValue, jax.Array]:
        (total, outcomes), highest = sums
        value, own = ask(action)
        gap = (value - highest) * (1 / temperature)
        weight, kept = jnp.exp(jnp.minimum(gap, 0.0)), jnp.exp(jnp.minimum(-gap, 0.0))
        added = tuple(kept * before + weight * each for before, each in zip(outcomes, own, strict=True))
        return NodeValue(kept * total + weight, added), jnp.maximum(highest, value)

    shape = jax.eval_shape(ask, 0)
    zero = jnp.zeros(shape.value.shape, shape.value.dtype)
    start = NodeValue(zero, (zero,) * len(shape.outcomes)), jnp.full_like(zero, _LEAST)
    (total, outcomes), highest = jax.lax.fori_loop(0, actions, add, start, unroll=unroll)
    return NodeValue(highest + temperature * jnp.log(total), tuple(own / total for own in outcomes))


Ends = Sequence[jax.Array]
"""Leaf values, [users · leaves, prices] each: reward and costs to go; with entropy, its bonus."""


def action_values(tree: Tree, weights: jax.Array, choice: Choice, ends: Ends | None = None) -> ActionValues:
    """Values of first actions at prices with weights [outcomes, prices], backed up from the leaves."""
    root = _root(tree, weights, choice, ends)[0](ALL)
    to_go = jnp.stack([outcome.swapaxes(1, 2) for outcome in root.outcomes])
    return ActionValues(root.value.swapaxes(1, 2), choice.probabilities(root).swapaxes(1, 2), to_go)


def state_values(tree: Tree, weights: jax.Array, choice: Choice, ends: Ends | None = None) -> jax.Array:
    """Penalised reward (and entropy bonus) to go, then the policy's outcomes to go: [1 + outcomes, users, prices]."""
    worth = choice.node(*_root(tree, weights, choice, ends))
    return jnp.stack([worth.value, *worth.outcomes])


def explored(probabilities: jax.Array, allowed: jax.Array, explore: jax.Array | float, axis: int) -> jax.Array:
    """Action probabilities along an axis, with a share `explore` drawn uniformly from the allowed actions."""
    return (1 - explore) * probabilities + explore * allowed / jnp.maximum(allowed.sum(axis=axis, keepdims=True), 1)


def _evenly(ask: Ask, actions: int, unroll: int) -> tuple[NodeValue, jax.Array]:
    """Sums of the values of allowed actions, and the number of allowed actions, [nodes, prices]."""

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


def _root(tree: Tree, weights: jax.Array, choice: Choice, ends: Ends | None) -> tuple[Ask, int, int]:
    """The function that returns the values of first actions, their number, and how many a loop iteration handles."""
    ask, unroll = _level(tree, -1, _after_leaves(tree, weights, choice, ends), weights)
    for place in range(len(tree.levels) - 2, -1, -1):
        below = choice.node(ask, tree.actions, unroll)
        later = futures(tree.levels[place], below, choice.discount, _survival(tree, place))
        ask, unroll = _level(tree, place, later, weights)
    return ask, tree.actions, unroll


def _after_leaves(tree: Tree, weights: jax.Array, choice: Choice, ends: Ends | None) -> Ask | None:
    """The function that returns what follows the actions of the last level; None without leaf values."""
    if ends is None:
        return None
    outcomes, bonus = list(ends[: len(weights)]), ends[len(weights) :]
    value = sum((weight * outcome for weight, outcome in zip(weights, outcomes, strict=True)), jnp.zeros(()))
    for part in bonus:
        value = value + weights[0] * part
    return futures(
        tree.levels[-1], NodeValue(value, tuple(outcomes)), choice.discount, _survival(tree, len(tree.levels) - 1)
    )


def _level(tree: Tree, place: int, later: Ask | None, weights: jax.Array) -> tuple[Ask, int]:
    """The function that returns values of actions at the nodes of a level, and how many a loop iteration handles."""
    mask = None if tree.masks is None else tree.masks[place]
    ask = node_value(tree.levels[place], mask, later, weights)
    nodes = tree.users * tree.levels[place].shape[3]
    last = place in (-1, len(tree.levels) - 1)
    return ask, unrolled(tree.actions, weights.shape[1], nodes, last_level=last)


def _survival(tree: Tree, place: int) -> jax.Array | None:
    """Survival probability after a level, [actions, users, nodes]; None if nobody leaves."""
    return None if tree.survival is None else tree.survival[place]


# Blocks of prices that are backed up together: soft prices (with entropy) and hard ones.


FEW_PRICES, SOME_PRICES = (1, 2, 8), (8, 24, 64)
"""Numbers of prices that programs are compiled for; few, because each one needs a program of its own."""
_HARD_PRICES = (1, 8, 24, 64)  # with a temperature, often only the infinite price is hard


Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PriceBlock:
    """Some of the requested prices, padded to one of few lengths by repeating the last."""

    places: NDArray[np.intp]
    """Their positions among all requested prices, [requested]."""
    weights: Any
    """Weight of each outcome, [outcomes, prices]."""
    knots: Any
    """Weight of each point of the leaf values' price grid, [points, prices]; no points without leaf values."""
    soft: bool
    """Whether actions are chosen with entropy; only at finite prices."""


def price_blocks(
    prices: ArrayLike, budgets: int, temperature: float, grid: PriceGrid | None = None, sizes: Sizes = SOME_PRICES
) -> tuple[PriceBlock, ...]:
    """Blocks of prices [prices, budgets]: a soft one of the finite prices if the temperature is above 0, a hard one of
    the others.

    `grid` is the price grid of the leaf values; a block has one of the `sizes`, or a multiple of the last.
    """
    table = checked_prices(prices, budgets)
    with np.errstate(over="ignore"):  # beyond 3e38 a price is as good as infinite
        table = table.astype(np.float32)
    weights = outcome_weights(table).astype(np.float32)
    knots = np.zeros((0, len(table)), np.float32) if grid is None else grid.weights(table).T.astype(np.float32)
    soft = np.isfinite(table).all(axis=1) & (temperature > 0)
    blocks = []
    for kind, lengths in ((True, sizes), (False, _HARD_PRICES)):
        places = np.flatnonzero(soft == kind)
        if len(places):
            own, points = (_padded(each[:, places], lengths) for each in (weights, knots))
            blocks.append(PriceBlock(places, own, points, kind))
    return tuple(blocks)


def _padded(weights: NDArray[np.float32], sizes: Sizes) -> NDArray[np.float32]:
    """Weights [any, prices], with the last price repeated up to one of the sizes or a multiple of the last size."""
    count = weights.shape[1]
    unit = next((size for size in sizes if count <= size), sizes[-1])
    return np.pad(weights, ((0, 0), (0, -count % unit)), mode="edge")

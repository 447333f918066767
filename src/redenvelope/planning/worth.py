"""What actions at the nodes of trees are worth, for many prices at once, and which of them is the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = [
    "ALL",
    "Ask",
    "Carry",
    "Wins",
    "Worth",
    "best",
    "cheaper",
    "futures",
    "if_staying",
    "in_order",
    "unrolled",
    "worth",
]


class Worth(NamedTuple):
    """What nodes are worth, [nodes, prices], or actions at nodes, [nodes, actions, prices].

    The prices come last: they fill the vector registers, or, where there is one, the nodes do.
    """

    value: jax.Array
    outcomes: tuple[jax.Array, ...]
    """What is carried along to go, without entropy bonus: reward and costs, what of them is spent, or both."""


# What one action, given by its index, or all of them, given by `ALL`, are worth at the nodes of a level.
Ask = Callable[[Any], Worth]
# Whether one is better than another, [nodes, prices].
Wins = Callable[[Worth, Worth], jax.Array]
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


def worth(level: jax.Array, mask: jax.Array | None, later: Ask | None, weights: jax.Array, carry: Carry = tuple) -> Ask:
    """The function that tells what actions at the nodes of a level [outcomes, actions, users, nodes] are worth, with
    what follows them later."""
    now = level.reshape(*level.shape[:2], -1)
    allowed = None if mask is None else mask.reshape(len(mask), -1)

    def ask(action: Any) -> Worth:
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
        return Worth(value, tuple(jnp.broadcast_to(outcome, value.shape) for outcome in carried))

    return ask


def futures(level: jax.Array, share: Any | None, below: Worth, discount: jax.Array) -> Ask:
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


def best(ask: Ask, actions: int, wins: Wins, unroll: int) -> tuple[Worth, jax.Array]:
    """What the best action is worth, and which it is.

    One action at a time, so that nothing of the size [nodes, actions, prices] is ever written to memory; and in one
    pass: numbers that are made again in another loop may be rounded otherwise, and would not be found again.
    """

    def better(action: jax.Array, found: tuple[Worth, jax.Array]) -> tuple[Worth, jax.Array]:
        own = ask(action)
        won = wins(own, found[0])
        kept: Worth = jax.tree.map(lambda one, other: jnp.where(won, one, other), own, found[0])
        return kept, jnp.where(won, action, found[1])

    shape = jax.eval_shape(ask, 0)
    least = jnp.full(shape.value.shape, -jnp.inf, shape.value.dtype)
    # Less than anything: the first that is allowed wins.
    start = (Worth(least, tuple(least for _ in shape.outcomes)), jnp.zeros(least.shape, jnp.int32))
    found: tuple[Worth, jax.Array] = jax.lax.fori_loop(0, actions, better, start, unroll=unroll)
    return found


def cheaper(own: Worth, other: Worth) -> jax.Array:
    """Whether an action is better at finite prices: in value, then in what is spent, which is carried last."""
    less = own.outcomes[-1] < other.outcomes[-1]
    found: jax.Array = (own.value > other.value) | ((own.value == other.value) & less)
    return found


def in_order(own: Worth, other: Worth) -> jax.Array:
    """Whether an action is better: in value, then in the least costs, in the order of budgets, then in reward."""
    wins = own.outcomes[0] > other.outcomes[0]
    for cost, least in zip(own.outcomes[:0:-1], other.outcomes[:0:-1], strict=True):
        wins = (cost < least) | ((cost == least) & wins)
    found: jax.Array = (own.value > other.value) | ((own.value == other.value) & wins)
    return found

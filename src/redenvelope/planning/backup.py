"""Backup: from the leaves of a tree to the value of every first action, for a vector of duals at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.planning.batches import in_batches
from redenvelope.planning.expand import Level, Tree

__all__ = [
    "Backup",
    "Terms",
    "backup",
    "backup_terms",
    "checked_duals",
    "hard_backup",
    "make_terms",
    "soft_backup",
    "split_terms",
]


class Backup(NamedTuple):
    """What every first action is worth, user by user and dual by dual."""

    q: jax.Array
    """Penalised reward to go (and entropy bonus of later steps), [users, duals, actions]; -inf if not
    eligible. Minus the cost to go where the dual is infinite."""
    probabilities: jax.Array
    """Of each first action, [users, duals, actions]."""
    reward_to_go: jax.Array
    """Reward of the action and of the policy after it, without entropy bonus, [users, duals, actions]."""
    cost_to_go: jax.Array
    """Cost of the action and of the policy after it, [users, duals, actions]."""


class _Worth(NamedTuple):
    """What nodes are worth, [nodes, duals], or actions at nodes, [nodes, actions, duals].

    The duals come last: they fill the vector registers.
    """

    value: jax.Array
    reward: jax.Array
    cost: jax.Array


# What one action, given by its index, or all of them, given by `_ALL`, are worth at the nodes of a level.
_Ask = Callable[[Any], _Worth]
# From that, and the number of actions, to what the nodes are worth.
_Choose = Callable[[_Ask, int], _Worth]
_ALL = slice(None)


def backup(
    tree: Tree,
    duals: ArrayLike,
    temperature: float,
    eligible: NDArray[np.bool_] | None = None,
    discount: float = 1.0,
) -> Backup:
    """Back a tree up for duals [duals], softly where the temperature is above 0.

    `eligible` [users, actions] holds at every step of the user's tree. An infinite dual plans on cost
    alone, and on reward among what is equally cheap, at any temperature.
    """
    terms, order = make_terms(duals, temperature, discount)
    mask = None if eligible is None else jnp.asarray(eligible, dtype=bool)
    # Put in order by numpy: jax would compile a program for that, too, for every number of duals.
    return Backup(*(jnp.asarray(np.asarray(array)[:, order]) for array in _compiled(tree, terms, mask)))


class Terms(NamedTuple):
    """The numbers that a backup is made with."""

    soft_duals: Any
    """Finite, where the temperature is above 0: [soft]."""
    hard_duals: Any
    """[hard]."""
    temperature: Any
    discount: Any


def make_terms(duals: ArrayLike, temperature: float, discount: float) -> tuple[Terms, NDArray[np.intp]]:
    """Terms for duals [duals], and where each of them is found among the soft and then the hard, [duals]."""
    prices = checked_duals(duals)
    is_soft = np.isfinite(prices) & (temperature > 0)
    soft, hard = _filled(prices[is_soft]), _filled(prices[~is_soft])
    places = np.empty(len(prices), dtype=np.intp)
    places[is_soft] = np.arange(is_soft.sum())
    places[~is_soft] = len(soft) + np.arange((~is_soft).sum())
    return Terms(soft, hard, np.float32(temperature), np.float32(discount)), places


def split_terms(terms: Terms) -> tuple[Terms, ...]:
    """The soft and the hard duals apart, those that there are: two small programs serve more than all their pairs."""
    none = np.zeros(0, np.float32)
    parts = (terms._replace(hard_duals=none), terms._replace(soft_duals=none))
    return tuple(part for part in parts if part.soft_duals.size + part.hard_duals.size)


def _filled(duals: NDArray[np.float32]) -> NDArray[np.float32]:
    """Duals, the last repeated: every new number of duals is compiled anew, so there are few such numbers."""
    if not len(duals):
        return duals
    unit = 2 if len(duals) <= 2 else 8 if len(duals) <= 8 else 64
    return np.pad(duals, (0, -len(duals) % unit), mode="edge")


def backup_terms(tree: Tree, terms: Terms, eligible: jax.Array | None) -> Backup:
    """The backup of one batch of users at the soft and then the hard duals, inside a compiled program."""
    parts = []
    if terms.soft_duals.size:
        parts.append(soft_backup(tree, terms.soft_duals, terms.temperature, eligible, terms.discount))
    if terms.hard_duals.size:
        parts.append(hard_backup(tree, terms.hard_duals, eligible, terms.discount))
    return Backup(*(jnp.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)))


@eqx.filter_jit
def _compiled(tree: Tree, terms: Terms, eligible: jax.Array | None) -> Backup:
    def batch(users: tuple[tuple[Level, ...], jax.Array | None]) -> Backup:
        return backup_terms(Tree(users[0], tree.shares), terms, users[1])

    return in_batches(batch, (tree.levels, eligible), tree.deepest_nodes)


def checked_duals(duals: ArrayLike) -> NDArray[np.float32]:
    """Duals as a vector of numbers of at least 0."""
    prices = np.atleast_1d(np.asarray(duals, dtype=np.float64))
    if prices.ndim != 1 or prices.size == 0 or not (prices >= 0).all():
        raise UsageError("duals must be a list of numbers of at least 0 (infinity plans on cost alone)")
    with np.errstate(over="ignore"):  # beyond 3e38 a price is as good as infinite
        return prices.astype(np.float32)


def soft_backup(
    tree: Tree, duals: jax.Array, temperature: jax.Array, eligible: jax.Array | None, discount: jax.Array
) -> Backup:
    """With entropy: values are log-sum-exp. Finite duals [duals] only, and a temperature above 0."""

    def choose(worth: _Ask, actions: int) -> _Worth:
        # One action at a time, and twice, so that no exponential overflows and nothing of the size
        # [nodes, actions, duals] is ever written to memory.
        best = jax.lax.fori_loop(
            1, actions, lambda action, best: jnp.maximum(best, worth(action).value), worth(0).value
        )

        def add(action: jax.Array, sums: _Worth) -> _Worth:
            value, reward, cost = worth(action)
            weight = jnp.exp((value - best) * (1 / temperature))
            return _Worth(sums.value + weight, sums.reward + weight * reward, sums.cost + weight * cost)

        zero = jnp.zeros_like(best)
        total, reward, cost = jax.lax.fori_loop(0, actions, add, _Worth(zero, zero, zero))
        return _Worth(best + temperature * jnp.log(total), reward / total, cost / total)

    root = _root(tree, duals, choose, eligible, discount)
    return _finish(root, jax.nn.softmax(root.value / temperature, axis=1))


def hard_backup(tree: Tree, duals: jax.Array, eligible: jax.Array | None, discount: jax.Array) -> Backup:
    """Without entropy: values are maxima; among equals the cheapest action, then the best rewarded."""

    def choose(worth: _Ask, actions: int) -> _Worth:
        return _lexicographic(worth(_ALL))[0]

    root = _root(tree, duals, choose, eligible, discount)
    chosen = jnp.argmax(_lexicographic(root)[1], axis=1)
    return _finish(root, jax.nn.one_hot(chosen, tree.actions, axis=1))


def _lexicographic(actions: _Worth) -> tuple[_Worth, jax.Array]:
    """Worth [nodes, duals] of the best action by value, then cost, then reward; and where that is,
    [nodes, actions, duals]. An infinite dual has minus the cost as value, so reward decides its ties."""
    value = actions.value.max(axis=1)
    best = actions.value == value[:, None]
    cost = jnp.where(best, actions.cost, jnp.inf).min(axis=1)
    best &= actions.cost == cost[:, None]
    reward = jnp.where(best, actions.reward, -jnp.inf).max(axis=1)
    return _Worth(value, reward, cost), best & (actions.reward == reward[:, None])


def _root(tree: Tree, duals: jax.Array, choose: _Choose, eligible: jax.Array | None, discount: jax.Array) -> _Worth:
    """What the first actions are worth, [users, actions, duals]."""
    worth = _worth(tree.levels[-1], None, duals, eligible)
    for level, share in zip(tree.levels[-2::-1], tree.shares[::-1], strict=True):
        futures = _futures(level, share, choose(worth, tree.actions), discount)
        worth = _worth(level, futures, duals, eligible)
    return worth(_ALL)


def _worth(level: Level, futures: _Ask | None, duals: jax.Array, eligible: jax.Array | None) -> _Ask:
    """The function that tells what actions at the nodes of a level are worth."""
    _, nodes, actions = level.rewards.shape
    rewards, costs = level.rewards.reshape(-1, actions), level.costs.reshape(-1, actions)
    allowed = None if eligible is None else jnp.repeat(eligible, nodes, axis=0)
    # Infinity times a cost of zero is not a number, so an infinite dual drops the reward instead.
    reward_weight = jnp.where(jnp.isinf(duals), 0.0, 1.0)
    cost_weight = jnp.where(jnp.isinf(duals), 1.0, duals)

    def worth(action: Any) -> _Worth:
        reward, cost = rewards[:, action, None], costs[:, action, None]
        value = reward_weight * reward - cost_weight * cost
        if futures is not None:
            future = futures(action)
            value, reward, cost = value + future.value, reward + future.reward, cost + future.cost
        if allowed is not None:
            value = jnp.where(allowed[:, action, None], value, -jnp.inf)
        return _Worth(value, jnp.broadcast_to(reward, value.shape), jnp.broadcast_to(cost, value.shape))

    return worth


def _futures(level: Level, share: jax.Array | None, below: _Worth, discount: jax.Array) -> _Ask:
    """The function that tells what follows actions at the nodes of a level, given the nodes below."""
    users, nodes, _ = level.rewards.shape
    branches = jax.tree.map(lambda values: discount * values.reshape(users * nodes, -1, values.shape[-1]), below)
    if share is None:
        return lambda action: jax.tree.map(lambda values: values[:, action], branches)
    return lambda action: jax.tree.map(
        lambda values: jnp.moveaxis(jnp.tensordot(share[action], values, (-1, 1)), -2, 0), branches
    )


def _finish(root: _Worth, probabilities: jax.Array) -> Backup:
    """[users, actions, duals] -> [users, duals, actions]."""
    arrays = (root.value, probabilities, root.reward, root.cost)
    return Backup(*(jnp.swapaxes(values, 1, 2) for values in arrays))

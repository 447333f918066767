"""From learned values to decisions: pure functions over arrays [..., prices, components, actions].

The components are reward, cost and, with a temperature, entropy bonus to go. Weights [outcomes, prices] are what
`prices.outcome_weights` gives: what reward and cost count at each price.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

__all__ = ["action_scores", "choose", "exploring", "supported"]

_Candidate = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def action_scores(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Penalised reward (and entropy bonus) to go: [..., prices, components, actions] -> [..., prices, actions].

    At an infinite price it is the negative cost alone.
    """
    earned = values[..., 0, :]
    if values.shape[-2] == 3:
        earned = earned + values[..., 2, :]
    return weights[0][:, None] * earned + weights[1][:, None] * values[..., 1, :]


def choose(values: jax.Array, weights: jax.Array, temperature: jax.Array, allowed: jax.Array) -> jax.Array:
    """Probability of each action, [..., prices, actions]; `allowed` is [n, actions], n the last axis before prices.

    The best action where the temperature is zero (or the price infinite), else the soft maximum.
    """
    score = jnp.where(allowed[:, None, :], action_scores(values, weights), -jnp.inf)
    chosen = _best(score, values[..., 1, :], values[..., 0, :])
    best = jax.nn.one_hot(chosen, score.shape[-1], dtype=score.dtype)
    if values.shape[-2] == 2:
        return best
    soft = jax.nn.softmax(score / temperature, axis=-1)
    return jnp.where((weights[0] == 0)[:, None], best, soft)


def exploring(chosen: jax.Array, allowed: jax.Array, explore: jax.Array | float) -> jax.Array:
    """Probabilities [..., prices, actions] with a share drawn evenly among what is allowed, [n, actions]."""
    even = allowed / jnp.maximum(allowed.sum(axis=-1, keepdims=True), 1)
    return (1 - explore) * chosen + explore * even[:, None, :]


def _best(score: jax.Array, cost: jax.Array, reward: jax.Array) -> jax.Array:
    """The action of the greatest score, among equals of the least cost and then the greatest reward, [...]."""

    def better(one: _Candidate, other: _Candidate) -> tuple[jax.Array, ...]:
        cheaper = (one[1] < other[1]) | ((one[1] == other[1]) & (one[2] >= other[2]))
        first = (one[0] > other[0]) | ((one[0] == other[0]) & cheaper)
        return tuple(jnp.where(first, left, right) for left, right in zip(one, other, strict=True))

    # One pass: comparing with a maximum that was computed elsewhere would rely on both being rounded alike.
    place = jax.lax.broadcasted_iota(jnp.int32, score.shape, score.ndim - 1)
    worst = (-jnp.inf, jnp.inf, -jnp.inf, np.int32(0))
    found: jax.Array = jax.lax.reduce((score, cost, reward, place), worst, better, (score.ndim - 1,))[3]
    return found


def supported(frequent: NDArray[np.bool_], eligible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Actions that may be planned with, [n, actions]: eligible, and not too rare in the log.

    Where the guard would leave nothing, it gives way: what is eligible is allowed.
    """
    allowed = eligible & frequent
    return np.where(allowed.any(axis=1, keepdims=True), allowed, eligible)

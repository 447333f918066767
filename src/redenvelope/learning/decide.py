"""From values to decisions: pure functions over arrays [..., duals, components, actions].

The components are reward, cost and, with a temperature, entropy bonus to go.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

__all__ = ["action_scores", "choose", "double_value", "supported"]


def action_scores(values: jax.Array, duals: jax.Array) -> jax.Array:
    """Penalised reward (and entropy bonus) to go: [..., duals, components, actions] -> [..., duals, actions].

    At an infinite dual it is the negative cost alone.
    """
    infinite = jnp.isinf(duals)[:, None]
    price = jnp.where(jnp.isinf(duals), 1.0, duals)[:, None]
    score = jnp.where(infinite, 0.0, values[..., 0, :]) - price * values[..., 1, :]
    if values.shape[-2] == 3:
        score = score + jnp.where(infinite, 0.0, values[..., 2, :])
    return score


def choose(values: jax.Array, duals: jax.Array, temperature: jax.Array, allowed: jax.Array) -> jax.Array:
    """Probability of each action, [..., duals, actions]; `allowed` is [n, actions], n the last axis before duals.

    The best action where the temperature is zero (or the dual infinite), else the soft maximum.
    """
    score = jnp.where(allowed[:, None, :], action_scores(values, duals), -jnp.inf)
    best = jax.nn.one_hot(score.argmax(axis=-1), score.shape[-1], dtype=score.dtype)
    if values.shape[-2] == 2:
        return best
    soft = jax.nn.softmax(score / temperature, axis=-1)
    return jnp.where(jnp.isinf(duals)[:, None], best, soft)


def double_value(values: jax.Array, duals: jax.Array, temperature: jax.Array, allowed: jax.Array) -> jax.Array:
    """Value of a state, [n, duals, components], from [folds, n, duals, components, actions].

    All folds but one choose and that one says what the choice is worth, so that an action picked because it is
    over-rated is not over-valued; the mean over who judges counts. With one fold and a temperature it is the
    log-sum-exp, taken apart into reward, cost and entropy bonus.
    """
    chosen, judged = choose(_others(values), duals, temperature, allowed), values
    value = (chosen[..., None, :] * judged).sum(axis=-1)
    if values.shape[-2] == 3:
        entropy = -jax.scipy.special.xlogy(chosen, chosen).sum(axis=-1)
        value = value.at[..., 2].add(temperature * entropy)
    return value.mean(axis=0)


def _others(values: jax.Array) -> jax.Array:
    """For every fold the mean of all others, [folds, ...]; one fold alone is its own judge."""
    folds = len(values)
    if folds == 1:
        return values
    # Written out: a sum over the few folds would be a loop of its own, at three times the price of all the rest.
    return jnp.stack([sum(values[other] for other in range(folds) if other != fold) for fold in range(folds)]) / (
        folds - 1
    )


def supported(frequent: NDArray[np.bool_], eligible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Actions that may be planned with, [n, actions]: eligible, and not too rare in the log.

    Where the guard would leave nothing, it gives way: what is eligible is allowed.
    """
    allowed = eligible & frequent
    return np.where(allowed.any(axis=1, keepdims=True), allowed, eligible)

"""From values to decisions: pure functions over arrays [..., duals, components, actions].

The components are reward, cost and, with a temperature, entropy bonus to go.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

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
    folds = len(values)
    others = values if folds == 1 else (values.sum(axis=0) - values) / (folds - 1)
    chosen, judged = choose(others, duals, temperature, allowed), values
    value = (chosen[..., None, :] * judged).sum(axis=-1)
    if values.shape[-2] == 3:
        entropy = -jax.scipy.special.xlogy(chosen, chosen).sum(axis=-1)
        value = value.at[..., 2].add(temperature * entropy)
    return value.mean(axis=0)


def supported(chances: jax.Array, eligible: jax.Array, least_chance: jax.Array) -> jax.Array:
    """Actions that may be planned with, [n, actions]: eligible, and not too rare in the log.

    Where the guard would leave nothing, it gives way: what is eligible is allowed.
    """
    allowed = eligible & (chances >= least_chance)
    return jnp.where(allowed.any(axis=1, keepdims=True), allowed, eligible)

"""The double estimator: what a state is worth, without the flattery of a maximum over noisy values."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from redenvelope.planning.learned_decisions import choose

__all__ = ["double_value"]


def double_value(values: jax.Array, weights: jax.Array, temperature: jax.Array, allowed: jax.Array) -> jax.Array:
    """Value of a state, [n, prices, components], from [folds, n, prices, components, actions].

    All folds but one choose and that one says what the choice is worth, so that an action picked because it is
    over-rated is not over-valued; the mean over who judges counts. With one fold and a temperature it is the
    log-sum-exp, taken apart into reward, cost and entropy bonus.
    """
    chosen, judged = choose(_others(values), weights, temperature, allowed), values
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

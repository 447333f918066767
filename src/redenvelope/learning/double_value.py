"""The double estimator: what a state is worth, without the flattery of a maximum over noisy values."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from redenvelope.planning.learned_decisions import choose, exploring

__all__ = ["DoubleValue", "double_value"]


class DoubleValue(NamedTuple):
    """Of states."""

    value: jax.Array
    """[n, prices, components]"""
    chosen: jax.Array
    """How likely every action is by the choice of all folds but one, [folds, n, prices, actions]."""
    others: jax.Array
    """Values by all folds but one, [folds, n, prices, components, actions]."""


def double_value(
    values: jax.Array, weights: jax.Array, temperature: jax.Array, allowed: jax.Array, explore: jax.Array | float = 0.0
) -> DoubleValue:
    """Value of a state from [folds, n, prices, components, actions].

    All folds but one choose and that one says what the choice is worth, so that an action picked because it is
    over-rated is not over-valued; the mean over who judges counts. With one fold and a temperature it is the
    log-sum-exp, taken apart into reward, cost and entropy bonus. A share `explore` of the decisions is drawn evenly
    among what is allowed.
    """
    others = _others(values)
    own, judged = choose(others, weights, temperature, allowed), values
    chosen = exploring(own, allowed, explore)
    value = (chosen[..., None, :] * judged).sum(axis=-1)
    if values.shape[-2] == 3:
        entropy = -jax.scipy.special.xlogy(own, own).sum(axis=-1)
        value = value.at[..., 2].add(temperature * (1 - explore) * entropy)
    return DoubleValue(value.mean(axis=0), chosen, others)


def _others(values: jax.Array) -> jax.Array:
    """For every fold the mean of all others, [folds, ...]; one fold alone is its own judge."""
    folds = len(values)
    if folds == 1:
        return values
    # Written out: a sum over the few folds would be a loop of its own, at three times the price of all the rest.
    return jnp.stack([sum(values[other] for other in range(folds) if other != fold) for fold in range(folds)]) / (
        folds - 1
    )

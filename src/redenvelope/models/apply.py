"""A model applied to any number of states: two compiled programs serve predictions, roll-outs and trees alike."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.environment import EnvironmentModel

__all__ = ["apply_outcomes", "apply_steps"]

FloatArray = NDArray[np.float32]

# Rows priced at once: few enough that the hidden units of all members stay in the cache, and enough to make a call's
# overhead small.
_BATCH_ROWS = 2_048


def apply_outcomes(model: EnvironmentModel, states: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean reward and cost of every action: [n, width] -> [n, actions] each."""
    rewards, costs = _apply(_outcomes, model, states)
    return rewards, costs


def apply_steps(model: EnvironmentModel, states: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean reward, cost [n, actions] and next state [n, actions, width] of every action, from [n, width]."""
    rewards, costs, following = _apply(_steps, model, states)
    return rewards, costs, following


def _apply(program: Any, model: EnvironmentModel, states: FloatArray) -> list[FloatArray]:
    """The results of a program for states [n, width], arrays [n, ...]."""
    results: list[FloatArray] = []
    for first in range(0, max(len(states), 1), _BATCH_ROWS):
        part = states[first : first + _BATCH_ROWS]
        filling = np.zeros((_BATCH_ROWS - len(part), states.shape[1]), np.float32)
        block = np.concatenate([part, filling]) if len(filling) else part  # one shape, one compilation
        arrays = [np.asarray(array) for array in program(model, block)]
        if not results:
            results = [np.empty((len(states), *array.shape[1:]), np.float32) for array in arrays]
        for result, array in zip(results, arrays, strict=True):
            result[first : first + len(part)] = array[: len(part)]
    return results


@eqx.filter_jit
def _outcomes(model: EnvironmentModel, states: Any) -> tuple[jax.Array, ...]:
    return model.outcomes(jnp.asarray(states))


@eqx.filter_jit
def _steps(model: EnvironmentModel, states: Any) -> tuple[jax.Array, ...]:
    rows = jnp.asarray(states)
    return (*model.outcomes(rows), model.successors(rows))

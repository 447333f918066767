"""A model applied to any number of states: two compiled programs serve predictions, roll-outs and trees alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.environment import EnvironmentModel

__all__ = ["apply_outcomes", "apply_steps", "in_counted_batches", "side_by_side"]

Output = TypeVar("Output")
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


def in_counted_batches(function: Callable[[Any], Output], rows: Any, count: Any) -> Output:
    """Map a function over the first `count` batches of arrays [batches, rows, ...]; zeros for the rest.

    For use inside a compiled program, whose number of batches it decides on the spot: one program serves any number.
    """

    def store(position: jax.Array, results: Output) -> Output:
        result = function(jax.tree.map(lambda values: values[position], rows))
        stored: Output = jax.tree.map(lambda all_, one: all_.at[position].set(one), results, result)
        return stored

    batches = jax.tree.leaves(rows)[0].shape[0]
    shapes = jax.eval_shape(function, jax.tree.map(lambda values: values[0], rows))
    empty = jax.tree.map(lambda shape: jnp.zeros((batches, *shape.shape), shape.dtype), shapes)
    result: Output = jax.lax.fori_loop(0, count, store, empty)
    return result


def side_by_side(work: Callable[[Any], None], parts: Sequence[Any]) -> None:
    """Do some work on every part with all cores; not for work that itself calls this.

    The first part alone, so that only one thread compiles what all of them need.
    """
    if len(parts):
        work(parts[0])
    if len(parts) > 1:
        # What is raised in a thread is raised here.
        list(_threads().map(work, parts[1:]))


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


@cache
def _threads() -> ThreadPoolExecutor:
    """As many threads as there are cores, or as the usual variable allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return ThreadPoolExecutor(min(cores, int(allowed)) if allowed.isdigit() and int(allowed) > 0 else cores)


@eqx.filter_jit
def _outcomes(model: EnvironmentModel, states: Any) -> tuple[jax.Array, ...]:
    return model.outcomes(jnp.asarray(states))


@eqx.filter_jit
def _steps(model: EnvironmentModel, states: Any) -> tuple[jax.Array, ...]:
    rows = jnp.asarray(states)
    return (*model.outcomes(rows), model.successors(rows))

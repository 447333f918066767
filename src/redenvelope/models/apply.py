"""A model applied to any number of states: two compiled programs serve predictions, roll-outs and trees alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.environment import EnvironmentModel

__all__ = ["apply_outcomes", "apply_steps", "in_counted_batches"]

Output = TypeVar("Output")
FloatArray = NDArray[np.float32]

# Rows priced at once: few enough that the hidden units of all members stay in the cache.
_BATCH_ROWS = 1_024
# Batches in one call, which cost a call's overhead once.
_BATCHES = 4


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


def _apply(program: Any, model: EnvironmentModel, states: FloatArray) -> list[FloatArray]:
    """The results of a program for states [n, width], arrays [n, ...]."""
    rows, size = len(states), _BATCHES * _BATCH_ROWS

    def run(first: int) -> list[FloatArray]:
        part = states[first : first + size]
        block = np.zeros((size, states.shape[1]), np.float32)
        block[: len(part)] = part
        count = np.asarray(-(-len(part) // _BATCH_ROWS), dtype=np.int32)
        arrays = program(model, block.reshape(_BATCHES, _BATCH_ROWS, -1), count)
        return [np.asarray(array).reshape(size, *array.shape[2:])[: len(part)] for array in arrays]

    # The first alone, so that only one thread compiles; the others side by side: each block is too small to be
    # spread over cores by itself.
    blocks = [run(0)]
    blocks += _threads().map(run, range(size, rows, size)) if rows > size else []
    return blocks[0] if len(blocks) == 1 else [np.concatenate(arrays) for arrays in zip(*blocks, strict=True)]


@cache
def _threads() -> ThreadPoolExecutor:
    """As many threads as there are cores, or as the usual variable allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return ThreadPoolExecutor(min(cores, int(allowed)) if allowed.isdigit() and int(allowed) > 0 else cores)


@eqx.filter_jit
def _outcomes(model: EnvironmentModel, states: jax.Array, count: jax.Array) -> tuple[jax.Array, ...]:
    return in_counted_batches(model.outcomes, jnp.asarray(states), count)


@eqx.filter_jit
def _steps(model: EnvironmentModel, states: jax.Array, count: jax.Array) -> tuple[jax.Array, ...]:
    def step(rows: jax.Array) -> tuple[jax.Array, ...]:
        return (*model.outcomes(rows), model.successors(rows))

    return in_counted_batches(step, jnp.asarray(states), count)

"""Batches of users small enough that the working set of a tree stays in the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "NODES_PER_BATCH",
    "USERS_PER_CALL",
    "calls",
    "in_batches",
    "in_counted_batches",
    "side_by_side",
    "users_per_batch",
]

Output = TypeVar("Output")

# Nodes at the deepest level that are priced at once. A node carries two hidden layers (2 x 128 numbers) or
# four numbers for each of 64 duals: 1 kB, so a batch stays within a 1 MB second-level cache. Measured:
# 400 to 1,600 nodes are equally fast; with 6,400 a backup for 64 duals takes half as long again.
NODES_PER_BATCH = 1024

# Users in one call of a compiled program: long enough to hide what a call costs. Every call has this size, so that
# nothing is compiled twice; those of the largest trees are smaller, so that the trees of a call fit in memory.
USERS_PER_CALL = 1024
_BATCHES_PER_CALL = 64


def users_per_batch(deepest_nodes: int) -> int:
    """Users whose trees, with `deepest_nodes` nodes each at the last level, are grown together."""
    return max(1, NODES_PER_BATCH // deepest_nodes)


def in_batches(function: Callable[[Any], Output], rows: Any, deepest_nodes: int) -> Output:
    """Map a function of arrays with a leading [users] over batches of users, inside one compiled program.

    `rows` is a pytree of arrays [users, ...]; so is the result. The last batch is filled up with copies of
    the first user, which are cut off again.
    """
    users = jax.tree.leaves(rows)[0].shape[0]
    batch = min(users, users_per_batch(deepest_nodes))
    batches = -(-users // batch)

    def split(values: jax.Array) -> jax.Array:
        filling = jnp.broadcast_to(values[:1], (batches * batch - users, *values.shape[1:]))
        return jnp.concatenate([values, filling]).reshape(batches, batch, *values.shape[1:])

    def join(values: jax.Array) -> jax.Array:
        return values.reshape(-1, *values.shape[2:])[:users]

    joined: Output = jax.tree.map(join, jax.lax.map(function, jax.tree.map(split, rows)))
    return joined


def calls(rows: NDArray[Any], batch: int = USERS_PER_CALL) -> Iterator[tuple[slice, NDArray[Any], NDArray[np.int32]]]:
    """Cut rows [users, ...] into calls: which users, their rows [batches, batch, ...], and how many batches."""
    batch = min(batch, USERS_PER_CALL)
    batches = min(-(-USERS_PER_CALL // batch), _BATCHES_PER_CALL)
    size = batches * batch
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        filled = np.zeros((size, *rows.shape[1:]), dtype=rows.dtype)
        filled[: len(part)] = part
        count = np.asarray(-(-len(part) // batch), dtype=np.int32)
        yield slice(start, start + len(part)), filled.reshape(batches, batch, *rows.shape[1:]), count


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


@cache
def _threads() -> ThreadPoolExecutor:
    """As many threads as there are cores, or as the usual variable allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return ThreadPoolExecutor(min(cores, int(allowed)) if allowed.isdigit() and int(allowed) > 0 else cores)

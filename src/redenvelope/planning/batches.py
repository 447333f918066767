"""Batches of users small enough that the working set of a tree stays in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

"""Networks asked about many states: in blocks of one shape, by two programs that learning and deciding share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.buckets import filled
from redenvelope.models.immediate import Immediate
from redenvelope.models.value_network import ValueNetwork

__all__ = ["block_rows", "future", "in_blocks", "present"]

_BLOCK_NUMBERS = 2**21  # numbers in the largest array of a block of rows: more falls out of the cache


@eqx.filter_jit
def present(immediate: Immediate, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Outcomes of a step [n, folds, outcomes, actions], and the logger's chances [n, actions], of states [n, width].

    The rows lead, as they do in blocks.
    """
    return jnp.transpose(immediate.outcomes(states), (2, 1, 0, 3)), immediate.chances(states)


@eqx.filter_jit
def future(networks: ValueNetwork, states: jax.Array) -> jax.Array:
    """What follows every action: [n, width] -> [n, folds, heads, components, actions].

    The networks are those of one step, with a leading axis [folds].
    """
    later: jax.Array = jax.vmap(lambda network: network(states), out_axes=1)(networks)
    return later


def block_rows(rows: int, numbers_a_row: int) -> int:
    """Rows of a block of `in_blocks`."""
    size = int(np.clip(_BLOCK_NUMBERS // max(1, numbers_a_row), 64, 8_192))
    return min(size, 1 << max(0, rows - 1).bit_length())  # few lengths: few compilations


def in_blocks(function: Callable[..., Any], numbers_a_row: int, *columns: NDArray[Any]) -> Any:
    """Apply a function to rows [n, ...] in blocks of one shape; arrays come out [n, ...] in numpy."""
    rows = len(columns[0])
    size = block_rows(rows, numbers_a_row)
    parts = []
    for first in range(0, max(rows, 1), size):
        pieces = [column[first : first + size] for column in columns]
        parts.append(jax.tree.map(np.asarray, function(*filled(pieces, size))))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays)[:rows], *parts)

"""Few shapes for any number of rows: a compiled program serves all numbers that share a bucket."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

__all__ = ["bucket", "filled"]

Rows = TypeVar("Rows")

_LEAST_ROWS = 64
_LARGEST_STEP = 2**17  # beyond this, doubling would waste more memory than a compilation is worth


def bucket(rows: int) -> int:
    """The length that arrays of so many rows are filled up to: a power of two, or a multiple of a large one."""
    if rows > _LARGEST_STEP:
        return -(-rows // _LARGEST_STEP) * _LARGEST_STEP
    return max(_LEAST_ROWS, 1 << (rows - 1).bit_length())


def filled(rows: Rows, length: int) -> Rows:
    """A tree of arrays [rows, ...] filled up with zeros to [length, ...], in numpy."""

    def fill(column: Any) -> NDArray[Any]:
        values = np.asarray(column)
        if len(values) == length:
            return values
        whole = np.zeros((length, *values.shape[1:]), values.dtype)
        whole[: len(values)] = values
        return whole

    full: Rows = jax.tree.map(fill, rows)
    return full

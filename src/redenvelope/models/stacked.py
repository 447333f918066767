"""Networks of one shape as one: every array with a leading axis, so that one program serves them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

__all__ = ["slots", "stack"]


def stack(trees: Sequence[Any]) -> Any:
    """Trees of arrays into one, every array with a new leading axis [trees]."""
    # In numpy: outside a compiled function, jax would compile a program for every shape there is.
    return jax.tree.map(lambda *arrays: np.stack([np.asarray(array) for array in arrays]), *trees)


def slots(count: int) -> NDArray[np.float32]:
    """The places of so many parts in a stack, each a one-hot row, [parts, parts]."""
    return np.eye(count, dtype=np.float32)

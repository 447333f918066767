"""Names of array types for signatures; shapes are stated where arrays are defined."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
IndexArray = NDArray[np.intp]
KeyArray = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]


def library_of(array: Any) -> Any:
    """The module whose functions fit an array: numpy, or `jax.numpy` inside a compiled program."""
    if isinstance(array, np.ndarray):
        return np
    import jax.numpy

    return jax.numpy

"""The mean over next states, as a product with the transitions: dense, in blocks, or sparse, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.finite.problem import FiniteProblem

__all__ = ["Expectation", "expectation"]

FloatArray = NDArray[np.float64]
Expectation = Callable[[FloatArray], FloatArray]
"""The map from values of next states to their means: [..., states] -> [..., states, actions]."""

# Below this share of nonzero transitions a sparse product reads less memory than a dense one.
_SPARSE_SHARE = 0.1
# Multiplications up to which the matrix library skips its copying, and the fewest pairs worth a call.
_SMALL_PRODUCT = 900_000
_FEWEST_PAIRS = 40


def expectation(problem: FiniteProblem) -> Expectation:
    """The map from values of next states to their means: [..., states] -> [..., states, actions]."""
    matrix = problem.transitions.reshape(-1, problem.states)
    shape = (problem.states, problem.actions)
    multiply: Expectation
    # Some rows are enough to tell: it is a choice of speed, not of result.
    if np.count_nonzero(matrix[::16]) > _SPARSE_SHARE * matrix[::16].size:
        multiply = partial(_dense_product, matrix)
    else:
        multiply = partial(_sparse_product, _sparse(matrix))

    def expect(values: FloatArray) -> FloatArray:
        return multiply(values.reshape(-1, shape[0])).reshape(*values.shape[:-1], *shape)

    return expect


def _dense_product(matrix: FloatArray, values: FloatArray) -> FloatArray:
    """`values @ matrix.T`, [few, states] @ [states, pairs].

    In small blocks the library multiplies in place; in one piece it first copies the matrix, which for few
    rows of values takes longer than the product.
    """
    pairs = _SMALL_PRODUCT // values.size
    if pairs < _FEWEST_PAIRS:
        return np.asarray(values @ matrix.T)
    columns = np.ascontiguousarray(values.T)
    product = np.empty((len(matrix), len(values)))
    for start in range(0, len(matrix), pairs):
        np.matmul(matrix[start : start + pairs], columns, out=product[start : start + pairs])
    return np.ascontiguousarray(product.T)


def _sparse(matrix: FloatArray) -> Any:
    """The nonzero numbers of a matrix; scipy's own conversion passes over it several times."""
    from scipy import sparse  # costs more to import than the rest of the package

    places = np.flatnonzero(matrix)
    starts = np.searchsorted(places, np.arange(len(matrix) + 1) * matrix.shape[1])
    return sparse.csr_array((matrix.reshape(-1)[places], places % matrix.shape[1], starts), shape=matrix.shape)


def _sparse_product(matrix: Any, values: FloatArray) -> FloatArray:
    """`values @ matrix.T`, [few, states] @ [states, pairs], for a sparse matrix."""
    return np.ascontiguousarray((matrix @ values.T).T)

"""A regression that says nothing unless users whom it has not seen speak for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Credible", "credible_means"]

FloatArray = NDArray[np.float64]

_ERRORS = 3.0
"""Standard errors by which the squared error must fall: chance goes so far once in some hundred."""
_PENALTIES = (np.inf, 0.3)
"""Of the columns after the leading ones, in units of their variance; infinity leaves them out."""
_LEAST_PENALTY = 1e-3
_LEAST_ROWS = 20
"""A column: fewer would only repeat their noise."""


class Credible(NamedTuple):
    """What was found."""

    told: NDArray[np.bool_]
    """Which kinds depend on the columns, [kinds]."""
    coefficients: NDArray[np.float32]
    """For rows of each half, learned from the other, [2, width, kinds, series]; zero where nothing is told."""

    def means(self, columns: NDArray[np.float32], half: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of rows with columns [n, width] in halves [n], [n, kinds, series]."""
        shape = self.coefficients.shape[2:]
        found = np.empty((len(columns), int(np.prod(shape))), np.float32)
        for part in (0, 1):
            found[half == part] = columns[half == part] @ self.coefficients[part].reshape(columns.shape[1], -1)
        return found.reshape(len(columns), *shape)


def credible_means(
    columns: NDArray[np.float32], leading: int, lessons: NDArray[np.float32], half: NDArray[np.int64]
) -> Credible:
    """Means of lessons [n, kinds, series] given columns [n, width], of rows in two halves, [n] of 0 and 1.

    The first `leading` columns count in full, the others as far as it helps. A kind is told of if its means lower the
    squared error on the rows that they were not learned from, against a constant: all series of a kind together, each
    in units of its own spread.
    """
    rows, kinds, series = lessons.shape
    coefficients = np.zeros((2, columns.shape[1], kinds, series), np.float32)
    if rows < _LEAST_ROWS * leading or len(np.unique(half)) < 2:
        return Credible(np.zeros(kinds, dtype=bool), coefficients)
    scale = lessons.std(axis=0, dtype=np.float64).ravel()
    moving = scale > 1e-6  # a series that never moves has nothing to tell
    taught = (lessons.reshape(rows, -1) / np.where(moving, scale, np.inf)).astype(np.float32)
    wide = rows >= _LEAST_ROWS * columns.shape[1]
    tried = _coefficients(columns, leading, taught, half, _PENALTIES if wide else _PENALTIES[:1])
    gains = np.stack([_gains(columns, found, taught, half, kinds) for found in tried])
    mean, error = gains.mean(axis=1), gains.std(axis=1) / np.sqrt(rows)  # [penalties, kinds]
    best, every = mean.argmax(axis=0), np.arange(kinds)
    told = mean[best, every] > _ERRORS * np.maximum(error[best, every], 1e-12)
    for kind in np.flatnonzero(told):
        own = slice(kind * series, (kind + 1) * series)
        coefficients[:, :, kind] = tried[best[kind]][:, :, own] * np.where(moving, scale, 0.0)[own]
    return Credible(told, coefficients)


def _coefficients(
    columns: NDArray[np.float32],
    leading: int,
    taught: NDArray[np.float32],
    half: NDArray[np.int64],
    penalties: tuple[float, ...],
) -> list[FloatArray]:
    """What the other half says to each half, at every penalty, [2, width, numbers]; lessons taught are [n, numbers]."""
    found = [np.zeros((2, columns.shape[1], taught.shape[1])) for _ in penalties]
    for part in (0, 1):
        other = columns[half != part].astype(np.float64)
        squares, products = other.T @ other / len(other), other.T @ taught[half != part] / len(other)
        for coefficients, penalty in zip(found, penalties, strict=True):
            width = leading if np.isinf(penalty) else columns.shape[1]
            ridge = np.where(np.arange(width) < leading, _LEAST_PENALTY, penalty)
            coefficients[part, :width] = np.linalg.solve(squares[:width, :width] + np.diag(ridge), products[:width])
    return found


def _gains(
    columns: NDArray[np.float32], found: FloatArray, taught: NDArray[np.float32], half: NDArray[np.int64], kinds: int
) -> FloatArray:
    """By how much each row's squared error falls against a constant, mean over the series of a kind, [n, kinds]."""
    gains = np.empty((len(taught), kinds))
    for part in (0, 1):
        own = half == part
        constant = taught[~own].mean(axis=0)
        errors = taught[own] - columns[own] @ found[part].astype(np.float32)
        falls = np.square(taught[own] - constant) - np.square(errors)
        gains[own] = falls.reshape(len(falls), kinds, -1).mean(axis=2)
    return gains

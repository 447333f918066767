"""A column in a few cells: its values or labels where they are few, else quantiles; missing is a cell of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "category_cells", "number_cells"]

_EXACT = 64  # so many different values are kept apart: a code in numbers need not be in any order
_QUANTILES = 16
_LABELS = 64  # the most frequent; all others share a cell


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cell each row is in."""

    of_row: NDArray[np.int64]
    """[rows]"""
    count: int

    def at(self, rows: NDArray[np.int64]) -> Cells:
        """The cells of some rows."""
        return Cells(self.of_row[rows], self.count)

    def beside(self, other: Cells) -> Cells:
        """A cell for each pair of cells."""
        return Cells(self.of_row * other.count + other.of_row, self.count * other.count)


def number_cells(values: NDArray[np.float32]) -> Cells:
    """The cells of numbers [rows], NaN where one is missing."""
    missing = np.isnan(values)
    rising = np.sort(values[~missing])
    if not len(rising):
        return Cells(np.zeros(len(values), dtype=np.int64), 1)
    edges = _edges(rising)
    cell = np.searchsorted(edges, values, side="left")
    cell[missing] = len(edges) + 1
    return Cells(cell, len(edges) + 2)


def category_cells(codes: NDArray[np.int32], labels: int) -> Cells:
    """The cells of codes [rows] of so many labels, −1 where one is missing."""
    if labels <= _LABELS:
        return Cells(codes.astype(np.int64) + 1, labels + 1)
    counts = np.bincount(codes + 1, minlength=labels + 1)
    kept = np.append(0, np.sort(np.argsort(-counts[1:], kind="stable")[:_LABELS]) + 1)
    cell = np.full(labels + 1, len(kept), dtype=np.int64)
    cell[kept] = np.arange(len(kept))
    return Cells(cell[codes + 1], len(kept) + 1)


def _edges(rising: NDArray[np.float32]) -> NDArray[np.float32]:
    """The upper ends of cells, each inclusive; values above the last have one more cell."""
    starts = np.append(0, np.flatnonzero(rising[1:] != rising[:-1]) + 1)
    if len(starts) <= _EXACT:
        return np.asarray(rising[starts])
    lengths = np.diff(np.append(starts, len(rising)))
    most = int(np.argmax(lengths))
    edges = rising
    if lengths[most] * _QUANTILES > len(rising):
        # One value (mostly zero) would use up several quantiles: it has a cell, and the others their own quantiles.
        edges = np.delete(rising, slice(starts[most], starts[most] + lengths[most]))
    places = np.arange(1, _QUANTILES) * len(edges) // _QUANTILES
    own = rising[starts[most]]
    return np.unique(np.concatenate([edges[places], [own, np.nextafter(own, np.float32(-np.inf))]])).astype(np.float32)

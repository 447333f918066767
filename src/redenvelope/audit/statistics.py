"""Weighted means by group with standard errors clustered by user or by cluster of users, and binned columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.log import Log
from redenvelope.merging import FieldwiseSums

ROUNDING = 1e-9
"""Smaller relative differences are treated as rounding, because sums over parts differ by that much."""

_CELLS = 1 << 20  # users times groups processed at once


@dataclass(frozen=True, eq=False)
class GroupSums(FieldwiseSums):
    """Sums of weights and of weighted values, by group."""

    totals: NDArray[np.float64]
    """Sum of weights, [groups]."""
    weighted: NDArray[np.float64]
    """Sums of weighted values, [variables, groups]."""

    @property
    def means(self) -> NDArray[np.float64]:
        """Self-normalised means, [variables, groups]; NaN where a group has no weight."""
        return np.where(self.totals > 0, self.weighted / self._safe, np.nan)

    def errors(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standard errors of the means from their `squares_by_user`, [variables, groups]."""
        return np.where(self.totals > 0, np.sqrt(squares) / self._safe, np.nan)

    @property
    def _safe(self) -> NDArray[np.float64]:
        return np.maximum(self.totals, np.finfo(float).tiny)


@dataclass(frozen=True, eq=False)
class UserMoments:
    """Means over users of sums over their rows."""

    users: int
    mean: NDArray[np.float64]
    """Means, [variables]."""
    spread: NDArray[np.float64]
    """Sums of squared deviations, [variables]; the deviations of a cluster are summed before squaring."""

    @classmethod
    def of(cls, values: NDArray[np.float64], begins: NDArray[np.bool_]) -> UserMoments:
        """The moments of values [users, variables], at least one user; `begins` [users] marks the first user of a
        cluster."""
        mean = values.mean(axis=0)
        away = values - mean
        if not begins.all():
            away = np.add.reduceat(away, np.flatnonzero(np.append(True, begins[1:])), axis=0)
        return cls(len(values), mean, (away**2).sum(axis=0))

    def merge(self, other: UserMoments) -> UserMoments:
        """See Mergeable."""
        users = self.users + other.users
        gap = other.mean - self.mean
        return UserMoments(
            users,
            self.mean + gap * (other.users / users),
            self.spread + other.spread + gap**2 * (self.users * other.users / users),
        )

    @property
    def errors(self) -> NDArray[np.float64]:
        """Standard errors of the means, [variables]; infinite for a single user."""
        if self.users < 2:
            return np.full(len(self.mean), np.inf)
        return np.sqrt(self.spread / (self.users - 1) / self.users)


def group_sums(
    groups: NDArray[np.int32] | NDArray[np.int64], weights: NDArray[np.float64], values: NDArray[np.float64], count: int
) -> GroupSums:
    """The sums over some rows: groups and weights [rows], values [variables, rows]."""
    weighted = [np.bincount(groups, weights=weights * row, minlength=count) for row in values]
    totals: NDArray[np.float64] = np.bincount(groups, weights=weights, minlength=count).astype(np.float64)
    return GroupSums(totals, np.array(weighted))


def squares_by_user(
    log: Log, groups: NDArray[np.int32], weights: NDArray[np.float64], residuals: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """Weighted residuals summed by user and group, squared and summed over users, [variables, groups].

    groups and weights [rows], residuals [variables, rows]. The result adds up over the parts of a log.
    """
    squares = np.zeros((len(residuals), count))
    # Episodes of one user, and users of one cluster, are not independent, so they are summed before squaring.
    person = np.cumsum(log.begins) - 1
    for rows, _, _ in user_blocks(log, groups, count):
        own = person[log.user_of_row[rows]]
        users = int(own[-1] - own[0]) + 1
        cell = (own - own[0]) * count + groups[rows]
        for variable, values in enumerate(residuals):
            sums = np.bincount(cell, weights=weights[rows] * values[rows], minlength=users * count)
            squares[variable] += (sums.reshape(users, count) ** 2).sum(axis=0)
    return squares


def user_blocks(log: Log, groups: NDArray[np.int32], count: int) -> Iterator[tuple[slice, NDArray[np.int64], int]]:
    """Yield blocks of users, small enough that a table of users and groups fits in memory.

    Each has the slice of rows, the cell of each row in the flattened table [users, groups], and the number of users.
    """
    size = max(_CELLS // count, 1)
    for first in range(0, len(log.users), size):
        users = min(size, len(log.users) - first)
        rows = slice(int(log.starts[first]), int(log.starts[first + users]))
        yield rows, (log.user_of_row[rows] - first) * count + groups[rows], users


# Binning a column in cells: its values or labels if there are few, else quantiles; missing values have their own cell.


_EXACT = 64  # most distinct values with a cell each; numeric codes need not have a meaningful order
_QUANTILES = 16
_LABELS = 64  # the most frequent labels; all others share a cell


@dataclass(frozen=True, eq=False)
class Cells:
    """The cell of each row."""

    of_row: NDArray[np.int64]
    """Cell indices, [rows]."""
    count: int

    def at(self, rows: NDArray[np.int64]) -> Cells:
        """The cells of some rows."""
        return Cells(self.of_row[rows], self.count)

    def beside(self, other: Cells) -> Cells:
        """One cell for each pair of cells."""
        return Cells(self.of_row * other.count + other.of_row, self.count * other.count)


def number_cells(values: NDArray[np.float32]) -> Cells:
    """Bin numbers [rows], with NaN for missing values."""
    missing = np.isnan(values)
    rising = np.sort(values[~missing])
    if not len(rising):
        return Cells(np.zeros(len(values), dtype=np.int64), 1)
    edges = _edges(rising)
    cell = np.searchsorted(edges, values, side="left")
    cell[missing] = len(edges) + 1
    return Cells(cell, len(edges) + 2)


def category_cells(codes: NDArray[np.int32], labels: int) -> Cells:
    """Bin codes [rows] of `labels` labels, with −1 for missing values."""
    if labels <= _LABELS:
        return Cells(codes.astype(np.int64) + 1, labels + 1)
    counts = np.bincount(codes + 1, minlength=labels + 1)
    kept = np.append(0, np.sort(np.argsort(-counts[1:], kind="stable")[:_LABELS]) + 1)
    cell = np.full(labels + 1, len(kept), dtype=np.int64)
    cell[kept] = np.arange(len(kept))
    return Cells(cell[codes + 1], len(kept) + 1)


def _edges(rising: NDArray[np.float32]) -> NDArray[np.float32]:
    """The upper edges of cells, inclusive; values above the last edge have one more cell."""
    starts = np.append(0, np.flatnonzero(rising[1:] != rising[:-1]) + 1)
    if len(starts) <= _EXACT:
        return np.asarray(rising[starts])
    lengths = np.diff(np.append(starts, len(rising)))
    most = int(np.argmax(lengths))
    edges = rising
    if lengths[most] * _QUANTILES > len(rising):
        # One value (often zero) would fill several quantiles, so it has its own cell, and the others have their own
        # quantiles.
        edges = np.delete(rising, slice(starts[most], starts[most] + lengths[most]))
    places = np.arange(1, _QUANTILES) * len(edges) // _QUANTILES
    own = rising[starts[most]]
    return np.unique(np.concatenate([edges[places], [own, np.nextafter(own, np.float32(-np.inf))]])).astype(np.float32)

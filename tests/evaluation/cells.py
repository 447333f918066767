"""Regressions and baselines by cell of states: exact for finite campaigns, to compare estimators with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.marginalised import Arriving, Features, others
from redenvelope.evaluation.partitions import Folds


@dataclass(frozen=True)
class MeansByCell:
    """Means by cell: states with the same features are of one cell."""

    def sums(self, arriving: Sequence[Arriving]) -> CellSums:
        """See Regression."""
        cells, place = _numbered([part.features for part in arriving])
        folds, prices = len(arriving), arriving[0].weights.shape[-1]
        sizes = np.stack([np.bincount(mine, minlength=len(cells)) for mine in place])
        sums = np.zeros((folds, len(cells), prices))
        for fold, (part, mine) in enumerate(zip(arriving, place, strict=True)):
            weights = np.broadcast_to(part.weights, (folds - 1, len(mine), prices))
            for other, learned in zip(others(folds, fold), weights, strict=True):
                sums[other] += cell_sums(mine, len(cells), learned)
        return CellSums(cells, sizes, sums)


@dataclass(frozen=True, eq=False)
class CellSums:
    """Users and weights by cell."""

    cells: Features
    """[cells, features], none twice."""
    sizes: NDArray[np.int64]
    """Users *in* each fold, [folds, cells]."""
    sums: FloatArray
    """Weights of the users of all other folds, [folds, cells, prices]."""

    def merge(self, other: CellSums) -> CellSums:
        """See RegressionSums."""
        cells, place = _numbered([self.cells, other.cells])
        sizes = np.zeros((len(self.sizes), len(cells)), dtype=np.int64)
        sums = np.zeros((len(self.sums), len(cells), self.sums.shape[2]))
        for mine, part in zip(place, (self, other), strict=True):
            sizes[:, mine] += part.sizes
            sums[:, mine] += part.sums
        return CellSums(cells, sizes, sums)

    def fit(self) -> CellMeans:
        """See RegressionSums."""
        learned = (self.sizes.sum(axis=0) - self.sizes)[:, :, None]
        means = np.full_like(self.sums, np.nan)
        np.divide(self.sums, learned, out=means, where=learned > 0)
        return CellMeans(self.cells, means)


@dataclass(frozen=True, eq=False)
class CellMeans:
    """The mean weight of users who arrive in a cell."""

    cells: Features
    """[cells, features], none twice."""
    means: FloatArray
    """[folds, cells, prices]; not a number where no user of another fold was."""

    @property
    def knows_all(self) -> bool:
        """See Fitted: a cell may be asked for that nobody was in."""
        return False

    def by_own(self, features: Features, fold: int) -> FloatArray:
        """See Fitted."""
        return np.asarray(self._means(features, np.array([fold]))[0])

    def by_others(self, features: Features, fold: int) -> FloatArray:
        """See Fitted."""
        return self._means(features, others(len(self.means), fold))

    def _means(self, features: Features, folds: NDArray[np.int64]) -> FloatArray:
        """[folds, n, prices]; not a number in cells that nobody was in."""
        cells, (known, asked) = _numbered([self.cells, features])
        means = np.full((len(folds), len(cells), self.means.shape[2]), np.nan)
        means[:, known] = self.means[folds]
        return means[:, asked]


def _numbered(parts: Sequence[Features]) -> tuple[Features, list[NDArray[np.int64]]]:
    """The cells of all parts [n, features] together, [cells, features], and which of them each row is of, [n] each."""
    cells, place = np.unique(np.concatenate(parts), axis=0, return_inverse=True)
    edges = np.cumsum([len(part) for part in parts])[:-1]
    return cells, np.split(place.reshape(-1).astype(np.int64), edges)


def fitted_values(
    data: OffPolicyData,
    cells: NDArray[np.integer],
    action: NDArray[np.integer],
    probabilities: NDArray[np.floating],
    *,
    discount: float = 1.0,
    folds: int = 5,
    seed: int = 0,
) -> OffPolicyData:
    """The same data with a baseline learned from it, by fitted Q evaluation: means by step, cell and action.

    `cells` [rows] is the cell of each row's state, `action` [rows] the logged one, `probabilities` [rows, prices,
    actions] (or [rows, actions]) the policy's. A user's baseline comes from the other folds' users.
    """
    shares = probabilities.reshape(data.rows, -1, probabilities.shape[-1])
    fold_of_row = np.repeat(Folds(folds, seed).of(data.keys), data.lengths)
    places = np.unique(cells, return_inverse=True)[1]
    size = (len(data.outcomes), data.rows, data.prices)
    values, action_values = np.empty(size), np.empty(size)
    for fold in range(folds):
        fitted_state, fitted_action = _fit(data, places, action, shares, fold_of_row != fold, discount)
        held = fold_of_row == fold
        values[:, held], action_values[:, held] = fitted_state[:, held], fitted_action[:, held]
    return replace(data, values=values, action_values=action_values)


def cell_sums(cells: IntArray, count: int, values: FloatArray) -> FloatArray:
    """Sums of values [n, columns] by cell [n], [count, columns]."""
    result = np.zeros((count, values.shape[1]))
    np.add.at(result, cells, values)
    return result


def cell_means(cells: IntArray, count: int, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of values [n, columns] by cell [n], [count, columns], and how many each cell has, [count]."""
    sizes = np.bincount(cells, minlength=count).astype(np.float64)
    return cell_sums(cells, count, values) / np.maximum(sizes, 1.0)[:, None], sizes


def _fit(
    data: OffPolicyData,
    cells: IntArray,
    action: NDArray[np.integer],
    shares: NDArray[np.floating],
    train: NDArray[np.bool_],
    discount: float,
) -> tuple[FloatArray, FloatArray]:
    """Values of states and of logged actions, [outcomes, rows, prices], learned from the rows of `train` [rows]."""
    outcomes, prices, actions = len(data.outcomes), data.prices, shares.shape[2]
    count = int(cells.max()) + 1
    values = np.zeros((outcomes, data.rows, prices))
    action_values = np.zeros_like(values)
    following = np.zeros((outcomes, data.users, prices))
    for users, rows in reversed(data.positions):
        ahead = data.outcomes[:, rows, None] + discount * following[:, users]
        pair = cells[rows] * actions + action[rows]
        known = train[rows]
        columns = np.moveaxis(ahead, 0, 1).reshape(len(pair), -1)
        table = _table(pair[known], columns[known], action[rows][known], count, actions)
        table = table.reshape(count * actions, outcomes, prices)
        action_values[:, rows] = np.moveaxis(table[pair], 1, 0)
        by_action = table.reshape(count, actions, outcomes, prices)[cells[rows]]
        values[:, rows] = np.einsum("nda,natd->tnd", shares[rows], by_action, optimize=True)
        following[:, users] = values[:, rows]
    return values, action_values


def _table(pair: IntArray, columns: FloatArray, action: NDArray[np.integer], count: int, actions: int) -> FloatArray:
    """Means by cell and action, [cells × actions, columns]; where none was seen, those of the action, then of all."""
    if not len(pair):
        return np.zeros((count * actions, columns.shape[1]))
    means, sizes = cell_means(pair, count * actions, columns)
    by_action, seen = cell_means(action.astype(np.int64), actions, columns)
    by_action[seen == 0] = columns.mean(axis=0)
    return np.where(sizes[:, None] > 0, means, np.tile(by_action, (count, 1)))

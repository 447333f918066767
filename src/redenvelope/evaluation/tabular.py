"""Baselines from the log itself, for states that fall into cells: fitted Q evaluation, cross-fitted over users."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from redenvelope.errors import UsageError
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.folds import Folds

__all__ = ["cell_means", "cell_sums", "fitted_values"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]


def fitted_values(
    evidence: Evidence,
    cells: NDArray[np.integer],
    action: NDArray[np.integer],
    probabilities: NDArray[np.floating],
    *,
    discount: float = 1.0,
    folds: int = 5,
    seed: int = 0,
) -> Evidence:
    """The same evidence with a baseline learned from it: mean outcomes and followers by step, cell and action.

    `cells` [rows] is the cell of each row's state, `action` [rows] the logged one, `probabilities` [rows, prices,
    actions] (or [rows, actions]) the policy's. A user's baseline comes from the other folds' users.
    """
    shares = probabilities.reshape(evidence.rows, -1, probabilities.shape[-1])
    if shares.shape[1] != evidence.prices or cells.shape != (evidence.rows,):
        raise UsageError("cells must be [rows] and probabilities [rows, prices, actions], as in the evidence")
    crossed = Folds(folds, seed)
    crossed.check(evidence.users)
    fold_of_row = np.repeat(crossed.of(evidence.keys), evidence.lengths)
    places = np.unique(cells, return_inverse=True)[1]
    size = (len(evidence.outcomes), evidence.rows, evidence.prices)
    values, action_values = np.empty(size), np.empty(size)
    for fold in range(folds):
        fitted_state, fitted_action = _fit(evidence, places, action, shares, fold_of_row != fold, discount)
        held = fold_of_row == fold
        values[:, held], action_values[:, held] = fitted_state[:, held], fitted_action[:, held]
    return evidence.with_baseline(values, action_values)


def cell_sums(cells: IndexArray, count: int, values: FloatArray) -> FloatArray:
    """Sums of values [n, columns] by cell [n], [count, columns]."""
    members = csr_array((np.ones(len(cells)), (cells, np.arange(len(cells)))), shape=(count, len(cells)))
    return np.asarray(members @ values)


def cell_means(cells: IndexArray, count: int, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of values [n, columns] by cell [n], [count, columns], and how many each cell has, [count]."""
    sizes = np.bincount(cells, minlength=count).astype(np.float64)
    return cell_sums(cells, count, values) / np.maximum(sizes, 1.0)[:, None], sizes


def _fit(
    evidence: Evidence,
    cells: IndexArray,
    action: NDArray[np.integer],
    shares: NDArray[np.floating],
    train: NDArray[np.bool_],
    discount: float,
) -> tuple[FloatArray, FloatArray]:
    """Values of states and of logged actions, [outcomes, rows, prices], learned from the rows of `train` [rows]."""
    outcomes, prices, actions = len(evidence.outcomes), evidence.prices, shares.shape[2]
    count = int(cells.max()) + 1
    values = np.zeros((outcomes, evidence.rows, prices))
    action_values = np.zeros_like(values)
    following = np.zeros((outcomes, evidence.users, prices))
    for users, rows in reversed(evidence.positions):
        ahead = evidence.outcomes[:, rows, None] + discount * following[:, users]
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


def _table(pair: IndexArray, columns: FloatArray, action: NDArray[np.integer], count: int, actions: int) -> FloatArray:
    """Means by cell and action, [cells × actions, columns]; where none was seen, those of the action, then of all."""
    if not len(pair):
        return np.zeros((count * actions, columns.shape[1]))
    means, sizes = cell_means(pair, count * actions, columns)
    by_action, seen = cell_means(action.astype(np.int64), actions, columns)
    by_action[seen == 0] = columns.mean(axis=0)
    return np.where(sizes[:, None] > 0, means, np.tile(by_action, (count, 1)))

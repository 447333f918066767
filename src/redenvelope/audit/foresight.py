"""How much of an outcome a column tells on users apart, beyond what action and step tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.cells import Cells

__all__ = ["beyond", "cell_means", "residuals", "share_told", "shares_by_step", "step_agreement"]

FloatArray = NDArray[np.float64]

_PRIOR = 2.0  # rows of mean zero that every cell starts with: what a handful of rows says is hardly believed

_VARIES = 0.01  # of the variance of the step that varies most: less is no outcome to speak of


def cell_means(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> FloatArray:
    """The mean of values [rows] in each cell as users of the other folds have it, [folds, cells]."""
    counts, sums = _tables(values, cells, fold, folds)
    means: FloatArray = (sums.sum(axis=0) - sums) / (counts.sum(axis=0) - counts + _PRIOR)
    return means


def residuals(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> FloatArray:
    """What the cells leave of values, each row by the other folds' users, [rows]."""
    return np.asarray(values - cell_means(values, cells, fold, folds)[fold, cells.of_row])


def share_told(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> float:
    """The share of the squares of values [rows], of mean zero, that the cells tell on users apart; may be negative."""
    total = float((values**2).sum())
    if not total > 0:
        return 0.0
    counts, sums = _tables(values, cells, fold, folds)
    means = cell_means(values, cells, fold, folds)
    return float((2 * means * sums - counts * means**2).sum()) / total


def beyond(now: float, before: float) -> float:
    """The share that is told now of what was not told before."""
    return 1 - (1 - now) / (1 - max(before, 0.0)) if before < 1 else 0.0


def shares_by_step(
    values: FloatArray, cells: Cells, step: NDArray[np.int64], steps: int, fold: NDArray[np.int64], folds: int
) -> FloatArray:
    """`share_told` at each step by itself, [steps]; zero where hardly anything varies."""
    apart = Cells(step * cells.count + cells.of_row, steps * cells.count)
    counts, sums = _tables(values, apart, fold, folds)
    means = cell_means(values, apart, fold, folds)
    gained = (2 * means * sums - counts * means**2).reshape(folds, steps, cells.count).sum(axis=(0, 2))
    total = np.bincount(step, weights=values**2, minlength=steps)
    return np.asarray(np.divide(gained, total, out=np.zeros(steps), where=total > _VARIES * total.max()))


def step_agreement(values: FloatArray, user: NDArray[np.int64]) -> float:
    """Squares of users' sums beside sums of squares, values and users [rows]: 1 where the steps of a user are as good
    as independent, more where they are alike, less where they make up for one another."""
    total = float((values**2).sum())
    sums = np.bincount(user, weights=values)
    return float((sums**2).sum()) / total if total > 0 else 1.0


def _tables(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> tuple[FloatArray, FloatArray]:
    """Rows and sums of each cell, [folds, cells] each."""
    place = fold * cells.count + cells.of_row
    counts = np.bincount(place, minlength=folds * cells.count).reshape(folds, cells.count)
    sums = np.bincount(place, weights=values, minlength=folds * cells.count).reshape(folds, cells.count)
    return counts.astype(np.float64), sums.astype(np.float64, copy=False)

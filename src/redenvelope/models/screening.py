"""Screening: how much each column of a state tells of the outcomes, so that those that tell nothing weigh little.

A column is cut into bins. Where it tells nothing, the means of what actions leave unexplained differ between bins by
chance alone, and their sum of squares is about the degrees of freedom; what is above that is signal (as in James and
Stein's shrinkage). The test is made over all rows, which finds levels, and within actions, which finds effects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.models.dataset import Examples

_BINS = 8
_ERRORS = 1.0
"""Standard deviations by which a sum of squares exceeds its degrees of freedom by chance."""
_LEAST = 0.1
"""Weight of a column that tells nothing alone: it may tell something beside another."""


def column_weights(examples: Examples, rows: NDArray[np.int64]) -> FloatArray:
    """The weight of each column of a state, [width], from `_LEAST` to 1, found on some rows of a log."""
    layout, action = examples.layout, examples.action[rows]
    cell = examples.step[rows] * examples.actions + action
    count = np.maximum(np.bincount(cell), 1)
    left = []
    for outcome in examples.outcomes[:, rows]:
        own = outcome - (np.bincount(cell, weights=outcome) / count)[cell]
        variance = np.bincount(action, weights=own**2) / np.maximum(np.bincount(action), 1)
        left.append(own / np.sqrt(np.maximum(variance, 1e-12))[action])
    weights = np.ones(layout.width)
    for column in range(layout.history.start):
        if column == layout.step:
            continue
        code = _binned(examples.states[rows, column], column < len(layout.static_categories))
        is_code = column < len(layout.static_categories)
        code = _binned(examples.states[rows, column], is_code)
        found = [_signal(own, code, group) for own in left for group in (np.zeros_like(code), action)]
        if not is_code:
            found += [_trend(own, code, group) for own in left for group in (np.zeros_like(code), action)]
        weights[column] = max(_LEAST, *found)
    for block in layout.categories:
        weights[block] = weights[block].max()
    return weights


def _binned(values: NDArray[np.float32], is_code: bool) -> NDArray[np.int64]:
    """The bin of each value, [rows]: its code, or between quantiles."""
    if is_code:
        return values.astype(np.int64)
    cuts = np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1], method="nearest"))
    return np.searchsorted(cuts, values, side="left")


def _signal(left: FloatArray, code: NDArray[np.int64], group: NDArray[np.integer]) -> float:
    """The share of signal in the differences between bins [rows] within groups [rows], from 0 to 1."""
    bins = int(code.max()) + 1
    cell = group * bins + code
    count, total = np.bincount(cell), np.bincount(cell, weights=left)
    seen = count > 0
    freedom = seen.sum() - len(np.unique(group))
    if freedom < 1:
        return 0.0
    return _above(float((total[seen] ** 2 / count[seen]).sum()), int(freedom))


def _trend(left: FloatArray, code: NDArray[np.int64], group: NDArray[np.integer]) -> float:
    """The share of signal in the slopes over bins within groups."""
    count = np.maximum(np.bincount(group), 1)
    centred = code - (np.bincount(group, weights=code) / count)[group]
    spread, total = np.bincount(group, weights=centred**2), np.bincount(group, weights=centred * left)
    seen = spread > 0
    return _above(float((total[seen] ** 2 / spread[seen]).sum()), int(seen.sum()))


def _above(squares: float, freedom: int) -> float:
    """The share of a sum of squares that is above what chance makes of it."""
    return max(0.0, 1 - (freedom + _ERRORS * np.sqrt(2 * freedom)) / max(squares, 1e-12)) if freedom else 0.0

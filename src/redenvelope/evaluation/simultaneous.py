"""Bounds that hold at all prices at once: how sure each must be for all of them to be sure.

Estimates at neighbouring prices err together, so dividing the chance of an error among them would waste most of it. The
largest of their errors is imitated instead: users are given random signs, many times over (a multiplier bootstrap; for
means over many users as in Chernozhukov, Chetverikov and Kato, 2013). The signs come from the users' ids, so any number
of partitions gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from redenvelope.chance import fraction
from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.evidence import Evidence

__all__ = ["each_confidence"]

FloatArray = NDArray[np.float64]

_BITS = 48  # signs that one number of a user's gives
_NUMBERS = 42
# 2,016 draws: the 95 % quantile of the largest error is then known to about 0.04 standard errors.


def each_confidence(
    evaluation: Evaluation, prices: range, confidences: Sequence[float], seed: int
) -> tuple[tuple[float, float], ...]:
    """For each of some confidences, that of a one-sided bound so that those of all outcomes and prices hold with it."""
    means, places = evaluation.value[:, list(prices)], list(prices)

    def of_batch(batch: Evidence) -> tuple[FloatArray, FloatArray]:
        added = evaluation.terms(batch).influence(evaluation.moments)[:, :, places] - means[:, None]
        deviations = np.moveaxis(added, 1, 0).reshape(len(batch.keys), -1)
        return _signs(batch.keys, seed).T @ deviations, (deviations**2).sum(axis=0)

    def merge(
        first: tuple[FloatArray, FloatArray], second: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        return first[0] + second[0], first[1] + second[1]

    sums, squares = reduce(merge, evaluation.partitions.each(of_batch))
    known = squares > 0
    if not known.any():
        return tuple((float(level), float(level)) for level in confidences)
    largest = (sums[:, known] / np.sqrt(squares[known])).max(axis=1)
    return tuple((float(level), max(float(level), float(ndtr(np.quantile(largest, level))))) for level in confidences)


def _signs(keys: NDArray[np.uint64], seed: int) -> FloatArray:
    """Minus and plus one, by the toss of a coin, [users, draws]."""
    bits = np.arange(_BITS, dtype=np.uint64)
    signs = []
    for number in range(_NUMBERS):
        word = (fraction(keys, "signs", seed, number) * 2.0**53).astype(np.uint64)
        signs.append(((word[:, None] >> bits) & np.uint64(1)).astype(np.float64))
    return 2.0 * np.concatenate(signs, axis=1) - 1.0

"""Bounds that hold at all prices at once: how sure each must be for all of them to be sure.

Estimates at neighbouring prices err together, so dividing the chance of an error among them would waste most of it. The
largest of their errors is imitated instead: users are given random signs, many times over (a multiplier bootstrap; for
means over many users as in Chernozhukov, Chetverikov and Kato, 2013). The signs come from the users' ids, so any number
of partitions gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from redenvelope.chance import fraction

__all__ = ["each_confidence"]

FloatArray = NDArray[np.float64]

_BITS = 48  # signs that one number of a user's gives
_NUMBERS = 21
# 1,008 draws: the 95 % quantile of the largest error is then known to about 0.06 standard errors.
_BLOCK_USERS = 4_096


def each_confidence(
    added: FloatArray, keys: NDArray[np.uint64], confidences: Sequence[float], seed: int
) -> tuple[tuple[float, float], ...]:
    """For each of some confidences, that of a one-sided bound so that those of all outcomes and prices hold with it.

    `added` is what users add to the estimates, [outcomes, users, prices]; `keys` are the users, [users].
    """
    means = added.mean(axis=1)
    columns = means.size
    sums, squares = np.zeros((_BITS * _NUMBERS, columns)), np.zeros(columns)
    for first in range(0, len(keys), _BLOCK_USERS):
        some = slice(first, first + _BLOCK_USERS)
        deviations = np.moveaxis(added[:, some] - means[:, None], 1, 0).reshape(-1, columns)
        # Of random signs, single precision is more than enough; the sums of blocks are added in double.
        sums += _signs(keys[some], seed).T @ deviations.astype(np.float32)
        squares += (deviations**2).sum(axis=0)
    known = squares > 0
    if not known.any():
        return tuple((float(level), float(level)) for level in confidences)
    largest = (sums[:, known] / np.sqrt(squares[known])).max(axis=1)
    return tuple((float(level), max(float(level), float(ndtr(np.quantile(largest, level))))) for level in confidences)


def _signs(keys: NDArray[np.uint64], seed: int) -> NDArray[np.float32]:
    """Minus and plus one, by the toss of a coin, [users, draws]."""
    bits = np.arange(_BITS, dtype=np.uint64)
    signs = []
    for number in range(_NUMBERS):
        word = (fraction(keys, "signs", seed, number) * 2.0**53).astype(np.uint64)
        signs.append(((word[:, None] >> bits) & np.uint64(1)).astype(np.float32))
    return np.concatenate(signs, axis=1) * np.float32(2) - np.float32(1)

"""Sums without rounding: the same whatever the order and the parts, so that what is sorted by them stays in place."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

__all__ = ["exact_mean", "exact_sums"]

_DIGITS = 53  # of a float64
_HALF = 26
_OFFSET = 1_200  # more than the exponent of the smallest float64, its digits included
_BLOCK = 1 << 17  # rows that fit into a cache; sums of so many halves stay below 2^53, up to where float64 counts


def exact_sums(values: NDArray[np.float64], groups: NDArray[np.int32], count: int) -> tuple[int, ...]:
    """The sum of each group's finite values, in units of 2^−1200: values [rows], groups [rows] -> [count]."""
    totals = [0] * count
    for first in range(0, len(values), _BLOCK):
        block = slice(first, first + _BLOCK)
        for group, part in _block_sums(values[block], groups[block], count):
            totals[group] += part
    return tuple(totals)


def exact_mean(total: int, rows: int) -> float:
    """The mean of so many rows from their exact sum, rounded once."""
    return float(Fraction(total, rows << _OFFSET)) if rows else float("nan")


def _block_sums(values: NDArray[np.float64], groups: NDArray[np.int32], count: int) -> list[tuple[int, int]]:
    fractions, exponents = np.frexp(values)
    digits = np.ldexp(fractions, _DIGITS).astype(np.int64)
    # Numbers of the same exponent are whole multiples of the same unit: their digits add up as integers.
    present = np.flatnonzero(np.bincount(exponents + _OFFSET, minlength=2 * _OFFSET))
    place = np.zeros(2 * _OFFSET, dtype=np.int64)
    place[present] = np.arange(len(present))
    slots = groups * len(present) + place[exponents + _OFFSET]
    high, low = (
        np.bincount(slots, weights=half, minlength=count * len(present)).astype(np.int64)
        for half in (digits >> _HALF, digits & ((1 << _HALF) - 1))
    )
    filled = np.flatnonzero(high | low)
    return [
        (
            int(slot) // len(present),
            ((int(high[slot]) << _HALF) + int(low[slot])) << (int(present[slot % len(present)]) - _DIGITS),
        )
        for slot in filled
    ]

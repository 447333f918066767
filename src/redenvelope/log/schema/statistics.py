"""Mergeable statistics of numbers: moments, ranges, counts, and exact sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from redenvelope.merging import ALL, ANY, MAXIMUM, MINIMUM, FieldwiseSums

_BLOCK = 1 << 16  # rows; a block fits into a core's cache


@dataclass(frozen=True)
class Moments:
    """Count, means and deviations of some variables observed together; the first is correlated with the others."""

    count: int
    mean: tuple[float, ...]
    """[variables]"""
    spread: tuple[float, ...]
    """Sum of squared deviations of each, [variables]."""
    shared: tuple[float, ...]
    """Sum of products of deviations with the first, [variables]."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """The moments of rows of finite values: [variables, rows]."""
        if not values.shape[1]:
            return cls(0, *((0.0,) * len(values),) * 3)
        mean = values.mean(axis=1)
        deviations = values - mean[:, None]
        # einsum instead of a matrix product, which would start threads that cost more than such short rows.
        spread = np.einsum("vr,vr->v", deviations, deviations)
        shared = np.einsum("vr,r->v", deviations, deviations[0])
        return cls(values.shape[1], tuple(mean.tolist()), tuple(spread.tolist()), tuple(shared.tolist()))

    def merge(self, other: Moments) -> Moments:
        """See Mergeable."""
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        gap = [there - here for here, there in zip(self.mean, other.mean, strict=True)]
        weight = self.count * other.count / count
        return Moments(
            count,
            tuple(here + step * other.count / count for here, step in zip(self.mean, gap, strict=True)),
            tuple(a + b + step * step * weight for a, b, step in zip(self.spread, other.spread, gap, strict=True)),
            tuple(a + b + gap[0] * step * weight for a, b, step in zip(self.shared, other.shared, gap, strict=True)),
        )

    def correlation(self, variable: int) -> float:
        """The correlation of the first variable with another; 0 if either is constant or there are too few rows."""
        scale = sqrt(self.spread[0]) * sqrt(self.spread[variable])
        return self.shared[variable] / scale if self.count >= 3 and 0 < scale < inf else 0.0


@dataclass(frozen=True)
class NumberSums(FieldwiseSums):
    """Statistics of one number over some rows."""

    rows: int
    missing: int
    low: float = field(metadata=MINIMUM)
    high: float = field(metadata=MAXIMUM)
    """Infinite, with low above high, if every value is missing."""
    binary: bool = field(metadata=ALL)
    """Whether every value is 0 or 1."""
    changes: bool = field(metadata=ANY)
    """Whether it ever changes within a user."""
    moments: Moments
    """Moments of the present values, and when a log is first read also of the outcomes next to them."""


def number_sums(
    values: NDArray[np.float32], within: NDArray[np.bool_], beside: NDArray[np.float64] | None = None
) -> NumberSums:
    """The statistics of a number: values [rows] (NaN is missing), and whether each row continues its predecessor's
    user.

    `beside` are finite values of other variables in the same rows, [variables, rows].
    """
    others = np.zeros((0, len(values))) if beside is None else beside
    missing, low, high, binary = 0, inf, -inf, True
    moments = Moments.of(np.zeros((1 + len(others), 0)))
    for first in range(0, len(values), _BLOCK):
        block, along = values[first : first + _BLOCK], others[:, first : first + _BLOCK]
        lowest = block.min()
        if np.isnan(lowest):
            present = ~np.isnan(block)
            missing += len(block) - int(present.sum())
            block, along = block[present], along[:, present]
            if not len(block):
                continue
            lowest = block.min()
        low, high = min(low, float(lowest)), max(high, float(block.max()))
        binary = binary and 0 <= low <= high <= 1 and bool((block * block == block).all())
        moments = moments.merge(Moments.of(np.concatenate([block[None].astype(np.float64), along])))
    return NumberSums(len(values), missing, low, high, binary, changes_within(values, within), moments)


def changes_within(values: NDArray[np.float32] | NDArray[np.int32], within: NDArray[np.bool_]) -> bool:
    """Whether any value differs from its predecessor within the same user: [rows], [rows]."""
    for first in range(0, len(values) - 1, _BLOCK):
        here = values[first + 1 : first + 1 + _BLOCK]
        before = values[first : first + len(here)]
        different = (here != before) & within[first + 1 : first + 1 + _BLOCK]
        # Missing in both rows is no change, although NaN differs from itself.
        if different.any() and not (np.isnan(here) & np.isnan(before))[different].all():
            return True
    return False


# Exact sums do not depend on the order of rows and parts, so sorting by them is stable.


_DIGITS = 53  # of a float64
_HALF = 26
_OFFSET = 1_200  # above the magnitude of the smallest float64's exponent, with its digits
_EXACT_BLOCK = 1 << 17  # rows; fits into a cache, and sums of so many halves stay below 2^53, exact in float64


def exact_sums(values: NDArray[np.float64], groups: NDArray[np.int32], count: int) -> tuple[int, ...]:
    """The exact sum of each group's finite values, in units of 2^−1200: values [rows], groups [rows] -> [count]."""
    totals = [0] * count
    for first in range(0, len(values), _EXACT_BLOCK):
        block = slice(first, first + _EXACT_BLOCK)
        for group, part in _block_sums(values[block], groups[block], count):
            totals[group] += part
    return tuple(totals)


def exact_mean(total: int, rows: int) -> float:
    """The mean of `rows` values from their exact sum, rounded once."""
    return float(Fraction(total, rows << _OFFSET)) if rows else float("nan")


def _block_sums(values: NDArray[np.float64], groups: NDArray[np.int32], count: int) -> list[tuple[int, int]]:
    fractions, exponents = np.frexp(values)
    digits = np.ldexp(fractions, _DIGITS).astype(np.int64)
    # Numbers with the same exponent are integer multiples of one unit, so their digits add up as integers.
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


@dataclass(frozen=True)
class OutcomeSums(FieldwiseSums):
    """Counts and range of a numeric role."""

    rows: int
    finite: int
    zeros: int
    above_one: int
    """Finite values above 1."""
    low: float = field(metadata=MINIMUM)
    high: float = field(metadata=MAXIMUM)
    """Range of the finite values."""


def outcome_sums(values: NDArray[np.float64]) -> OutcomeSums:
    """The counts and range of values [rows]."""
    finite = np.isfinite(values)
    usable = values if finite.all() else values[finite]
    return OutcomeSums(
        rows=len(values),
        finite=len(usable),
        zeros=len(usable) - int(np.count_nonzero(usable)),
        above_one=int(np.count_nonzero(usable > 1)),
        low=float(usable.min()) if len(usable) else inf,
        high=float(usable.max()) if len(usable) else -inf,
    )

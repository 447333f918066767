"""Quantiles of propensities from counts that add up: exact where values repeat, else to a 4,000th of a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

__all__ = ["QuantileSums", "quantile_sums", "quantiles"]

_DROPPED_BITS = 40  # of a float64: twelve binary digits of its value are left


@dataclass(frozen=True, eq=False)
class QuantileSums:
    """Positive values in narrow bins, whose edges are the same for all data; sums of parts add up."""

    bins: NDArray[np.int64]
    """Which bins have values, rising, [bins]."""
    counts: NDArray[np.int64]
    """[bins]"""
    low: NDArray[np.float64]
    """The least value of each bin, [bins]."""
    high: NDArray[np.float64]
    """The greatest value of each bin, [bins]."""

    def __add__(self, other: QuantileSums) -> QuantileSums:
        """The bins of both sets of values."""
        bins = np.union1d(self.bins, other.bins)
        counts = np.zeros(len(bins), dtype=np.int64)
        low, high = np.full(len(bins), np.inf), np.full(len(bins), -np.inf)
        for part in (self, other):
            place = np.searchsorted(bins, part.bins)
            counts[place] += part.counts
            low[place] = np.minimum(low[place], part.low)
            high[place] = np.maximum(high[place], part.high)
        return QuantileSums(bins, counts, low, high)


def quantile_sums(values: NDArray[np.float64]) -> QuantileSums:
    """The bins of positive values, [rows]."""
    rising = np.sort(values)
    # The bits of positive floats, read as integers, rise with the floats.
    bins = rising.view(np.int64) >> _DROPPED_BITS
    starts = np.append(0, np.flatnonzero(bins[1:] != bins[:-1]) + 1)
    ends = np.append(starts[1:], len(bins))
    return QuantileSums(bins[starts], ends - starts, rising[starts], rising[ends - 1])


def quantiles(sums: QuantileSums, levels: Sequence[float]) -> list[float]:
    """The values below which these shares of all values lie, between neighbours in proportion."""
    before = np.cumsum(sums.counts) - sums.counts
    last = int(sums.counts.sum()) - 1

    def ranked(rank: int) -> float:
        place = int(np.searchsorted(before, rank, side="right")) - 1
        within = (rank - before[place]) / max(sums.counts[place] - 1, 1)
        return float(sums.low[place] + within * (sums.high[place] - sums.low[place]))

    found = []
    for level in levels:
        rank = floor(level * last)
        lower, upper = ranked(rank), ranked(min(rank + 1, last))
        found.append(lower + (level * last - rank) * (upper - lower))
    return found

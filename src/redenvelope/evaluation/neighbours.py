"""Sums of what users add to estimates at neighbouring prices: enough for bounds of each, and of mixtures of two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.evidence import Evidence

__all__ = ["NeighbourSums", "neighbour_sums"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NeighbourSums:
    """Means over users; deviations are what a user adds less the mean."""

    users: int
    means: FloatArray
    """[outcomes, prices]"""
    squares: FloatArray
    """Of deviations, [outcomes, prices]."""
    cubes: FloatArray
    """[outcomes, prices]"""
    products: FloatArray
    """Of deviations at a price, d, and at the next one, e: d·e, d²·e and d·e², [3, outcomes, prices − 1]."""


def neighbour_sums(evaluation: Evaluation, prices: range) -> NeighbourSums:
    """One pass over the users, at some of the prices, in their order."""
    means, places = evaluation.value[:, list(prices)], list(prices)

    def of_batch(batch: Evidence) -> tuple[FloatArray, FloatArray]:
        deviations = evaluation.terms(batch).influence(evaluation.moments)[:, :, places] - means[:, None]
        return _powers(deviations), _products(deviations[..., :-1], deviations[..., 1:])

    def merge(
        first: tuple[FloatArray, FloatArray], second: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        return first[0] + second[0], first[1] + second[1]

    powers, products = (sums / evaluation.users for sums in reduce(merge, evaluation.partitions.each(of_batch)))
    return NeighbourSums(evaluation.users, means, powers[0], powers[1], products)


def _powers(deviations: FloatArray) -> FloatArray:
    """Sums of squares and cubes, [outcomes, users, prices] -> [2, outcomes, prices]."""
    squares = deviations * deviations
    return np.stack([squares.sum(axis=1), (squares * deviations).sum(axis=1)])


def _products(left: FloatArray, right: FloatArray) -> FloatArray:
    """[outcomes, users, prices − 1] each -> [3, outcomes, prices − 1]."""
    both = left * right
    return np.stack([both.sum(axis=1), (both * left).sum(axis=1), (both * right).sum(axis=1)])

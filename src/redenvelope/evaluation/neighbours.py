"""Sums of what users add to estimates at neighbouring prices: enough for bounds of each, and of mixtures of two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NeighbourSums", "neighbour_sums"]

FloatArray = NDArray[np.float64]

_BLOCK_USERS = 4_096  # whose deviations stay in the cache


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


def neighbour_sums(added: FloatArray) -> NeighbourSums:
    """Of what users add to estimates, [outcomes, users, prices], the prices in their order."""
    outcomes, users, prices = added.shape
    means = added.mean(axis=1)
    squares, cubes = np.zeros((outcomes, prices)), np.zeros((outcomes, prices))
    products = np.zeros((3, outcomes, prices - 1))
    for first in range(0, users, _BLOCK_USERS):
        here = added[:, first : first + _BLOCK_USERS] - means[:, None]
        squared, both = here * here, here[..., :-1] * here[..., 1:]
        squares += squared.sum(axis=1)
        cubes += (squared * here).sum(axis=1)
        products += np.stack(
            [both.sum(axis=1), (both * here[..., :-1]).sum(axis=1), (both * here[..., 1:]).sum(axis=1)]
        )
    return NeighbourSums(users, means, squares / users, cubes / users, products / users)

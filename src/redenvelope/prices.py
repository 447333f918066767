"""Prices (Lagrange multipliers) of the budgets' costs: validation, the meaning of infinity, and grids of prices.

Shapes put outcomes first: [outcomes, …] holds the reward, then one cost for each budget; prices are [prices, budgets].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError


def checked_prices(prices: ArrayLike, budgets: int = 1) -> FloatArray:
    """Prices as [prices, budgets], all at least 0; a flat list is for one budget."""
    table = np.asarray(prices, dtype=np.float64)
    if budgets == 1 and table.ndim < 2:
        table = np.atleast_1d(table)[:, None]
    if table.ndim != 2 or table.shape[1] != budgets or not len(table):
        raise UsageError(f"prices must be [prices, budgets] with {budgets} budget(s), not of shape {table.shape}")
    if not (table >= 0).all():
        raise UsageError("prices must be numbers of at least 0 (infinity plans on cost alone)")
    return table


def outcome_weights(prices: ArrayLike) -> FloatArray:
    """The weight of each outcome at prices [prices, budgets], [outcomes, prices]: 1 for the reward, −price for a cost.

    With an infinite price, only the costs with infinite prices count, because infinity times zero is not a number.
    """
    table = np.asarray(prices, dtype=np.float64)
    infinite = np.asarray(np.isinf(table))
    alone = np.asarray(infinite.any(axis=1))
    costs = np.where(alone[:, None], infinite.astype(np.float64), np.where(infinite, 0.0, table))
    return np.concatenate([np.where(alone, 0.0, 1.0)[None], -costs.T])


# A scale of prices from 0 to infinity, and grids on it: values computed at the knots are interpolated in between.


def scaled_dual(duals: FloatArray, unit: float) -> FloatArray:
    """Duals from 0 to infinity on a scale from 0 to 1, [duals]: the square root of dual / (dual + unit).

    The root gives small duals more of the scale, because a policy's cost falls fastest there.
    """
    return np.asarray(np.sqrt(1.0 - unit / (np.asarray(duals, np.float64) + unit)))


def unscaled_dual(places: FloatArray, unit: float) -> FloatArray:
    """The inverse of `scaled_dual`, [places]; 1 is infinity."""
    squares = np.square(places)
    finite = squares < 1.0
    return np.where(finite, unit * squares / np.where(finite, 1.0 - squares, 1.0), np.inf)


_FAR_ABOVE = 1e4  # units: high enough that nothing is bought, low enough for the digits of 32 bits


@dataclass(frozen=True)
class PriceGrid:
    """A grid of prices over all budgets, from 0 to infinity, evenly spaced on the scale of `scaled_dual`."""

    units: tuple[float, ...]
    """The scale of each budget's prices, [budgets]."""
    knots: int
    """Prices per budget; the grid has knots ** budgets points."""

    def __post_init__(self) -> None:
        if self.knots < 2 or not self.units or not all(np.isfinite(unit) and unit > 0 for unit in self.units):
            raise ValueError("a grid of prices needs at least two knots, and a unit above 0 for every budget")

    @cached_property
    def table(self) -> FloatArray:
        """The points of the grid, [points, budgets]."""
        places = np.linspace(0.0, 1.0, self.knots)
        return np.array(list(product(*(unscaled_dual(places, unit) for unit in self.units))))

    @property
    def finite(self) -> FloatArray:
        """The same points, with very high prices in place of infinite ones, [points, budgets]."""
        return np.minimum(self.table, _FAR_ABOVE * np.array(self.units))

    def weights(self, prices: FloatArray) -> FloatArray:
        """Multilinear interpolation weights at prices [prices, budgets], [prices, points]; rows sum to one."""
        found = np.ones((len(prices), 1))
        for column, unit in zip(np.asarray(prices, np.float64).T, self.units, strict=True):
            place = scaled_dual(column, unit)[:, None] * (self.knots - 1)
            hats = np.maximum(0.0, 1.0 - np.abs(place - np.arange(self.knots)))
            found = (found[:, :, None] * hats[:, None]).reshape(len(found), -1)
        return found

"""Prices of cost, one for each budget: what is a price, and what an infinite one means.

Everywhere, outcomes lead: [outcomes, …] holds the reward first, then one cost for each budget; prices are
[prices, budgets].
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
    """Prices as [prices, budgets], numbers of at least 0; a plain list is of one budget."""
    table = np.asarray(prices, dtype=np.float64)
    if budgets == 1 and table.ndim < 2:
        table = np.atleast_1d(table)[:, None]
    if table.ndim != 2 or table.shape[1] != budgets or not len(table):
        raise UsageError(f"prices must be [prices, budgets] with {budgets} budget(s), not of shape {table.shape}")
    if not (table >= 0).all():
        raise UsageError("prices must be numbers of at least 0 (infinity plans on cost alone)")
    return table


def outcome_weights(prices: ArrayLike) -> FloatArray:
    """What each outcome counts at prices [prices, budgets], [outcomes, prices]: 1 for the reward, minus the price for
    a cost.

    A row with an infinite price plans on those costs alone: infinity times a cost of zero would not be a number.
    """
    table = np.asarray(prices, dtype=np.float64)
    infinite = np.asarray(np.isinf(table))
    alone = np.asarray(infinite.any(axis=1))
    costs = np.where(alone[:, None], infinite.astype(np.float64), np.where(infinite, 0.0, table))
    return np.concatenate([np.where(alone, 0.0, 1.0)[None], -costs.T])


# A scale of prices from 0 to infinity, and grids on it: what is computed at the knots is interpolated in between.


def scaled_dual(duals: FloatArray, unit: float) -> FloatArray:
    """Duals from 0 to infinity on a scale from 0 to 1, [duals]: the root of dual / (dual + unit).

    The root spreads out small duals, where a policy's cost falls fastest.
    """
    return np.asarray(np.sqrt(1.0 - unit / (np.asarray(duals, np.float64) + unit)))


def unscaled_dual(places: FloatArray, unit: float) -> FloatArray:
    """The duals at places of that scale, [places]; 1 is infinity."""
    squares = np.square(places)
    finite = squares < 1.0
    return np.where(finite, unit * squares / np.where(finite, 1.0 - squares, 1.0), np.inf)


_FAR_ABOVE = 1e4  # units: nothing is bought at such a price, and its digits still fit 32 bits


@dataclass(frozen=True)
class PriceGrid:
    """A grid of prices over all budgets, even on the scale of `scaled_dual`, from 0 to infinity."""

    units: tuple[float, ...]
    """The scale of each budget's prices, [budgets]."""
    knots: int
    """Prices of each budget; the grid has knots ** budgets points."""

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
        """The same, with prices far above all others in the place of infinite ones, [points, budgets]."""
        return np.minimum(self.table, _FAR_ABOVE * np.array(self.units))

    def weights(self, prices: FloatArray) -> FloatArray:
        """What each point counts at prices [prices, budgets], [prices, points]: multilinear, rows sum to one."""
        found = np.ones((len(prices), 1))
        for column, unit in zip(np.asarray(prices, np.float64).T, self.units, strict=True):
            place = scaled_dual(column, unit)[:, None] * (self.knots - 1)
            hats = np.maximum(0.0, 1.0 - np.abs(place - np.arange(self.knots)))
            found = (found[:, :, None] * hats[:, None]).reshape(len(found), -1)
        return found

"""Prices of cost, one for each budget: what is a price, and what an infinite one means.

Everywhere, outcomes lead: [outcomes, …] holds the reward first, then one cost for each budget; prices are
[prices, budgets].
"""

from __future__ import annotations

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

"""Prices in blocks that are backed up together: finite ones, and those at the ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.prices import checked_prices, outcome_weights

__all__ = ["PriceBlock", "price_blocks"]

# Every new number of prices is compiled anew, so there are few such numbers.
_SIZES = (1, 2, 8, 24, 64)


@dataclass(frozen=True, eq=False)
class PriceBlock:
    """Some of the prices that were asked for."""

    places: NDArray[np.intp]
    """Where they stand among all, [asked]."""
    weights: NDArray[np.float32]
    """What each outcome counts, [outcomes, prices]: those asked for, the last repeated up to one of few lengths."""
    soft: bool
    """With entropy: only finite prices can be."""
    finite: bool


def price_blocks(prices: ArrayLike, budgets: int, temperature: float) -> tuple[PriceBlock, ...]:
    """Blocks of prices [prices, budgets]: the finite ones, at a temperature with entropy, and others."""
    table = checked_prices(prices, budgets)
    with np.errstate(over="ignore"):  # beyond 3e38 a price is as good as infinite
        table = table.astype(np.float32)
    finite = np.isfinite(table).all(axis=1)
    weights = outcome_weights(table).astype(np.float32)
    return tuple(
        PriceBlock(places, _filled(weights[:, places]), kind and temperature > 0, kind)
        for kind in (True, False)
        if len(places := np.flatnonzero(finite == kind))
    )


def _filled(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """[outcomes, prices], the last repeated."""
    count = weights.shape[1]
    unit = next((size for size in _SIZES if count <= size), _SIZES[-1])
    return np.pad(weights, ((0, 0), (0, -count % unit)), mode="edge")

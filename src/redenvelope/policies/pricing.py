"""The prices of a plan and the share of users who follow each: all that repricing, pacing and mixtures change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.prices import checked_prices
from redenvelope.randomness import fraction

# Shares are computed, so their sum has rounding.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Pricing:
    """One price for each budget, or a mixture: several such rows and the share of users who follow each.

    A user's row is drawn once, not at every step: only then are the mixture's mean outcomes the weighted means of its
    rows' outcomes, which is how two hard plans land on a budget exactly.
    """

    prices: tuple[tuple[float, ...], ...]
    """[prices, budgets]; infinity plans on that cost alone."""
    shares: tuple[float, ...]
    """Share of users who follow each row, [prices]."""

    def __post_init__(self) -> None:
        if not self.prices or len(self.prices) != len(self.shares):
            raise UsageError(f"every price needs a share: {len(self.prices)} prices, {len(self.shares)} shares")
        checked_prices(self.prices, len(self.prices[0]))
        if not (min(self.shares) >= 0 and abs(sum(self.shares) - 1) <= _TOLERANCE):
            raise UsageError(f"the shares of prices must be at least 0 and sum to 1, not {self.shares}")

    @classmethod
    def at(cls, *prices: float) -> Pricing:
        """One price for each budget, the same for all users."""
        return cls((tuple(float(price) for price in prices),), (1.0,))

    @property
    def budgets(self) -> int:
        """Number of budgets."""
        return len(self.prices[0])

    @property
    def table(self) -> NDArray[np.float64]:
        """[prices, budgets]."""
        return np.array(self.prices, dtype=np.float64)

    def drawn(self, keys: NDArray[np.uint64], seed: int) -> NDArray[np.intp]:
        """The row that each user follows, [users]: the same at every step and on every machine."""
        if len(self.shares) == 1:
            return np.zeros(len(keys), dtype=np.intp)
        return np.searchsorted(self._edges, fraction(keys, "pricing", seed), side="right")

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        """Cumulative shares of all rows but the last, so that rounding leaves no user beyond the last row."""
        return np.cumsum(self.shares)[:-1]

    def mix(self, values: NDArray[Any], axis: int = -1) -> NDArray[np.float64]:
        """The mixture's values: the mean over an axis [prices], weighted by the shares."""
        return np.asarray(np.tensordot(values, np.asarray(self.shares), axes=(axis, 0)))

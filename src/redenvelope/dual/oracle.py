"""The oracle of a dual search: a function from prices (Lagrange multipliers) to the mean outcomes of their plans.

Searches for one budget and for several use the same function (`PriceFunction`), recorded alike by `RecordedPrice`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ProblemError
from redenvelope.prices import checked_prices


class PriceFunction(Protocol):
    """Mean outcomes per user of the plan at each row of prices: [prices, budgets] -> [outcomes, prices].

    Outcomes are the reward, then one cost for each budget. Prices are at least 0. A price of 0 ignores its cost. A
    price of infinity plans on its cost alone: with one budget, the plan has the lowest cost of all plans and, among
    plans of that cost, the greatest reward.
    """

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Price all rows in one pass."""
        ...


class Point(NamedTuple):
    """One plan of a search for one budget: its price, and what it costs and earns per user."""

    dual: float
    cost: float
    reward: float


@dataclass(frozen=True, eq=False)
class Priced:
    """Some plans: the prices of each, and its mean reward and costs per user."""

    prices: FloatArray
    """[plans, budgets]"""
    outcomes: FloatArray
    """[outcomes, plans]"""

    def __len__(self) -> int:
        return len(self.prices)

    @property
    def rewards(self) -> FloatArray:
        """[plans]"""
        return np.asarray(self.outcomes[0])

    @property
    def costs(self) -> FloatArray:
        """[budgets, plans]"""
        return self.outcomes[1:]

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Mask of plans whose prices are all finite, [plans]: only their Lagrangians include the reward and bound the
        optimum."""
        return np.asarray(np.isfinite(self.prices).all(axis=1))

    def bounds(self, budgets: FloatArray) -> FloatArray:
        """The Lagrangian at each row of prices, [plans], infinity if a price is infinite: an upper bound on the reward
        of plans within the budgets [budgets]."""
        finite = self.finite
        prices = np.where(finite[:, None], self.prices, 0.0)
        lagrangian = self.rewards - (prices.T * (self.costs - budgets[:, None])).sum(axis=0)
        return np.where(finite, lagrangian, np.inf)

    def only(self, which: list[int] | NDArray[np.intp]) -> Priced:
        """Some of the plans, by their positions."""
        return Priced(self.prices[which], self.outcomes[:, which])


@dataclass(eq=False)
class RecordedPrice:
    """A price function that checks every answer and records all plans."""

    function: PriceFunction
    budgets: int = 1
    passes: int = 0
    """Calls of the function; one call may price many rows."""
    _prices: list[FloatArray] = field(default_factory=list)
    _outcomes: list[FloatArray] = field(default_factory=list)

    def __call__(self, prices: ArrayLike) -> FloatArray:
        """Price rows [prices, budgets] in one pass, in the order given: [outcomes, prices]."""
        table = checked_prices(prices, self.budgets)
        outcomes = np.asarray(self.function(table), dtype=np.float64)
        self.passes += 1
        expected = (1 + self.budgets, len(table))
        if outcomes.shape != expected:
            raise ProblemError(
                f"price was given prices of shape {table.shape} and returned outcomes of shape {outcomes.shape}; it "
                f"must return {expected}: the rewards, then the costs of each budget, one number for each row of prices"
            )
        if not np.isfinite(outcomes).all():
            first = int(np.argmin(np.isfinite(outcomes).all(axis=0)))
            name = "costs" if np.isfinite(outcomes[0, first]) else "rewards"
            hint = "; an infinite price must plan on cost alone" if np.isinf(table[first]).any() else ""
            at = ", ".join(f"{price:g}" for price in table[first])
            raise ProblemError(f"price returned {name} that are not finite at price {at}{hint}")
        self._prices.append(table)
        self._outcomes.append(outcomes)
        return outcomes

    def points(self, duals: Iterable[float]) -> list[Point]:
        """With one budget: the plans at some prices, in one pass and in the order given."""
        priced = [float(dual) for dual in duals]
        rewards, costs = self(priced).tolist()
        return [Point(*row) for row in zip(priced, costs, rewards, strict=True)]

    def at(self, dual: float) -> Point:
        """With one budget: the plan at one price."""
        return self.points([dual])[0]

    @property
    def plans(self) -> Priced:
        """Every plan that was priced, in order."""
        return Priced(np.concatenate(self._prices), np.concatenate(self._outcomes, axis=1))

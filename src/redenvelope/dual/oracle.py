"""What a dual search is handed: a function from prices to the outcomes of their plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.errors import ProblemError


class PriceFunction(Protocol):
    """Mean outcomes a user of the plan at each row of prices: [prices, budgets] -> [outcomes, prices].

    Outcomes are the reward, then one cost for each budget. Prices are at least 0. A price of 0 ignores its cost. A
    price of infinity plans on its cost alone: with one budget the plan's cost is the least that any plan has, its
    reward the greatest among plans of that cost.
    """

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Price all rows in one pass."""
        ...


class Point(NamedTuple):
    """One evaluation: what the plan at a dual costs and earns."""

    dual: float
    cost: float
    reward: float


@dataclass(eq=False)
class RecordedPrice:
    """A price function of one budget that checks every answer and keeps a log of the search."""

    function: PriceFunction
    points: list[Point] = field(default_factory=list)
    """Every evaluation, in order."""
    passes: int = 0
    """Calls of the function; one call may price many duals."""

    def __call__(self, duals: Iterable[float]) -> list[Point]:
        """Price duals in one pass, in the order given."""
        vector = np.array(list(duals), dtype=np.float64)
        outcomes = np.asarray(self.function(vector[:, None]), dtype=np.float64)
        self.passes += 1
        if outcomes.shape != (2, len(vector)):
            raise ProblemError(
                f"price was given prices of shape {(len(vector), 1)} and returned outcomes of shape {outcomes.shape}; "
                f"it must return {(2, len(vector))}: the rewards, then the costs, one number for each price"
            )
        for name, values in zip(("rewards", "costs"), outcomes, strict=True):
            if not np.isfinite(values).all():
                dual = vector[~np.isfinite(values)][0]
                hint = "; an infinite price must plan on cost alone" if np.isinf(dual) else ""
                raise ProblemError(f"price returned {name} that are not finite at price {dual:g}{hint}")
        rewards, costs = outcomes.tolist()
        points = [Point(*row) for row in zip(vector.tolist(), costs, rewards, strict=True)]
        self.points.extend(points)
        return points

    def at(self, dual: float) -> Point:
        """Price one dual."""
        return self([dual])[0]

"""What a dual search is handed: a function from duals to the costs and rewards of their plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ProblemError

__all__ = ["Point", "PriceFunction", "RecordedPrice"]

FloatArray = NDArray[np.float64]


class PriceFunction(Protocol):
    """Mean cost and mean reward a user of the plan at each dual: [duals] -> (costs, rewards), both [duals].

    Duals are at least 0. A dual of 0 ignores cost. A dual of infinity plans on cost alone: its cost is the
    least that any plan has, its reward the greatest among plans of that cost.
    """

    def __call__(self, duals: FloatArray, /) -> tuple[FloatArray, FloatArray]:
        """Price a vector of duals in one pass."""
        ...


class Point(NamedTuple):
    """One evaluation: what the plan at a dual costs and earns."""

    dual: float
    cost: float
    reward: float


@dataclass(eq=False)
class RecordedPrice:
    """A price function that checks every answer and keeps a log of the search."""

    function: PriceFunction
    points: list[Point] = field(default_factory=list)
    """Every evaluation, in order."""
    passes: int = 0
    """Calls of the function; one call may price many duals."""

    def __call__(self, duals: Iterable[float]) -> list[Point]:
        """Price duals in one pass, in the order given."""
        vector = np.array(list(duals), dtype=np.float64)
        costs, rewards = (np.asarray(values, dtype=np.float64) for values in self.function(vector))
        self.passes += 1
        for name, values in (("costs", costs), ("rewards", rewards)):
            if values.shape != vector.shape:
                raise ProblemError(
                    f"price was given {len(vector)} duals and returned {name} of shape {values.shape}; "
                    "it must return one number for each dual"
                )
            if not np.isfinite(values).all():
                dual = vector[~np.isfinite(values)][0]
                hint = "; an infinite dual must plan on cost alone" if np.isinf(dual) else ""
                raise ProblemError(f"price returned {name} that are not finite at dual {dual:g}{hint}")
        points = [Point(*map(float, row)) for row in zip(vector, costs, rewards, strict=True)]
        self.points.extend(points)
        return points

    def at(self, dual: float) -> Point:
        """Price one dual."""
        return self([dual])[0]

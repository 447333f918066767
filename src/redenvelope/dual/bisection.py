"""The paper's search, corrected: halve the bracket, or cut it in many parts in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redenvelope.dual.bracket import Bracket, SearchEnd, finite_bracket
from redenvelope.dual.price import RecordedPrice
from redenvelope.dual.solution import DualStatus

__all__ = ["Bisection"]


@dataclass(frozen=True)
class Bisection:
    """Cut the bracket in equal parts until a plan meets the budget or the bracket closes on a jump."""

    tolerance: float = 1e-6
    """A plan is accepted when it costs at most the budget and at most this share of it less."""
    precision: float = 1e-12
    """The bracket is closed at this share of its first width; its two ends are then mixed."""
    parts: int = 2
    """Parts a pass cuts the bracket in; `price` prices all cuts at once."""
    max_steps: int = 100
    """Passes after the bracket is found."""
    upper: float | None = None
    """First upper dual to try; the valid bound if None."""

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        """Narrow a bracket; `scale` is the cost that `tolerance` is a share of."""
        found = finite_bracket(price, bracket, self.upper)
        if found is None:
            return SearchEnd(DualStatus.BRACKET_NOT_FOUND, bracket, bracket.high, bracket.high.dual)
        bracket, first_width = found, found.width
        accepted = bracket.accepted([bracket.high], self.tolerance * scale)
        for _ in range(self.max_steps):
            if accepted is not None:
                return SearchEnd(DualStatus.CONVERGED, bracket, accepted, accepted.dual)
            if bracket.width <= self.precision * first_width:
                return SearchEnd(DualStatus.CONVERGED, bracket, None, bracket.high.dual)
            cuts = np.linspace(bracket.low.dual, bracket.high.dual, self.parts + 1)[1:-1]
            points = price(cuts)
            bracket = bracket.narrowed(points)
            accepted = bracket.accepted(points, self.tolerance * scale)
        if accepted is not None:
            return SearchEnd(DualStatus.CONVERGED, bracket, accepted, accepted.dual)
        return SearchEnd(DualStatus.MAX_STEPS_REACHED, bracket, None, bracket.high.dual)

"""Dual ascent, the paper's baseline: raise the dual while the plan costs too much."""

from __future__ import annotations

from dataclasses import dataclass

from redenvelope.dual.bracket import Bracket, SearchEnd, finite_bracket
from redenvelope.dual.price import RecordedPrice
from redenvelope.dual.solution import DualStatus

__all__ = ["DualAscent"]


@dataclass(frozen=True)
class DualAscent:
    """Gradient steps on the dual function, whose slope is budget − cost."""

    rate: float = 0.5
    """Length of a step, as a share of the bracket's duals over its costs: no unit to choose."""
    tolerance: float = 1e-6
    """A plan is accepted when it costs at most the budget and at most this share of it less."""
    max_steps: int = 200
    """Gradient steps after the bracket is found."""
    upper: float | None = None
    """First upper dual to try; the valid bound if None."""

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        """Climb from the cheap end; `scale` is the cost that `tolerance` is a share of."""
        found = finite_bracket(price, bracket, self.upper)
        if found is None:
            return SearchEnd(DualStatus.BRACKET_NOT_FOUND, bracket, bracket.high, bracket.high.dual)
        bracket = found
        low, high = bracket.low, bracket.high
        length = self.rate * (high.dual - low.dual) / (low.cost - high.cost)
        # The narrowed bracket is kept beside the climb, so that a climb cut short still has plans to mix.
        point = high
        for _ in range(self.max_steps):
            accepted = bracket.accepted([point], self.tolerance * scale)
            if accepted is not None:
                return SearchEnd(DualStatus.CONVERGED, bracket, accepted, accepted.dual)
            dual = max(0.0, point.dual + length * (point.cost - bracket.budget))
            if dual == point.dual:
                break
            point = price.at(dual)
            bracket = bracket.narrowed([point])
        accepted = bracket.accepted([point], self.tolerance * scale)
        if accepted is not None:
            return SearchEnd(DualStatus.CONVERGED, bracket, accepted, accepted.dual)
        return SearchEnd(DualStatus.MAX_STEPS_REACHED, bracket, None, bracket.high.dual)

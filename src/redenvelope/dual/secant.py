"""Discrete secant for plans without entropy: walks the concave envelope to the exact optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redenvelope.dual.bracket import Bracket, SearchEnd
from redenvelope.dual.price import Point, RecordedPrice
from redenvelope.dual.solution import DualStatus

__all__ = ["Secant"]


@dataclass(frozen=True)
class Secant:
    """Price the slope of the chord between the two ends; when no plan lies above the chord, mix its ends.

    Plans without entropy are corners of a concave envelope of (cost, reward). The plan at the chord's slope
    is the corner furthest above the chord, so each pass finds a new corner or proves that the chord is an
    edge, and the mixture of its ends is then the exact optimum of the linear program. A price that does not
    plan for all it counts (entropy, a bandit, an off-policy estimate) has plans off the envelope: `Newton`
    and `Bisection` then find where the cost meets the budget.
    """

    precision: float = 1e-12
    """A plan counts as above the chord when it gains more than this share of the chord's own worth."""
    companions: int = 1
    """Further duals (up to 7) priced in the same pass, around where interpolation expects the budget."""
    max_steps: int = 100
    """Passes at most."""

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        """Narrow a bracket to an edge of the envelope; `scale` is not needed, the result is exact."""
        unit = abs(bracket.chord)
        for _ in range(self.max_steps):
            slope = bracket.chord
            if not bracket.low.dual <= slope <= bracket.high.dual:
                # Only noise brings the chord outside of its own duals; halving goes on regardless.
                slope = _between(bracket, 0.5)
            points = price([slope, *_companions(bracket, slope, self.companions)])
            if slope == bracket.chord and not self._above(points[0], bracket):
                return SearchEnd(DualStatus.CONVERGED, bracket, None, slope)
            narrowed = bracket.narrowed(points)
            if narrowed == bracket or narrowed.width <= self.precision * unit:
                return SearchEnd(DualStatus.CONVERGED, narrowed, None, narrowed.high.dual)
            bracket = narrowed
        return SearchEnd(DualStatus.MAX_STEPS_REACHED, bracket, None, bracket.chord)

    def _above(self, point: Point, bracket: Bracket) -> bool:
        worth = max(end.reward - point.dual * end.cost for end in (bracket.low, bracket.high))
        gain = point.reward - point.dual * point.cost - worth
        return gain > self.precision * (abs(bracket.low.reward) + point.dual * abs(bracket.low.cost))


def _companions(bracket: Bracket, slope: float, count: int) -> list[float]:
    """Duals around the one where a straight line through the costs meets the budget.

    Their distances from it fall by powers of eight: when the line is good, the next bracket is that much
    narrower; when it is not, the chord's slope still halves the bracket.
    """
    if count == 0 or not np.isfinite(bracket.high.dual):
        # Without an upper dual there is no line yet: spread out around the only price known.
        return [slope * 2.0 ** (position - count // 2) * 1.5 for position in range(count)]
    centre = 1 - bracket.low_share
    offsets = [0.0] + [sign * 8.0**-power for power in (2, 1, 3) for sign in (1.0, -1.0)]
    places = [centre + offset for offset in offsets][:count]
    return [_between(bracket, float(np.clip(place, 0, 1))) for place in places]


def _between(bracket: Bracket, place: float) -> float:
    """The dual at a place of the bracket from 0 (low) to 1 (high)."""
    low, high = bracket.low.dual, bracket.high.dual
    return low + place * (high - low) if np.isfinite(high) else max(1.0, 2 * low)

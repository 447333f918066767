"""Safeguarded Newton search for plans with entropy, whose cost is a smooth function of the dual."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf, log
from typing import NamedTuple

from redenvelope.dual.bracket import Bracket, SearchEnd
from redenvelope.dual.price import RecordedPrice
from redenvelope.dual.solution import DualStatus

__all__ = ["Newton"]

# Steps after which the bracket or the error must have halved; otherwise the next step halves the bracket.
_PATIENCE = 3
# Keeps the log-odds finite at the ends, as a share of the span of costs. Smaller values trust the ends less.
_MARGIN = 0.01


@dataclass(frozen=True)
class Newton:
    """Newton's method on the dual function, with slopes taken from the points already priced.

    The slope of the dual function is budget − cost, so that its minimum is where the cost meets the budget.
    The cost falls along an S from the dearest to the cheapest plan; its log-odds against
    x = dual / (dual + chord), which maps the duals from 0 to infinity to [0, 1] without a unit, are nearly
    straight, and the step of Anderson and Björck follows them. A step that does not narrow the bracket
    enough is replaced by halving, so that jumps and noise cost passes but never lose the root.
    """

    tolerance: float = 1e-6
    """A plan is accepted when it costs at most the budget and at most this share of it less."""
    precision: float = 1e-12
    """The bracket is closed at this width in x; its two ends are then mixed."""
    max_steps: int = 200
    """Evaluations at most."""

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        """Narrow a bracket; `scale` is the cost that `tolerance` is a share of."""
        unit = bracket.chord if bracket.chord > 0 else 1.0
        # Aim at the middle of what is accepted: hitting the budget itself would end above it half the time.
        least, most = bracket.high.cost, bracket.low.cost
        aim = max(bracket.budget - self.tolerance * scale / 2, (bracket.budget + least) / 2)
        line = _Line(
            _place(bracket.low.dual, unit),
            _error(most, aim, least, most),
            _place(bracket.high.dual, unit),
            _error(least, aim, least, most),
        )
        progress = [(line.width, inf)]
        for _ in range(self.max_steps):
            width, error = progress[-_PATIENCE - 1] if len(progress) > _PATIENCE else (inf, inf)
            stuck = progress[-1][0] > width / 2 and progress[-1][1] > error / 2
            place = line.middle if stuck else line.crossing
            point = price.at(_dual(place, unit))
            accepted = bracket.accepted([point], self.tolerance * scale)
            if accepted is not None:
                return SearchEnd(DualStatus.CONVERGED, bracket, accepted, accepted.dual)
            bracket = bracket.narrowed([point])
            error = _error(point.cost, aim, least, most)
            line = line.narrowed(place, error)
            progress.append((line.width, abs(error)))
            if line.width <= self.precision:
                return SearchEnd(DualStatus.CONVERGED, bracket, None, bracket.high.dual)
        return SearchEnd(DualStatus.MAX_STEPS_REACHED, bracket, None, bracket.high.dual)


class _Line(NamedTuple):
    """A line through the errors at both ends of the bracket."""

    left: float
    left_error: float
    """Positive: too dear."""
    right: float
    right_error: float
    """Negative or zero: cheap enough."""
    moved: str = "neither"
    """The end that moved last."""

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def middle(self) -> float:
        return self.left + self.width / 2

    @property
    def crossing(self) -> float:
        """Where the line crosses zero; the middle if it does so at an end, which would be priced again."""
        place = self.left + self.width * self.left_error / (self.left_error - self.right_error)
        return place if self.left < place < self.right else self.middle

    def narrowed(self, place: float, error: float) -> _Line:
        """The line after a new point; an end that stays twice is lowered, or it would stay for ever."""
        if error > 0:
            lowered = _lowered(error, self.left_error) if self.moved == "left" else 1.0
            return _Line(place, error, self.right, self.right_error * lowered, "left")
        lowered = _lowered(error, self.right_error) if self.moved == "right" else 1.0
        return _Line(self.left, self.left_error * lowered, place, error, "right")


def _lowered(error: float, replaced: float) -> float:
    """Anderson and Björck's factor for the end that stays, from how far the other end's error fell."""
    factor = 1 - error / replaced if replaced != 0 else 0.5
    return factor if factor > 0 else 0.5


def _error(cost: float, aim: float, least: float, most: float) -> float:
    """Log-odds of a cost between the least and the most, minus those of the aim."""
    margin = _MARGIN * (most - least)

    def log_odds(value: float) -> float:
        return log(max(value - least, 0.0) + margin) - log(max(most - value, 0.0) + margin)

    return log_odds(cost) - log_odds(aim)


def _place(dual: float, unit: float) -> float:
    return 1.0 if isinf(dual) else dual / (dual + unit)


def _dual(place: float, unit: float) -> float:
    return inf if place >= 1 else unit * place / (1 - place)

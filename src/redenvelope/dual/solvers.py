"""Searches for the optimal price (dual) of one budget: the bracket that they narrow, bounds on the dual, and solvers.

`Bisection` and `DualAscent` are the paper's, corrected. `Newton` suits plans with entropy, whose cost is a smooth
function of the dual; `Secant` finds the exact optimum of plans without entropy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isinf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.dual.oracle import Point, RecordedPrice
from redenvelope.dual.solution import DualStatus
from redenvelope.errors import UsageError

# 4^40 is 1e24: no meaningful price is further out.
_EXPANSION = 4.0
_MAX_EXPANSIONS = 40


@dataclass(frozen=True)
class Bracket:
    """Two plans around the budget: `low` has the smaller dual and costs more than it; `high` costs at most as much."""

    low: Point
    high: Point
    budget: float

    def narrowed(self, points: Iterable[Point]) -> Bracket:
        """The bracket after each point between the two duals replaced the end on its side of the budget.

        Estimated costs need not fall with the dual; the ends still stay on their sides of the budget, so a search
        always has two plans to mix.
        """
        low, high = self.low, self.high
        for point in points:
            if low.dual < point.dual < high.dual:
                if point.cost > self.budget:
                    low = point
                else:
                    high = point
        return Bracket(low, high, self.budget)

    @property
    def chord(self) -> float:
        """Reward per unit of cost between the two ends; at this dual both have the same Lagrangian."""
        return (self.low.reward - self.high.reward) / (self.low.cost - self.high.cost)

    @property
    def low_share(self) -> float:
        """Share of users who must follow the `low` plan so that the mixture costs the budget exactly."""
        return (self.budget - self.high.cost) / (self.low.cost - self.high.cost)

    @property
    def width(self) -> float:
        """Distance between the two duals."""
        return self.high.dual - self.low.dual

    def accepted(self, points: Iterable[Point], tolerance: float) -> Point | None:
        """The dearest point that costs at most the budget and at most `tolerance` less, if there is one."""
        near = [point for point in points if 0 <= self.budget - point.cost <= tolerance]
        return max(near, key=lambda point: point.cost) if near else None


class SearchEnd(NamedTuple):
    """Where a solver stopped."""

    status: DualStatus
    bracket: Bracket
    point: Point | None
    """The plan to use; None mixes the bracket's ends."""
    dual: float
    """Best estimate of the shadow price."""


def valid_bound(unconstrained: Point, feasible: Point, budget: float) -> float:
    """An upper bound on the optimal dual, from any plan that costs less than the budget.

    At the optimal dual λ no plan's Lagrangian exceeds the optimum: J(feasible) − λ·(cost − budget) ≤ J*,
    and J* is at most the unconstrained reward.
    """
    room = budget - feasible.cost
    if room <= 0:
        return np.inf
    return max(0.0, unconstrained.reward - feasible.reward) / room


def paper_bound(mean_rewards: ArrayLike, mean_costs: ArrayLike) -> float:
    """The paper's bound (appendix B, corrected): the steepest slope from the cheapest action, [actions].

    It is a bound in campaigns of one step. In longer ones a cheap action may save a later reward, and the optimal
    dual may be larger: use it as a first guess that `finite_bracket` expands.
    """
    rewards, costs = np.asarray(mean_rewards, dtype=float), np.asarray(mean_costs, dtype=float)
    if rewards.shape != costs.shape or rewards.ndim != 1 or rewards.size == 0:
        raise UsageError("paper_bound needs one mean reward and one mean cost for each action")
    cheapest = int(costs.argmin())
    dearer = costs > costs[cheapest]
    slopes = (rewards[dearer] - rewards[cheapest]) / (costs[dearer] - costs[cheapest])
    return float(max(0.0, slopes.max(initial=0.0)))


def finite_bracket(price: RecordedPrice, bracket: Bracket, guess: float | None = None) -> Bracket | None:
    """The bracket with a finite upper dual, or None if the plans at all duals tried exceed the budget.

    Starts from `guess`, or from the valid bound, which is high enough if `price` has neither entropy nor noise.
    """
    if np.isfinite(bracket.high.dual):
        return bracket
    dual = valid_bound(bracket.low, bracket.high, bracket.budget) if guess is None else guess
    if not (np.isfinite(dual) and dual > bracket.low.dual):
        # The chord has the unit of a dual, whatever the unit of money; 1 is the last resort when it is zero.
        dual = max(bracket.chord, 2 * bracket.low.dual) or 1.0
    for _ in range(_MAX_EXPANSIONS):
        point = price.at(dual)
        bracket = bracket.narrowed([point])
        if np.isfinite(bracket.high.dual):
            return bracket
        dual *= _EXPANSION
    return None


@dataclass(frozen=True)
class Bisection:
    """The paper's search, corrected: cut the bracket into equal parts until a plan meets the budget or the bracket
    closes on a jump of the cost."""

    tolerance: float = 1e-6
    """A plan is accepted when it costs at most the budget and at most this share of it less."""
    precision: float = 1e-12
    """The bracket is closed at this share of its first width; its two ends are then mixed."""
    parts: int = 2
    """Parts that a pass cuts the bracket into; `price` evaluates all cuts at once."""
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
            points = price.points(cuts)
            bracket = bracket.narrowed(points)
            accepted = bracket.accepted(points, self.tolerance * scale)
        if accepted is not None:
            return SearchEnd(DualStatus.CONVERGED, bracket, accepted, accepted.dual)
        return SearchEnd(DualStatus.MAX_STEPS_REACHED, bracket, None, bracket.high.dual)


@dataclass(frozen=True)
class DualAscent:
    """The paper's baseline: gradient steps on the dual function, whose slope is budget − cost."""

    rate: float = 0.5
    """Step size, relative to the bracket's width in duals over its width in costs, so that it has no unit."""
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
        # The bracket is narrowed along the way, so that a search cut short still has two plans to mix.
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


# Steps after which the bracket or the error must have halved; otherwise the next step halves the bracket.
_PATIENCE = 3
# Keeps the log-odds finite at the ends, as a share of the range of costs. Smaller values trust the ends less.
_MARGIN = 0.01


@dataclass(frozen=True)
class Newton:
    """Newton's method on the dual function, with slopes taken from the points already priced.

    The slope of the dual function is budget − cost, so that its minimum is where the cost meets the budget.
    The cost falls in an S-shape from the dearest to the cheapest plan; its log-odds are nearly linear in
    x = dual / (dual + chord), which maps the duals from 0 to infinity to [0, 1] without a unit, and Anderson
    and Björck's method finds their root. Steps that do not narrow the bracket enough are replaced by halving,
    so that jumps and noise cost passes but never lose the root.
    """

    tolerance: float = 1e-6
    """A plan is accepted when it costs at most the budget and at most this share of it less."""
    precision: float = 1e-12
    """The bracket is closed at this width in x; its two ends are then mixed."""
    max_steps: int = 200
    """Most evaluations."""

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        """Narrow a bracket; `scale` is the cost that `tolerance` is a share of."""
        unit = bracket.chord if bracket.chord > 0 else 1.0
        # Aim at the middle of the accepted range: aiming at the budget itself would end above it half of the time.
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
    """A line through the errors at both ends of the bracket, on the scale x."""

    left: float
    left_error: float
    """Positive: above the budget."""
    right: float
    right_error: float
    """Negative or zero: within the budget."""
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
        """Where the line crosses zero; the middle if that is an end, which would be evaluated again."""
        place = self.left + self.width * self.left_error / (self.left_error - self.right_error)
        return place if self.left < place < self.right else self.middle

    def narrowed(self, place: float, error: float) -> _Line:
        """The line after a new point; the error of an end that stays twice is lowered, or it would stay forever."""
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


@dataclass(frozen=True)
class Secant:
    """Discrete secant: evaluate the slope of the chord between the two ends; if no plan lies above it, mix its ends.

    Plans without entropy are corners of a concave envelope of (cost, reward). The plan at the chord's slope
    is the corner furthest above the chord, so each pass finds a new corner or proves that the chord is an
    edge, and the mixture of its ends is then the exact optimum of the linear program. Price functions that do
    not maximise exactly the Lagrangian (entropy, a bandit, an off-policy estimate) have plans off the envelope:
    `Newton` and `Bisection` then find where the cost meets the budget.
    """

    precision: float = 1e-12
    """A plan counts as above the chord when it gains more than this share of the chord's own Lagrangian."""
    companions: int = 1
    """Further duals (up to 7) evaluated in the same pass, around where interpolation expects the budget."""
    max_steps: int = 100
    """Most passes."""

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        """Narrow a bracket to an edge of the envelope; `scale` is not needed, the result is exact."""
        unit = abs(bracket.chord)
        for _ in range(self.max_steps):
            slope = bracket.chord
            if not bracket.low.dual <= slope <= bracket.high.dual:
                # Only noise brings the slope outside the bracket's duals; then halve it.
                slope = _between(bracket, 0.5)
            points = price.points([slope, *_companions(bracket, slope, self.companions)])
            if slope == bracket.chord and not self._above(points[0], bracket):
                return SearchEnd(DualStatus.CONVERGED, bracket, None, slope)
            narrowed = bracket.narrowed(points)
            if narrowed == bracket or narrowed.width <= self.precision * unit:
                return SearchEnd(DualStatus.CONVERGED, narrowed, None, narrowed.high.dual)
            bracket = narrowed
        return SearchEnd(DualStatus.MAX_STEPS_REACHED, bracket, None, bracket.chord)

    def _above(self, point: Point, bracket: Bracket) -> bool:
        chord = max(end.reward - point.dual * end.cost for end in (bracket.low, bracket.high))
        gain = point.reward - point.dual * point.cost - chord
        return gain > self.precision * (abs(bracket.low.reward) + point.dual * abs(bracket.low.cost))


def _companions(bracket: Bracket, slope: float, count: int) -> list[float]:
    """Duals around the one where linear interpolation of the costs meets the budget.

    Their distances from it are powers of 1/8 of the bracket: if the interpolation is good, the next bracket is
    that much narrower; if not, the chord's slope still narrows it.
    """
    if count == 0 or not np.isfinite(bracket.high.dual):
        # Without a finite upper dual nothing can be interpolated: spread out around the slope.
        return [slope * 2.0 ** (position - count // 2) * 1.5 for position in range(count)]
    centre = 1 - bracket.low_share
    offsets = [0.0] + [sign * 8.0**-power for power in (2, 1, 3) for sign in (1.0, -1.0)]
    places = [centre + offset for offset in offsets][:count]
    return [_between(bracket, float(np.clip(place, 0, 1))) for place in places]


def _between(bracket: Bracket, place: float) -> float:
    """The dual at a place in the bracket from 0 (low) to 1 (high); beyond the low one if the high one is infinite."""
    low, high = bracket.low.dual, bracket.high.dual
    return low + place * (high - low) if np.isfinite(high) else max(1.0, 2 * low)

"""The frontier of one budget: the concave curve of reward over cost, from the cheapest plan to the one that ignores
cost. `Frontier` reads rewards and shadow prices off it; `refined_frontier` chooses where to price it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.oracle import Point, PriceFunction, RecordedPrice
from redenvelope.errors import UsageError

# Neighbouring plans closer than this, relatively, have no plan between them worth pricing.
_ROUNDING = 1e-12
# An estimate without error would outweigh all others, so standard errors count as at least this share of the largest.
_LEAST_ERROR = 1e-6


@dataclass(frozen=True, eq=False)
class Frontier:
    """Costs and rewards of the plans at many duals, from the cheapest plan on."""

    duals: FloatArray
    """[points], falling."""
    costs: FloatArray
    """[points]."""
    rewards: FloatArray
    """[points]."""

    @cached_property
    def envelope(self) -> NDArray[np.intp]:
        """Positions of the points on the upper concave envelope, by rising cost, [corners].

        It ends at the greatest reward: plans that cost more without earning more are dominated.
        """
        order = np.lexsort((-self.rewards, self.costs))
        corners: list[int] = []
        for position in order:
            if corners and self.rewards[position] <= self.rewards[corners[-1]]:
                continue
            while len(corners) > 1 and self._slope(corners[-1], position) >= self._slope(*corners[-2:]):
                corners.pop()
            if len(corners) == 1 and self.costs[corners[0]] == self.costs[position]:
                corners.pop()
            corners.append(int(position))
        return np.array(corners, dtype=np.intp)

    @property
    def least_budget(self) -> float:
        """Cost of the cheapest plan."""
        return float(self.costs[self.envelope[0]])

    def reward_at(self, budget: float) -> float:
        """The reward that a budget buys, with a mixture of two plans if none fits exactly."""
        self._check(budget)
        return float(np.interp(budget, self.costs[self.envelope], self.rewards[self.envelope]))

    def shadow_price(self, budget: float) -> float:
        """The reward that one more unit of budget buys; 0 if the budget is more than any plan on the frontier uses."""
        self._check(budget)
        corners = self.envelope
        right = int(np.searchsorted(self.costs[corners], budget, side="right"))
        return 0.0 if right == len(corners) else self._slope(corners[right - 1], corners[right])

    def cost_for(self, reward: float) -> float:
        """The least cost that earns a reward."""
        costs, rewards = self.costs[self.envelope], self.rewards[self.envelope]
        if not reward <= rewards[-1]:
            raise UsageError(f"no plan earns {reward:.6g} per user; the greatest reward is {rewards[-1]:.6g}")
        return float(np.interp(reward, rewards, costs))

    def _slope(self, left: int, right: int) -> float:
        return float((self.rewards[right] - self.rewards[left]) / (self.costs[right] - self.costs[left]))

    def _check(self, budget: float) -> None:
        if not budget >= self.least_budget:
            raise UsageError(
                f"no plan is as cheap as {budget:.6g} per user; the least budget is {self.least_budget:.6g}"
            )


def refined_frontier(price: PriceFunction, count: int = 64) -> Frontier:
    """The frontier at about `count` prices chosen where the curve bends, in about log2(count) passes.

    Each pass prices the slopes of the chords that may lie furthest below the curve; without entropy or noise it
    ends early when every corner of the curve is known.
    """
    if count < 2:
        raise UsageError(f"a frontier needs at least 2 points, not {count}")
    recorded = RecordedPrice(price)
    points = sorted(recorded.points([0.0, np.inf]), reverse=True)
    known: set[float] = set()
    while len(points) < count:
        chords = _open_chords(points, known)
        # A pass adds at most as many points as there are, so that later ones go where the curve bends.
        slopes = [slope for _, slope in chords[: count - len(points)]]
        if not slopes:
            break
        known.update(slopes)
        points = sorted(points + recorded.points(slopes), reverse=True)
    return _collected(points)


def _open_chords(points: list[Point], known: set[float]) -> list[tuple[float, float]]:
    """(height, slope) of chords that may have plans above them, the greatest height first."""
    chords = []
    for right, left in zip(points[1:], points[:-1], strict=True):
        rise, run = right.reward - left.reward, right.cost - left.cost
        if run <= _ROUNDING * abs(right.cost) or rise <= _ROUNDING * abs(right.reward):
            continue
        slope = rise / run
        if right.dual < slope < left.dual and slope not in known:
            # The curve lies below the tangents at both ends, which bounds the gain of a new point.
            chords.append((min(rise - right.dual * run, run * min(left.dual, 1e300) - rise), slope))
    return sorted(chords, reverse=True)


def _collected(points: list[Point]) -> Frontier:
    duals, costs, rewards = np.array(sorted(points, reverse=True)).T
    return Frontier(duals, costs, rewards)


def falling(values: FloatArray, errors: FloatArray) -> FloatArray:
    """The closest non-increasing values (isotonic regression), weighted by inverse squared errors, [points]."""
    from scipy.optimize import isotonic_regression  # costs more to import than the rest of the package

    weights = 1.0 / np.maximum(errors, max(_LEAST_ERROR * float(errors.max()), 1e-150)) ** 2
    return np.asarray(isotonic_regression(values, weights=weights / weights.max(), increasing=False).x)

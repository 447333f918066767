"""Two duals with the budget between their costs, and bounds on the dual that spends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.dual.price import Point, RecordedPrice
from redenvelope.dual.solution import DualStatus
from redenvelope.errors import UsageError

__all__ = ["Bracket", "SearchEnd", "finite_bracket", "paper_bound", "valid_bound"]

# 4^40 is 1e24: a dual further out than that is no longer a price.
_EXPANSION = 4.0
_MAX_EXPANSIONS = 40


@dataclass(frozen=True)
class Bracket:
    """`low` has the smaller dual and costs more than the budget; `high` costs at most the budget."""

    low: Point
    high: Point
    budget: float

    def narrowed(self, points: Iterable[Point]) -> Bracket:
        """The bracket after each point between the two duals took the place of the end it resembles.

        Costs that are estimates need not fall with the dual; the ends stay on their sides of the budget
        all the same, so a search always has two plans to mix.
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
        """Reward per unit of cost between the two ends; at this dual both are worth the same."""
        return (self.low.reward - self.high.reward) / (self.low.cost - self.high.cost)

    @property
    def low_share(self) -> float:
        """Share of users who must get the `low` plan so that the mixture costs the budget exactly."""
        return (self.budget - self.high.cost) / (self.low.cost - self.high.cost)

    @property
    def width(self) -> float:
        """Distance of the two duals."""
        return self.high.dual - self.low.dual

    def accepted(self, points: Iterable[Point], tolerance: float) -> Point | None:
        """The point that costs at most the budget and less than `tolerance` below it, if any; the dearest."""
        near = [point for point in points if 0 <= self.budget - point.cost <= tolerance]
        return max(near, key=lambda point: point.cost) if near else None


class SearchEnd(NamedTuple):
    """Where a solver stopped."""

    status: DualStatus
    bracket: Bracket
    point: Point | None
    """The one plan to use; None asks for the mixture of the bracket's ends."""
    dual: float
    """Best estimate of the shadow price."""


def valid_bound(unconstrained: Point, feasible: Point, budget: float) -> float:
    """An upper bound on the optimal dual, from any plan that costs less than the budget.

    At the optimal dual λ no plan is worth more than the optimum: J(feasible) − λ·(cost − budget) ≤ J*,
    and J* is at most the unconstrained reward.
    """
    room = budget - feasible.cost
    if room <= 0:
        return np.inf
    return max(0.0, unconstrained.reward - feasible.reward) / room


def paper_bound(mean_rewards: ArrayLike, mean_costs: ArrayLike) -> float:
    """The paper's bound (appendix B, corrected): the steepest slope from the cheapest action, [actions].

    It is a bound when one step is all there is. In a sequence a cheap action may save a later reward, and
    the optimal dual may be larger: use it as a first guess that `finite_bracket` expands.
    """
    rewards, costs = np.asarray(mean_rewards, dtype=float), np.asarray(mean_costs, dtype=float)
    if rewards.shape != costs.shape or rewards.ndim != 1 or rewards.size == 0:
        raise UsageError("paper_bound needs one mean reward and one mean cost for each action")
    cheapest = int(costs.argmin())
    dearer = costs > costs[cheapest]
    slopes = (rewards[dearer] - rewards[cheapest]) / (costs[dearer] - costs[cheapest])
    return float(max(0.0, slopes.max(initial=0.0)))


def finite_bracket(price: RecordedPrice, bracket: Bracket, guess: float | None = None) -> Bracket | None:
    """The bracket with a finite upper dual, or None if none of the duals tried fits the budget.

    Starts from `guess`, or from the valid bound, which already fits when `price` plans without entropy
    and without noise.
    """
    if np.isfinite(bracket.high.dual):
        return bracket
    dual = valid_bound(bracket.low, bracket.high, bracket.budget) if guess is None else guess
    if not (np.isfinite(dual) and dual > bracket.low.dual):
        # The chord has the unit of a dual whatever the unit of money; 1 is left when it is zero.
        dual = max(bracket.chord, 2 * bracket.low.dual) or 1.0
    for _ in range(_MAX_EXPANSIONS):
        point = price.at(dual)
        bracket = bracket.narrowed([point])
        if np.isfinite(bracket.high.dual):
            return bracket
        dual *= _EXPANSION
    return None

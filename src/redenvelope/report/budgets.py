"""What other budgets would buy: the plan's own ladder, walked again for each, as `redenvelope reprice` would.

Rewards beside the plan's own follow from its prices: along a ladder, one more unit of cost earns the price. Estimates
of the rewards themselves are far too rough for that. In the envelopes campaign (8,000 logged users, budget 4), where
the last unit earns 0.052 in truth, the price said 0.059 and the slope between estimates 0.008; going from 3.8 to 8 a
user earns 0.11, by the prices 0.12 and by the estimates 0.03.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.plan.certificate import BudgetFigure
from redenvelope.plan.certify import Question, walk
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plan import Plan

__all__ = ["BudgetPoint", "break_even", "budget_points", "points_along"]

FloatArray = NDArray[np.float64]

_POINTS = 60


@dataclass(frozen=True)
class BudgetPoint:
    """What a budget buys."""

    budget: float
    """Mean cost a user."""
    cost: float
    """What the plan for it is expected to cost; its upper bound keeps to the budget."""
    reward: float
    """What the plan for it is expected to earn: that of this plan, and what its prices say of the rest."""
    price: float
    """The reward that one more unit of cost buys."""


@dataclass(frozen=True, eq=False)
class _Curve:
    """Price and reward along the costs of a ladder."""

    costs: FloatArray
    """Rising, [rungs]."""
    prices: FloatArray
    """Finite, [rungs]."""
    rewards: FloatArray
    """Beside those of the first rung, [rungs]."""

    @classmethod
    def of(cls, ladder: Ladder) -> _Curve:
        costs = np.maximum.accumulate(ladder.means[1])
        prices = ladder.prices[:, 0].copy()
        if np.isinf(prices[0]) and len(prices) > 1:  # no price: what the estimates say of the first rung's slope
            rise, run = ladder.means[0, 1] - ladder.means[0, 0], costs[1] - costs[0]
            prices[0] = max(prices[1], 2 * rise / run - prices[1]) if run > 0 else prices[1]
        steps = np.diff(costs) * (prices[1:] + prices[:-1]) / 2
        return cls(costs, np.nan_to_num(prices), np.concatenate([[0.0], np.cumsum(steps)]))

    def price(self, cost: float) -> float:
        return float(np.interp(cost, self.costs, self.prices)) if cost < self.costs[-1] else 0.0

    def reward(self, cost: float) -> float:
        """What the prices up to a cost add up to."""
        within = float(np.clip(cost, self.costs[0], self.costs[-1]))
        rung = max(int(np.searchsorted(self.costs, within)) - 1, 0)
        mean = (self.prices[rung] + np.interp(within, self.costs, self.prices)) / 2
        return float(self.rewards[rung] + (within - self.costs[rung]) * mean)


def budget_points(plan: Plan) -> tuple[BudgetPoint, ...]:
    """From the least budget that can be kept to the one beyond which money buys nothing, by rising budget.

    None where the plan has several budgets, or its ladder carries no plan.
    """
    ladder, certificate = plan.ladder, plan.certificate
    if len(ladder.rungs[0].prices) > 1:
        return ()
    upper = ladder.bounds(certificate.confidence)[1][1]
    stands = ~ladder.doubted & np.isfinite(upper)
    if not stands.any():
        return ()
    wanted = np.linspace(upper[stands].min(), upper[stands].max(), _POINTS).tolist()
    curve, own = _Curve.of(ladder), certificate.cost.estimate
    points = []
    for budget in sorted({*wanted, certificate.budget}):
        stop = walk(ladder, Question(budget, None, certificate.confidence))
        if stop.holds:
            cost = (
                own if budget == certificate.budget else ladder.figures(stop.place, certificate.confidence)[1].estimate
            )
            reward = certificate.reward.estimate + curve.reward(cost) - curve.reward(own)
            points.append(BudgetPoint(budget, cost, reward, curve.price(cost)))
    return tuple(points)


def points_along(plan: Plan, budget: BudgetFigure) -> tuple[BudgetPoint, ...]:
    """What one of several budgets buys while the others are held, by rising limit; none where they cannot be.

    As along a ladder, rewards beside the plan's own follow from the prices: with the others held, one more of a budget
    earns its shadow price.
    """
    if plan.frontiers is None:
        return ()
    rows = plan.frontiers.filter(pl.col("budget") == budget.name).sort("limit")
    rows = rows.filter(pl.all_horizontal(pl.col("limit", "dual", "cost").is_finite())).unique(
        "limit", keep="last", maintain_order=True
    )
    if len(rows) < 2:
        return ()
    limits, prices, costs = (rows[name].to_numpy() for name in ("limit", "dual", "cost"))
    steps = np.diff(limits) * (prices[1:] + prices[:-1]) / 2
    curve = _Curve(limits, prices, np.concatenate([[0.0], np.cumsum(steps)]))
    shown = np.unique(np.append(np.linspace(limits[0], limits[-1], _POINTS), budget.budget))
    own = curve.reward(budget.budget)
    return tuple(
        BudgetPoint(
            limit,
            budget.cost.estimate if limit == budget.budget else float(np.interp(limit, limits, costs)),
            plan.certificate.reward.estimate + curve.reward(limit) - own,
            curve.price(limit),
        )
        for limit in shown.tolist()
    )


def break_even(points: tuple[BudgetPoint, ...], value: float) -> float | None:
    """The greatest budget at which the last unit of money still brings back a unit, where a unit of reward is worth so
    much; None if none does."""
    paying = [point.budget for point in points if value * point.price >= 1]
    return max(paying) if paying else None

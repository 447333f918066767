"""The frontier as one curve: what every budget buys, as the check users say, monotone and concave."""

from __future__ import annotations

import numpy as np
import polars as pl

from redenvelope.dual.curve import MonotoneCurve
from redenvelope.dual.frontier import Frontier
from redenvelope.plan.ladder import Ladder

__all__ = ["frontier_table"]


def frontier_table(ladder: Ladder, model: Frontier, confidence: float) -> pl.DataFrame:
    """Reward and cost of every rung with two-sided bounds, and as the model believes, by rising price.

    Costs and rewards fall with the price, so the nearest that do are shown. Two plans can always be mixed, so no reward
    lies below the line between two others.
    """
    upward = slice(None, None, -1)  # a ladder's prices fall
    lower, upper = (bound[:, upward] for bound in ladder.bounds((1 + confidence) / 2))
    means, prices = ladder.means[:, upward], ladder.prices[upward, 0]
    errors = np.array([rung.square for rung in ladder.rungs]).T[:, upward] ** 0.5
    rewards, costs = MonotoneCurve(prices, means[:2], errors[:2]).monotone
    corners = (curve := Frontier(prices, costs, rewards)).envelope
    return pl.DataFrame(
        {
            "dual": prices,
            "cost": costs,
            "reward": np.interp(costs, curve.costs[corners], curve.rewards[corners]),
            "cost_lower": lower[1],
            "cost_upper": upper[1],
            "reward_lower": lower[0],
            "reward_upper": upper[0],
            "model_cost": model.costs[upward],
            "model_reward": model.rewards[upward],
        }
    )

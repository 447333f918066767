"""What other budgets would buy, read off a plan's frontier."""

from __future__ import annotations

from typing import Any

import numpy as np

from redenvelope.dual.frontier import Frontier
from redenvelope.errors import UsageError
from redenvelope.plan.plan import Plan

__all__ = ["answer"]


def answer(plan: Plan, budget: float | None, reward: float | None) -> dict[str, Any]:
    """The frontier, what 10 % more or less budget buys, and answers to a budget and to a reward."""
    for name, asked_for in (("budget", budget), ("reward", reward)):
        if asked_for is not None and not np.isfinite(asked_for):
            raise UsageError(f"the {name} must be a number, not {asked_for}")
    table = plan.frontier
    curve = Frontier(*(table[name].to_numpy() for name in ("dual", "cost", "reward")))
    asked = [plan.certificate.budget * factor for factor in (0.9, 1.0, 1.1)] if budget is None else [budget]
    content: dict[str, Any] = {
        "budget": plan.certificate.budget,
        "least_budget": curve.least_budget,
        "at": [_at(curve, value) for value in asked if value >= curve.least_budget],
        "frontier": [
            {name: "infinity" if np.isinf(value) else value for name, value in row.items()}
            for row in table.iter_rows(named=True)
        ],
    }
    if reward is not None:
        content["least_cost"] = {"reward": reward, "cost": curve.cost_for(reward)}
    return content


def _at(curve: Frontier, budget: float) -> dict[str, float]:
    return {"budget": budget, "reward": curve.reward_at(budget), "shadow_price": curve.shadow_price(budget)}

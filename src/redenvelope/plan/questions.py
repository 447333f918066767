"""What other budgets would buy, read off a plan's frontier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from redenvelope.dual.frontier import Frontier
from redenvelope.errors import UsageError
from redenvelope.plan.certificate import BudgetFigure
from redenvelope.plan.plan import Plan

__all__ = ["answer"]


def answer(plan: Plan, budget: float | Mapping[str, float] | None, reward: float | None) -> dict[str, Any]:
    """The frontier, what 10 % more or less budget buys, and answers to a budget and to a reward.

    With several budgets each has a frontier of its own, along which the others are held; a `budget` is then asked for
    by name, and a number is the first's.
    """
    named = [each.name for each in plan.certificate.budgets]
    given = budget if isinstance(budget, Mapping) else {} if budget is None else {named[0]: budget}
    for name in given:
        if name not in named:
            raise UsageError(f"the plan has no budget {name!r}; it has {', '.join(map(repr, named))}")
    if len(named) > 1 and reward is not None:
        raise UsageError("a reward asks for the least cost, and the plan has several; give --budget NAME=VALUE")
    for name, asked_for in (*given.items(), ("reward", reward)):
        if asked_for is not None and not np.isfinite(asked_for):
            raise UsageError(f"the {name} must be a number, not {asked_for}")
    first, *others = plan.certificate.budgets
    content: dict[str, Any] = {"budget": plan.certificate.budget} | _along(plan, first, given.get(first.name))
    if others:
        content["budgets"] = [
            _along(plan, each, given.get(each.name)) | {"name": each.name} for each in (first, *others)
        ]
    if reward is not None:
        content["least_cost"] = {"reward": reward, "cost": _curve(plan, first.name).cost_for(reward)}
    return content


def _curve(plan: Plan, name: str) -> Frontier:
    table = plan.along(name)
    return Frontier(*(table[column].to_numpy() for column in ("dual", "cost", "reward")))


def _along(plan: Plan, budget: BudgetFigure, wanted: float | None) -> dict[str, Any]:
    """One budget's frontier, and what some amounts of it buy."""
    table = plan.along(budget.name)
    asked = [budget.budget * factor for factor in (0.9, 1.0, 1.1)] if wanted is None else [wanted]
    rows = [
        {name: "infinity" if np.isinf(value) else value for name, value in row.items()}
        for row in table.iter_rows(named=True)
    ]
    if not rows:  # the others cannot be kept, whatever this one is
        return {"least_budget": None, "at": [], "frontier": []}
    curve = _curve(plan, budget.name)
    found = [_at(curve, value) for value in asked if value >= curve.least_budget]
    return {"least_budget": curve.least_budget, "at": found, "frontier": rows}


def _at(curve: Frontier, budget: float) -> dict[str, float]:
    return {"budget": budget, "reward": curve.reward_at(budget), "shadow_price": curve.shadow_price(budget)}

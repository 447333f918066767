"""The frontier along each of several budgets: what more or less of it buys, as the check users say."""

from __future__ import annotations

import numpy as np
import polars as pl

from redenvelope.dual.paths import Paths
from redenvelope.evaluation.skewness import Spread
from redenvelope.fitting.check import Check
from redenvelope.plan.consistent import FRONTIER_COLUMNS
from redenvelope.plan.record import PricedPlan

__all__ = ["first_frontier", "frontiers_table", "priced_plans"]


def frontiers_table(check: Check, paths: Paths, names: tuple[str, ...], confidence: float) -> pl.DataFrame:
    """For every budget by its name, the others held: its limit, the shadow price, off-policy cost of this budget and
    reward with two-sided bounds, and what was believed of both; by falling price, from the least limit on.

    Which plans are mixed at a limit, users of other folds have fixed; the check users only say what they cost and earn.
    """
    places = check.places("plan")
    added = check.influence[:, :, places.start : places.stop]
    level, tables = (1 + confidence) / 2, []
    for own, (name, path) in enumerate(zip(names, paths.frontiers, strict=True)):
        if not len(path):
            continue
        # Reward and this budget's cost of every mixture, users by users.
        mixed = added[[0, 1 + own]] @ path.shares.T
        spread = Spread.of(mixed, axis=1)
        lower, upper = spread.lower(level), spread.upper(level)
        believed = paths.plans.outcomes[[0, 1 + own]] @ path.shares.T
        figures = {
            "limit": path.limits[:, own],
            "dual": path.duals[:, own],
            "cost": spread.mean[1],
            "reward": spread.mean[0],
            "cost_lower": lower[1],
            "cost_upper": upper[1],
            "reward_lower": lower[0],
            "reward_upper": upper[0],
            "model_cost": believed[1],
            "model_reward": believed[0],
        }
        tables.append(pl.DataFrame(figures).select(pl.lit(name).alias("budget"), pl.all()))
    return pl.concat(tables) if tables else _empty()


def priced_plans(check: Check, paths: Paths) -> tuple[PricedPlan, ...]:
    """The plans that are mixed, each with what the check users say of it."""
    places = check.places("plan")
    means = check.influence[:, :, places.start : places.stop].mean(axis=1)
    rows = zip(paths.plans.prices.tolist(), means.T.tolist(), strict=True)
    return tuple(PricedPlan(tuple(prices), tuple(mean)) for prices, mean in rows)


def first_frontier(frontiers: pl.DataFrame, name: str) -> pl.DataFrame:
    """The first budget's, with the columns and in the order that a plan's frontier has: by rising price."""
    own = frontiers.filter(pl.col("budget") == name).select(FRONTIER_COLUMNS)
    return own.reverse()


def _empty() -> pl.DataFrame:
    numbers = {name: np.empty(0) for name in ("limit", *FRONTIER_COLUMNS)}
    return pl.DataFrame({"budget": pl.Series([], dtype=pl.String), **numbers})

"""A look ahead before the search: how deep to plan, how warm, and at which prices, from a few users' first steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.dual.frontier import Frontier, refined_frontier
from redenvelope.dual.paths import Paths, gather_plans, paths_through
from redenvelope.dual.price import PriceFunction
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.settings import SearchSettings
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.planning.temperature import suggest_temperature

__all__ = ["believed_paths", "grid_of_prices", "horizon_for", "model_frontier", "temperature_for"]

FloatArray = NDArray[np.float64]


def horizon_for(actions: int, steps: int, largest_tree: int) -> int:
    """As many steps ahead as a tree of moderate size allows."""
    horizon = 1
    while horizon < steps and actions**horizon <= largest_tree:
        horizon += 1
    return horizon


def temperature_for(
    policy: DeployedPolicy, scouts: EncodedLog, settings: SearchSettings, budgets: FloatArray | None = None
) -> float:
    """Entropy that costs little reward at the price where half of the most is spent; with several budgets [budgets], at
    the prices where they are believed to be."""
    if budgets is not None:
        paths = believed_paths(policy, scouts, settings, budgets, 2, settings.scout_passes // 2)
        place = int(np.abs(paths.ladder.limits - budgets).sum(axis=1).argmin())
        known = np.where(np.isfinite(paths.ladder.duals), paths.ladder.duals, 0.0)
        # Where budgets cannot be kept, the dearest prices that are known.
        prices = np.where(np.isfinite(paths.ladder.duals[place]), paths.ladder.duals[place], known.max(axis=0))
        states, left = scouts.first_states()
        return suggest_temperature(policy.valuer.values(states, left, prices[None], scouts.first_standing()).q[:, 0])
    curve = refined_frontier(_tree_price(policy, scouts), settings.scout_prices)
    middle = curve.duals[int(np.argmin(np.abs(curve.costs - (curve.costs.min() + curve.costs.max()) / 2)))]
    dual = middle if np.isfinite(middle) else float(curve.duals[np.isfinite(curve.duals)].max())
    states, left = scouts.first_states()
    return suggest_temperature(policy.valuer.values(states, left, [dual], scouts.first_standing()).q[:, 0])


def _tree_price(policy: DeployedPolicy, scouts: EncodedLog) -> PriceFunction:
    """Outcomes to the end of the trees at first states: where the prices of interest lie, cheaply."""
    states, left = scouts.first_states()
    standing = scouts.first_standing()

    def price(prices: FloatArray) -> FloatArray:
        return np.asarray(policy.valuer.values(states, left, prices, standing).expected().mean(axis=1))

    return price


def grid_of_prices(policy: DeployedPolicy, scouts: EncodedLog, settings: SearchSettings, count: int) -> FloatArray:
    """About `count` prices: where the frontier bends, and evenly between; rising from 0 to infinity."""
    bends = refined_frontier(_tree_price(policy, scouts), settings.scout_prices).duals
    finite = np.unique(bends[np.isfinite(bends)])
    if len(finite) < 2:
        return np.unique(bends)
    # Even steps within each gap: the planner's time grows with blocks of prices, not with prices.
    each = max(1, (count - 2) // (len(finite) - 1))
    gaps = [np.linspace(low, high, each, endpoint=False) for low, high in pairwise(finite)]
    return np.concatenate([*gaps, finite[-1:], [np.inf]])


def believed_paths(
    policy: DeployedPolicy,
    scouts: EncodedLog,
    settings: SearchSettings,
    budgets: FloatArray,
    rungs: int,
    passes: int | None = None,
) -> Paths:
    """The ladder and the frontiers of several budgets [budgets], by what the policy's own values promise of the whole
    campaign."""
    believed = policy.believed(*scouts.first_states(), scouts.first_standing())
    plans = gather_plans(believed, budgets, settings.scout_passes if passes is None else passes)
    return paths_through(plans, budgets, rungs, settings.frontier_points)


def model_frontier(policy: DeployedPolicy, scouts: EncodedLog, duals: FloatArray, settings: SearchSettings) -> Frontier:
    """What the policy's own values promise of the whole campaign: at a few of the duals [duals], straight between."""
    places = np.unique(np.linspace(0, len(duals) - 1, settings.scout_prices).round().astype(int))
    believed = policy.believed(*scouts.first_states(), scouts.first_standing())
    rewards, costs = believed(duals[places, None])
    everywhere = np.arange(len(duals))
    return Frontier(duals, np.interp(everywhere, places, costs), np.interp(everywhere, places, rewards))

"""A look ahead before the search: how deep to plan, how warm, and at which prices, from a few users' first steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.frontier import Frontier, refined_frontier
from redenvelope.dual.oracle import PriceFunction
from redenvelope.dual.paths import Paths, gather_plans, paths_through
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.holdout import DecidedRows
from redenvelope.fitting.settings import SearchSettings
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import ExplorationRecord
from redenvelope.planning.temperature import entropy_cost, suggest_temperature


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


# What exploration costs, and what the next log will be worth because of it.


def exploration_record(
    policy: DeployedPolicy, lost: float, decided: DecidedRows, eligible: NDArray[np.bool_]
) -> ExplorationRecord:
    """Of a policy that loses so much reward a user by it; `decided` are rows that it would decide, and `eligible`
    [rows, actions] what they may get."""
    return ExplorationRecord(policy.specification.explore, lost, _effective(decided, eligible))


def lost_along(
    policy: DeployedPolicy, scouts: EncodedLog, believed: Frontier, cost: float, settings: SearchSettings
) -> float:
    """Reward a user that exploration costs a policy whose own frontier is `believed`, at a mean cost a user."""
    if not policy.specification.explore:
        return 0.0
    best = model_frontier(_without(policy), scouts, believed.duals, settings)
    lost = entropy_cost(best.costs, best.rewards, believed.costs, believed.rewards)
    order = np.argsort(believed.costs)
    return max(float(np.interp(cost, believed.costs[order], lost[order])), 0.0)


def lost_at_prices(policy: DeployedPolicy, scouts: EncodedLog, duals: tuple[float, ...]) -> float:
    """The same with several budgets: what the plan's own prices would earn without it, what they would then spend less
    or more counted at the shadow prices [budgets]."""
    if not policy.specification.explore:
        return 0.0
    states, left = scouts.first_states()
    rows = policy.pricing.table
    with_it, without = (
        policy.pricing.mix(each.believed(states, left, scouts.first_standing())(rows))
        for each in (policy, _without(policy))
    )
    prices = np.where(np.isfinite(duals), duals, 0.0)
    gained = without - with_it
    return max(float(gained[0] - prices @ gained[1:]), 0.0)


def _without(policy: DeployedPolicy) -> DeployedPolicy:
    return replace(policy, specification=replace(policy.specification, explore=0.0))


def _effective(decided: DecidedRows, eligible: NDArray[np.bool_]) -> float:
    """Share of the next log's users that is left, at the least of its steps, to weigh a policy that gives everything
    that is eligible evenly: Kish's effective size of 1 / (actions · propensity), in expectation."""
    count = eligible.sum(axis=1)
    with np.errstate(divide="ignore"):
        squares = np.where(eligible, 1.0 / decided.probabilities, 0.0).sum(axis=1) / count**2
    steps = np.unique(decided.log.step)
    return float(min(1.0 / squares[decided.log.step == step].mean() for step in steps))

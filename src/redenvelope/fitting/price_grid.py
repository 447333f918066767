"""Which prices to check: temperature and price grid, chosen on the first states of the pilot users.

Everything here is the policy's own prediction. What the prices really cost and earn, the check users say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.frontier import Frontier, refined_frontier
from redenvelope.dual.oracle import PriceFunction
from redenvelope.dual.paths import Paths, gather_plans, paths_through
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.holdout import CandidatePolicy, DecidedRows, Shown
from redenvelope.fitting.settings import SearchSettings
from redenvelope.fitting.stage_cache import Codec, StageCache
from redenvelope.plan.ladder import Mixtures, Place
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.planning.temperature import entropy_cost, suggest_temperature

_HARDLY = 1e-9
"""A share of exploration that explores nothing."""


def temperature_for(
    policy: DeployedPolicy, pilot_users: EncodedLog, settings: SearchSettings, budgets: FloatArray | None = None
) -> float:
    """A temperature that costs little reward, at the price where half of the largest cost is spent.

    With several budgets [budgets], at the prices that the policy's own values predict for them.
    """
    if budgets is not None:
        paths = predicted_paths(policy, pilot_users, settings, budgets, 2, settings.pilot_passes // 2)
        place = int(np.abs(paths.ladder.limits - budgets).sum(axis=1).argmin())
        known = np.where(np.isfinite(paths.ladder.duals), paths.ladder.duals, 0.0)
        # Where budgets cannot be met, the highest known prices.
        prices = np.where(np.isfinite(paths.ladder.duals[place]), paths.ladder.duals[place], known.max(axis=0))[None]
    else:
        curve = refined_frontier(_tree_price(policy, pilot_users), settings.pilot_prices)
        middle = curve.duals[int(np.argmin(np.abs(curve.costs - (curve.costs.min() + curve.costs.max()) / 2)))]
        prices = np.array([middle if np.isfinite(middle) else curve.duals[np.isfinite(curve.duals)].max()])
    states, left = pilot_users.first_states()
    return suggest_temperature(policy.valuer.values(states, left, prices, pilot_users.first_eligibility()).q[:, 0])


def candidates(
    policies: Mapping[str, DeployedPolicy],
    pilot_users: EncodedLog,
    settings: SearchSettings,
    budgets: FloatArray | None,
    cache: StageCache,
) -> tuple[dict[str, CandidatePolicy], Paths | None]:
    """Every policy with the prices at which to check it; with several budgets [budgets], the plan's paths as well.

    The uniform policy is the same at any price.
    """
    rungs = {name: settings.compared_rungs for name in policies if name != "uniform"} | {"plan": settings.rungs}
    uniform = {"uniform": CandidatePolicy(policies["uniform"], policies["uniform"].pricing.table)}
    if budgets is None:
        prices = cache.stage(
            "prices",
            (),
            lambda: {
                name: grid_of_prices(policies[name], pilot_users, settings, count)[::-1, None]
                for name, count in rungs.items()
            },
            Codec(lambda found: ({}, found), lambda _, arrays: arrays),
        )
        return {name: CandidatePolicy(policies[name], prices[name]) for name in rungs} | uniform, None
    paths = {
        name: predicted_paths(policies[name], pilot_users, settings, budgets, count) for name, count in rungs.items()
    }
    mixing = {
        name: _mixing(policies[name], own if name == "plan" else own.ladder_alone()) for name, own in paths.items()
    }
    return mixing | uniform, paths["plan"]


def _mixing(policy: DeployedPolicy, paths: Paths) -> CandidatePolicy:
    ladder, prices = paths.ladder, paths.plans.prices
    return CandidatePolicy(policy, prices, Mixtures(prices, ladder.shares, ladder.duals))


def grid_of_prices(policy: DeployedPolicy, pilot_users: EncodedLog, settings: SearchSettings, count: int) -> FloatArray:
    """About `count` prices, rising from 0 to infinity: where the frontier bends, and evenly in between."""
    bends = refined_frontier(_tree_price(policy, pilot_users), settings.pilot_prices).duals
    finite = np.unique(bends[np.isfinite(bends)])
    if len(finite) < 2:
        return np.unique(bends)
    # Even steps within each gap: the planner's time grows with blocks of prices, not with prices.
    each = max(1, (count - 2) // (len(finite) - 1))
    gaps = [np.linspace(low, high, each, endpoint=False) for low, high in pairwise(finite)]
    return np.concatenate([*gaps, finite[-1:], [np.inf]])


def _tree_price(policy: DeployedPolicy, pilot_users: EncodedLog) -> PriceFunction:
    """Predicted outcomes of the pilot users as far as values look: a cheap way to locate the prices of interest."""
    states, left = pilot_users.first_states()
    eligibility = pilot_users.first_eligibility()

    def price(prices: FloatArray) -> FloatArray:
        return np.asarray(policy.valuer.values(states, left, prices, eligibility).expected().mean(axis=1))

    return price


def predicted_paths(
    policy: DeployedPolicy,
    pilot_users: EncodedLog,
    settings: SearchSettings,
    budgets: FloatArray,
    rungs: int,
    passes: int | None = None,
) -> Paths:
    """The ladder and the frontiers of several budgets [budgets], as the policy's own values predict the campaign."""
    predicted = policy.believed(*pilot_users.first_states(), pilot_users.first_eligibility())
    plans = gather_plans(predicted, budgets, settings.pilot_passes if passes is None else passes)
    return paths_through(plans, budgets, rungs, settings.frontier_points)


def model_frontier(
    policy: DeployedPolicy, pilot_users: EncodedLog, duals: FloatArray, settings: SearchSettings
) -> Frontier:
    """The frontier that the policy's own values predict: at some of the duals [duals], linear in between."""
    places = np.unique(np.linspace(0, len(duals) - 1, settings.pilot_prices).round().astype(int))
    predicted = policy.believed(*pilot_users.first_states(), pilot_users.first_eligibility())
    rewards, costs = predicted(duals[places, None])
    everywhere = np.arange(len(duals))
    return Frontier(duals, np.interp(everywhere, places, costs), np.interp(everywhere, places, rewards))


def exploration_loss(
    policy: DeployedPolicy, pilot_users: EncodedLog, predicted: Frontier, cost: float, settings: SearchSettings
) -> float:
    """Reward per user that exploration costs at a mean cost per user; `predicted` is the policy's own frontier."""
    if not policy.specification.explore:
        return 0.0
    best = model_frontier(_without_exploration(policy), pilot_users, predicted.duals, settings)
    lost = entropy_cost(best.costs, best.rewards, predicted.costs, predicted.rewards)
    order = np.argsort(predicted.costs)
    return max(float(np.interp(cost, predicted.costs[order], lost[order])), 0.0)


def exploration_loss_at(policy: DeployedPolicy, pilot_users: EncodedLog, duals: tuple[float, ...]) -> float:
    """The same with several budgets: what the plan's prices would earn without exploration.

    A change in what is spent counts at the shadow prices [budgets].
    """
    if not policy.specification.explore:
        return 0.0
    states, left = pilot_users.first_states()
    with_it, without = (
        policy.pricing.mix(each.believed(states, left, pilot_users.first_eligibility())(policy.pricing.table))
        for each in (policy, _without_exploration(policy))
    )
    prices = np.where(np.isfinite(duals), duals, 0.0)
    gained = without - with_it
    return max(float(gained[0] - prices @ gained[1:]), 0.0)


def _without_exploration(policy: DeployedPolicy) -> DeployedPolicy:
    # As good as none, by the programs that explore.
    return replace(policy, specification=replace(policy.specification, explore=_HARDLY))


def next_effective_share(shown: Shown, policy: DeployedPolicy, place: Place) -> float:
    """The effective sample size of the log that this policy would produce, as a share of its users."""
    decided, eligible = shown.decided(policy, place), shown.encoded.eligible(policy.constraint)
    return effective_share(decided, np.ones(decided.probabilities.shape, bool) if eligible is None else eligible)


def effective_share(decided: DecidedRows, eligible: NDArray[np.bool_]) -> float:
    """Kish's effective sample size, as a share, of weights towards a uniform choice of the eligible actions.

    The expectation over decisions, of 1 / (eligible actions · propensity), at the step where it is smallest.
    """
    count = eligible.sum(axis=1)
    with np.errstate(divide="ignore"):
        squares = np.where(eligible, 1.0 / decided.probabilities, 0.0).sum(axis=1) / count**2
    steps = np.unique(decided.log.step)
    return float(min(1.0 / squares[decided.log.step == step].mean() for step in steps))

"""A look ahead before the search: how deep to plan, how warm, and at which duals, from a few users' first steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import user_fraction
from redenvelope.dual.frontier import Frontier, refined_frontier
from redenvelope.dual.price import PriceFunction
from redenvelope.log.log import Log
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.planning.temperature import suggest_temperature

__all__ = ["first_states", "grid_of_duals", "horizon_for", "model_frontier", "some_users", "temperature_for"]

FloatArray = NDArray[np.float64]

# The planner compiles a program for each depth of a tree and block of duals, which takes longer than running it on a
# few thousand users: all passes keep to these two blocks.
_DUALS, _FEW_DUALS = 64, 8
_SCOUTS = 500
_DEEPEST_NODES = 128  # of a user's tree: a horizon with more is worth little and slows every decision down


def horizon_for(actions: int, steps: int) -> int:
    """As many steps ahead as a tree of moderate size allows."""
    horizon = 1
    while horizon < steps and actions**horizon <= _DEEPEST_NODES:
        horizon += 1
    return horizon


def temperature_for(policy: DeployedPolicy, search: Log) -> float:
    """Entropy that costs little reward at the price where half of the most is spent."""
    states, left = first_states(policy, some_users(search, _SCOUTS))
    curve = refined_frontier(_tree_price(policy, states, left), _FEW_DUALS)
    middle = curve.duals[int(np.argmin(np.abs(curve.costs - (curve.costs.min() + curve.costs.max()) / 2)))]
    dual = middle if np.isfinite(middle) else float(curve.duals[np.isfinite(curve.duals)].max())
    return suggest_temperature(policy.valuer.values(states, left, np.full(_FEW_DUALS, dual)).q[:, 0])


def _tree_price(policy: DeployedPolicy, states: NDArray[np.float32], left: NDArray[np.int64]) -> PriceFunction:
    """Costs and rewards to the end of the trees at some states: where the duals of interest lie, cheaply."""
    valuer = policy.valuer

    def price(duals: FloatArray) -> tuple[FloatArray, FloatArray]:
        rewards, costs = valuer.values(states, left, duals).expected().mean(axis=1)
        return costs, rewards

    return price


def grid_of_duals(policy: DeployedPolicy, search: Log) -> FloatArray:
    """Duals where the frontier bends, and as many between each two as fill a block: rising from 0 to infinity."""
    bends = refined_frontier(_tree_price(policy, *first_states(policy, some_users(search, _SCOUTS))), _FEW_DUALS).duals
    finite = np.unique(bends[np.isfinite(bends)])
    if len(finite) < 2:
        return np.unique(bends)
    # Even steps within each gap: the planner's time grows with blocks of duals, not with duals.
    each = (_DUALS - 1) // (len(finite) - 1)
    gaps = [np.linspace(low, high, each, endpoint=False) for low, high in pairwise(finite)]
    return np.concatenate([*gaps, finite[-1:], [np.inf]])


def model_frontier(policy: DeployedPolicy, search: Log, duals: FloatArray) -> Frontier:
    """What the policy's own values promise of the whole campaign: at a few of the duals [duals], straight between."""
    places = np.unique(np.linspace(0, len(duals) - 1, _FEW_DUALS).round().astype(int))
    costs, rewards = policy.valuer.believed(*first_states(policy, some_users(search, _SCOUTS)), duals[places])
    everywhere = np.arange(len(duals))
    return Frontier(duals, np.interp(everywhere, places, costs), np.interp(everywhere, places, rewards))


def first_states(policy: DeployedPolicy, log: Log) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """States of every user's first row [users, width], and the steps left there [users]."""
    first = log.starts[:-1]
    states = policy.encoder.encode_table(log.features.rows(first), log.step[first])
    return states, policy.steps_left(log.step[first])


def some_users(log: Log, users: int) -> Log:
    """At most so many users of a log, always the same ones."""
    if len(log.users) <= users:
        return log
    order = np.argsort(user_fraction(log.users, "scouts", 0))
    chosen = np.zeros(len(log.users), dtype=bool)
    chosen[order[:users]] = True
    return log.select(chosen)

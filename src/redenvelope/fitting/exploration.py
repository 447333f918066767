"""What exploration costs, and what the next log will be worth because of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.dual.frontier import Frontier
from redenvelope.fitting.check import DecidedRows
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.scouting import model_frontier
from redenvelope.fitting.settings import SearchSettings
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import ExplorationRecord
from redenvelope.planning.temperature import entropy_cost

__all__ = ["exploration_record"]

FloatArray = NDArray[np.float64]


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

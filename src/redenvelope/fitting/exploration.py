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
    policy: DeployedPolicy,
    scouts: EncodedLog,
    believed: Frontier,
    cost: float,
    decided: DecidedRows,
    eligible: NDArray[np.bool_],
    settings: SearchSettings,
) -> ExplorationRecord:
    """Of a policy whose own frontier is `believed`, at a mean cost a user; `decided` are rows that it would decide, and
    `eligible` [rows, actions] what they may get."""
    share = policy.specification.explore
    lost = 0.0
    if share:
        without = replace(policy, specification=replace(policy.specification, explore=0.0))
        best = model_frontier(without, scouts, believed.duals, settings)
        lost_along = entropy_cost(best.costs, best.rewards, believed.costs, believed.rewards)
        order = np.argsort(believed.costs)
        lost = max(float(np.interp(cost, believed.costs[order], lost_along[order])), 0.0)
    return ExplorationRecord(share, lost, _effective(decided, eligible))


def _effective(decided: DecidedRows, eligible: NDArray[np.bool_]) -> float:
    """Share of the next log's users that is left, at the least of its steps, to weigh a policy that gives everything
    that is eligible evenly: Kish's effective size of 1 / (actions · propensity), in expectation."""
    count = eligible.sum(axis=1)
    with np.errstate(divide="ignore"):
        squares = np.where(eligible, 1.0 / decided.probabilities, 0.0).sum(axis=1) / count**2
    steps = np.unique(decided.log.step)
    return float(min(1.0 / squares[decided.log.step == step].mean() for step in steps))

"""Policies side by side: each with its prices, and with values to go until the campaign's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.gather import gather
from redenvelope.evaluation.logs import Extent
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.planning.continuation import Continuation
from redenvelope.policies.values import ActionValues, Valuer
from redenvelope.prices import checked_prices

__all__ = ["Contender", "contender", "evidence_of"]


@dataclass(frozen=True, eq=False)
class Contender:
    """A policy at some prices, as estimators see it."""

    valuer: Valuer
    prices: NDArray[np.float64]
    """[prices, budgets]"""
    continuation: Continuation | None
    """What comes after the trees; None where values reach the end."""

    def values(self, encoded: EncodedLog) -> ActionValues:
        """Values of every row, to go until the campaign's last step."""
        values = self.valuer.values(encoded.states, encoded.steps_left, self.prices, encoded.standing)
        if self.continuation is None:
            return values
        return self.continuation.extend(values, encoded.states, encoded.steps_left)


def contender(policy: DeployedPolicy, prices: ArrayLike, walkers: EncodedLog) -> Contender:
    """A policy at prices [prices, budgets]; what its trees leave out is learned from some users' first states."""
    table = checked_prices(prices, policy.valuer.budgets)
    planner = policy.planner
    continuation = None
    if planner is not None and planner.depth < policy.specification.steps:
        states, left = walkers.first_states()
        features, standing = partial(_numbers, walkers.codes), walkers.first_standing()
        continuation = Continuation.fit(planner, states, left, table, features, eligible=standing)
    return Contender(policy.valuer, table, continuation)


def _numbers(codes: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
    return states[:, codes:]


def evidence_of(encoded: EncodedLog, values: Sequence[ActionValues], extent: Extent) -> Evidence:
    """The evidence of some users of a fold with that extent: the prices of several values beside each other, in their
    order."""
    log = encoded.log
    return gather(
        starts=log.starts,
        action=log.action,
        propensity=log.propensity,
        outcomes=log.outcomes,
        outcome_names=log.outcome_names,
        probabilities=np.concatenate([part.probabilities for part in values], axis=1),
        to_go=np.concatenate([part.to_go for part in values], axis=2),
        keys=log.keys,
        features=encoded.features,
        feature_blocks=encoded.feature_blocks,
        past=encoded.past,
        logged_actions=extent.logged,
        steps=extent.steps,
        estimated=log.propensity_source == "estimated",
    )

"""How a policy decides on logged rows, with values to go until the campaign's last step: what estimators need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.passes import Decide
from redenvelope.fitting.scouting import first_states, some_users
from redenvelope.log.log import Log
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.valuers import PlannedValuer
from redenvelope.planning.continuation import Continuation

__all__ = ["decider"]

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]

_LEARNED_FROM = 1_000  # users whose walk through the model tells what comes after the trees


def decider(policy: DeployedPolicy, log: Log, duals: FloatArray | tuple[float, ...] | None = None) -> Decide:
    """How a policy decides on batches of a log, at its own duals or at others [duals]."""
    prices = np.asarray(policy.specification.duals if duals is None else duals, dtype=np.float64)
    continuation = _continuation(policy, log, prices)

    def decide(batch: Log) -> tuple[SingleArray, dict[str, SingleArray]]:
        states, left = policy.encoder.encode(batch), policy.steps_left(batch.step)
        values = policy.valuer.values(states, left, prices)
        if continuation is not None:
            values = continuation.extend(values, states, left)
        return values.probabilities, dict(zip(("reward", "cost"), values.to_go, strict=True))

    return decide


def _continuation(policy: DeployedPolicy, log: Log, duals: FloatArray) -> Continuation | None:
    """What comes after the trees; None where they reach the end, or where nothing is planned."""
    valuer = policy.valuer
    if not isinstance(valuer, PlannedValuer) or valuer.depth >= policy.specification.steps:
        return None
    codes = len(policy.encoder.layout.static_categories)  # these are no numbers to regress on
    states, left = first_states(policy, some_users(log, _LEARNED_FROM))
    return Continuation.fit(valuer.planner, states, left, duals, lambda rows: rows[:, codes:])

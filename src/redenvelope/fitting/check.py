"""One evaluation of a fold: encoded once, planned once; certificate, comparison and report all read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fraction
from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.estimator import Estimator
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.fitting.contenders import contender, evidence_of
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.log.log import Log
from redenvelope.plan.policy import DeployedPolicy

__all__ = ["Check", "DecidedRows", "check_policies"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DecidedRows:
    """What a policy would do at the rows of some users."""

    log: Log
    probabilities: FloatArray
    """Its prices mixed by their shares, [rows, actions]."""
    costs: FloatArray
    """Expected cost of the row's decision, [rows]."""


@dataclass(frozen=True, eq=False)
class Check:
    """What policies are estimated to earn and cost on the users of one fold."""

    log: Log
    policies: Mapping[str, DeployedPolicy]
    evaluation: Evaluation
    """The prices of all policies beside each other, in their order."""
    influence: FloatArray
    """What each user adds to the estimates, [outcomes, users, prices of all policies]."""
    decided: DecidedRows
    """Of the first policy, at the rows of some users."""

    def prices_of(self, name: str) -> range:
        """Where a policy's prices stand in the evaluation."""
        first = 0
        for other, policy in self.policies.items():
            last = first + len(policy.pricing.shares)
            if other == name:
                return range(first, last)
            first = last
        raise KeyError(name)

    def added(self, name: str) -> FloatArray:
        """What each user adds to the estimates of a policy, [outcomes, users].

        A mixture is drawn once per user, so each user adds the mixture of what its prices add.
        """
        return self.policies[name].pricing.mix(self.influence[:, :, list(self.prices_of(name))])


def check_policies(
    policies: Mapping[str, DeployedPolicy],
    encoded: EncodedLog,
    walkers: EncodedLog,
    estimator: Estimator,
    shown_users: int,
    seed: int,
) -> Check:
    """Evaluate policies at their own prices; of the first it is kept what it does at the rows of `shown_users` users.

    `walkers` are users whose first states tell what comes after trees that end early.
    """
    contenders = [contender(policy, policy.pricing.table, walkers) for policy in policies.values()]
    shown = fraction(encoded.log.keys, "shown", seed) < shown_users / len(encoded.log.users)
    evidence, probabilities, first_user = [], [], 0
    for batch in encoded.batches():
        values = [each.values(batch) for each in contenders]
        evidence.append(evidence_of(batch, values, encoded.log))
        own = shown[first_user : first_user + len(batch.log.users)]
        rows = np.repeat(own, batch.log.lengths)
        probabilities.append(_first(policies).pricing.mix(values[0].probabilities[rows].astype(np.float64), axis=1))
        first_user += len(own)
    evaluation = evaluate_partitions(evidence, [estimator])[estimator.name]
    decided = _decided(_first(policies), encoded, shown, np.concatenate(probabilities))
    return Check(encoded.log, dict(policies), evaluation, evaluation.influence(), decided)


def _first(policies: Mapping[str, DeployedPolicy]) -> DeployedPolicy:
    return next(iter(policies.values()))


def _decided(
    policy: DeployedPolicy, encoded: EncodedLog, shown: NDArray[np.bool_], probabilities: FloatArray
) -> DecidedRows:
    states = encoded.states[np.repeat(shown, encoded.log.lengths)]
    costs = policy.valuer.outcomes(states)[1]
    return DecidedRows(encoded.log.select(shown), probabilities, (probabilities * costs).sum(axis=1))

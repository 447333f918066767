"""What an estimator is: weights, and what each user adds with them, after as many passes over users as it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.diagnostics import Diagnostics, Reason, Weight
from redenvelope.evaluation.influence import Moments, Terms
from redenvelope.evaluation.partitions import Partitions


def products_of_ratios(evidence: OffPolicyData) -> OffPolicyData:
    """The evidence as it is, with weights that are products of ratios."""
    return evidence


@dataclass(frozen=True)
class Prepared:
    """An estimator that knows of all users what it needs: one more pass gives value and error.

    Estimators that are prepared to the same functions share their work.
    """

    terms: Callable[[OffPolicyData, float], Terms]
    """Evidence of some users, weighed, and the discount -> what each of them adds."""
    weigh: Callable[[OffPolicyData], OffPolicyData] = products_of_ratios
    """Evidence of some users -> the same with the weights of the estimator."""


class Estimator(Protocol):
    """A way to estimate what policies earn and cost.

    A class of one's own needs a name and `prepare`; inherited from here, the rest is as for most. For example,
    outcomes weighed by the ratio of their own step alone:

        class OwnStep(Estimator):
            name = "own_step"

            def prepare(self, users: Partitions, discount: float) -> Prepared:
                return Prepared(own_step)

        def own_step(evidence: Evidence, discount: float) -> Terms:
            plain = np.zeros((len(evidence.outcomes), evidence.users, evidence.prices))
            for position, (users, rows) in enumerate(evidence.positions):
                plain[:, users] += discount**position * evidence.ratio[rows] * evidence.outcomes[:, rows, None]
            return Terms.mean(plain)

    It is used as `evaluate(evidence, OwnStep())`, and by name once it has its line in `ESTIMATORS`.
    """

    name: str
    """How it is called in results."""
    caution: float = 1.0
    """What its standard errors are multiplied by, where they are known to be too small by so much."""

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """Learn what is needed of all users, by sums over partitions that merge: as many passes as it takes."""
        ...

    def shares(self, moments: Moments) -> FloatArray:
        """How much each part of the estimate counts when the moments of all users are known, [outcomes, parts,
        prices]."""
        return moments.shares

    def reasons(self, diagnostics: Diagnostics, price: int) -> tuple[Reason, ...]:
        """What speaks against its estimates at one of the prices."""
        return diagnostics.reasons(price)


@dataclass(frozen=True)
class OnePass(Estimator):
    """An estimator that is a formula for what each user adds, and needs to know nothing of the others."""

    name: str
    terms: Callable[[OffPolicyData, float], Terms]
    """Evidence and discount -> what each user adds."""

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(self.terms)


# Importance sampling: logged outcomes, weighted by how much likelier the policy makes what led to them.


def trajectory(evidence: OffPolicyData, discount: float = 1.0) -> Terms:
    """Each user's total, weighted by the ratio of the user's whole trajectory."""
    totals, weight = _totals(evidence, discount)
    return Terms.mean(totals * weight)


def self_normalised_trajectory(evidence: OffPolicyData, discount: float = 1.0) -> Terms:
    """As `trajectory`, divided by the mean weight."""
    totals, weight = _totals(evidence, discount)
    outcomes, prices = len(totals), evidence.prices
    return Terms(
        plain=np.broadcast_to(0.0, (outcomes, *weight.shape)),
        numerators=(totals * weight)[:, None],
        weights=weight[None],
        shares=np.ones((outcomes, 1, prices)),
    )


def per_decision(evidence: OffPolicyData, discount: float = 1.0) -> Terms:
    """Each outcome, weighted by the ratio of the trajectory up to it: later choices do not matter to it."""
    weights = evidence.weights
    plain = weights[0] * evidence.outcomes[:, evidence.positions[0][1], None]
    for position, (users, rows) in enumerate(evidence.positions[1:], start=1):
        weight = weights[position, users]
        here = weight if discount == 1 else weight * discount**position
        for place, outcome in enumerate(evidence.outcomes):
            plain[place, users] += here * outcome[rows, None]
    return Terms.mean(plain)


def self_normalised_per_decision(evidence: OffPolicyData, discount: float = 1.0) -> Terms:
    """As `per_decision`, divided step by step by the mean weight.

    A user who has left keeps the last weight: leaving is something that happens under the policy too, and the weights
    of all users, not of those still there, have mean 1.
    """
    outcomes, prices = len(evidence.outcomes), evidence.prices
    numerators = empty_parts(evidence)
    weights = evidence.weights
    for position, (users, rows) in enumerate(evidence.positions):
        for place, outcome in enumerate(evidence.outcomes):
            later = outcome[rows, None] if discount == 1 else outcome[rows, None] * discount**position
            if isinstance(users, slice):
                np.multiply(weights[position], later, out=numerators[place, position])
            else:
                numerators[place, position, users] = weights[position, users] * later
    plain = np.broadcast_to(0.0, (outcomes, evidence.users, prices))
    return Terms(plain, numerators, weights, np.ones((outcomes, evidence.steps, prices)))


def empty_parts(evidence: OffPolicyData) -> FloatArray:
    """Numerators to be filled step by step, [outcomes, steps, users, prices]; zero for users who have left."""
    shape = (len(evidence.outcomes), evidence.steps, evidence.users, evidence.prices)
    is_filled = int(evidence.lengths.min()) == evidence.steps
    return np.empty(shape) if is_filled else np.zeros(shape)


def _totals(evidence: OffPolicyData, discount: float) -> tuple[FloatArray, FloatArray]:
    """Discounted totals [outcomes, users, 1] and the weights of whole trajectories [users, prices]."""
    totals = np.array(evidence.outcomes[:, evidence.positions[0][1]])
    for position, (users, rows) in enumerate(evidence.positions[1:], start=1):
        later = evidence.outcomes[:, rows]
        totals[:, users] += later if discount == 1 else later * discount**position
    return totals[:, :, None], evidence.weights[-1]


# The direct method: the baseline, believed as it is.


_BELIEVED = Reason(
    "baseline_believed",
    Weight.WARNING,
    "the direct method believes its baseline: its interval knows the spread of users, not the baseline's error",
)


class Direct(Estimator):
    """The direct method: it weighs nothing, so no weight speaks against it."""

    name = "direct"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(direct)

    def reasons(self, diagnostics: Diagnostics, price: int) -> tuple[Reason, ...]:
        """See Estimator."""
        return (_BELIEVED,)


def direct(evidence: OffPolicyData, discount: float = 1.0) -> Terms:
    """The baseline of the first state, believed as it is.

    Its error is that of the baseline, and no interval knows it. The discount is in the baseline already.
    """
    values, _ = evidence.baseline()
    return Terms.mean(values[:, evidence.positions[0][1]].astype(np.float64, copy=False))

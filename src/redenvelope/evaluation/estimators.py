"""The estimator protocol: how an off-policy estimator is written, and where a new one goes.

An off-policy estimator gives each logged user's contribution to the estimate of a policy's reward and costs (`Terms`).
Value, standard error, bounds, merging over partitions and diagnostics follow from that. The built-in ones:

    importance_sampling.py   trajectory and per-decision importance sampling, plain and self-normalised; direct method
    doubly_robust.py         sequential doubly robust, weighted, MAGIC, more robust
    marginalised.py          doubly robust with marginalised ratios

To add one:

1. Write it in the module of its family, or in a module of its own beside them. A formula that needs nothing of other
   users is a function from `OffPolicyData` and a discount to `Terms`, wrapped in `OnePass`. One that first learns from
   all users is a class with `name` and `prepare`, which makes passes over `Partitions` with sums that merge.
2. To select it by name, add it to `_KNOWN` in `evaluate.py`, from which `ESTIMATORS` is made.
3. Test it against an exact value: `tests/evaluation/conftest.py` has finite campaigns whose truth is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.diagnostics import Diagnostics, Reason
from redenvelope.evaluation.influence import Moments, Terms
from redenvelope.evaluation.jackknife import SparsePrices
from redenvelope.evaluation.partitions import Partitions


class Estimator(Protocol):
    """An off-policy estimator of the reward and costs of policies.

    Your own estimator needs a name and `prepare`; inheriting from this class provides the rest. For example, outcomes
    weighted by the ratio of their own step alone:

        class OwnStep(Estimator):
            name = "own_step"

            def prepare(self, users: Partitions, discount: float) -> Prepared:
                return Prepared(own_step)

        def own_step(data: OffPolicyData, discount: float) -> Terms:
            plain = np.zeros((len(data.outcomes), data.users, data.prices))
            for position, (users, rows) in enumerate(data.positions):
                plain[:, users] += discount**position * data.ratio[rows] * data.outcomes[:, rows, None]
            return Terms.mean(plain)

    Use it as `evaluate(data, OwnStep())`, or by name once it is in `ESTIMATORS`.
    """

    name: str
    """The name in results."""

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """Learn what the estimator needs from all users, by mergeable sums over partitions, in any number of passes."""
        ...

    def learning_factor(self, users: Partitions, discount: float, sparse: SparsePrices) -> FloatArray:
        """Factor from standard errors in which what was learned from the users counts as known to those that include
        its error, [outcomes, prices]; for estimators that learn little or nothing, 1. See `jackknife.py`."""
        return np.ones((1, 1))

    def shares(self, moments: Moments) -> FloatArray:
        """The share with which each part of the estimate counts, given all users' moments, [outcomes, parts,
        prices]."""
        return moments.shares

    def reasons(self, diagnostics: Diagnostics, price: int) -> tuple[Reason, ...]:
        """The reasons against the estimates at one of the prices."""
        return diagnostics.reasons(price)


def products_of_ratios(data: OffPolicyData) -> OffPolicyData:
    """The data unchanged: their weights are cumulative products of ratios."""
    return data


@dataclass(frozen=True)
class Prepared:
    """An estimator after learning from all users: one more pass gives value and standard error.

    Estimators that are prepared to the same functions share their passes.
    """

    terms: Callable[[OffPolicyData, float], Terms]
    """Weighted data of some users, and the discount -> each user's contribution."""
    weigh: Callable[[OffPolicyData], OffPolicyData] = products_of_ratios
    """Data of some users -> the same with the estimator's weights."""


@dataclass(frozen=True)
class OnePass(Estimator):
    """An estimator that is a formula for each user's contribution, and needs nothing of other users."""

    name: str
    terms: Callable[[OffPolicyData, float], Terms]
    """Data and discount -> each user's contribution."""

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(self.terms)

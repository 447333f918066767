"""What an estimator is: weights, and what each user adds with them, after as many passes over users as it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.diagnostics import Diagnostics
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.reasons import Reason
from redenvelope.evaluation.terms import Moments, Terms

__all__ = ["Estimator", "OnePass", "Prepared", "products_of_ratios"]

FloatArray = NDArray[np.float64]


def products_of_ratios(evidence: Evidence) -> Evidence:
    """The evidence as it is, with weights that are products of ratios."""
    return evidence


@dataclass(frozen=True)
class Prepared:
    """An estimator that knows of all users what it needs: one more pass gives value and error.

    Estimators that are prepared to the same functions share their work.
    """

    terms: Callable[[Evidence, float], Terms]
    """Evidence of some users, weighed, and the discount -> what each of them adds."""
    weigh: Callable[[Evidence], Evidence] = products_of_ratios
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
    terms: Callable[[Evidence, float], Terms]
    """Evidence and discount -> what each user adds."""

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(self.terms)

"""What an estimator says: value, error, bounds, diagnostics and the reasons against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.diagnostics import Diagnostics
from redenvelope.evaluation.estimator import Estimator
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.intervals import Bounds, Interval, Side, Skewed
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.evaluation.resampling import GroupSums, sums_by_group
from redenvelope.evaluation.terms import Moments, Terms

__all__ = ["Estimate", "Evaluation"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """What one policy is estimated to earn, or to cost, a user."""

    outcome: str
    value: float
    standard_error: float
    lower: float
    upper: float
    confidence: float
    estimator: str
    users: int
    reasons: tuple[Reason, ...]

    @property
    def is_refused(self) -> bool:
        """Whether any reason says that it must not be relied on."""
        return any(reason.weight is Weight.REFUSAL for reason in self.reasons)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, as in a certificate."""
        return {
            "estimate": self.value,
            "lower": self.lower,
            "upper": self.upper,
            "standard_error": self.standard_error,
            "estimator": self.estimator,
        }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one estimator says about all outcomes and prices."""

    estimator: Estimator
    outcome_names: tuple[str, ...]
    moments: Moments
    diagnostics: Diagnostics
    partitions: Partitions
    """The evidence, for what takes another pass: the bootstrap, and what each user adds."""
    terms: Callable[[Evidence], Terms]
    """What each user of a partition adds."""

    @property
    def users(self) -> int:
        """Number of users."""
        return self.moments.users

    @property
    def value(self) -> FloatArray:
        """[outcomes, prices]."""
        return self.moments.value

    @property
    def standard_error(self) -> FloatArray:
        """[outcomes, prices]."""
        return self.moments.standard_error

    @cached_property
    def groups(self) -> GroupSums:
        """Sums of terms by group of users, for the bootstrap: one pass."""
        return sums_by_group(self.partitions, self.terms, self.users)

    def influence(self) -> FloatArray:
        """How far each user moves the estimates, [outcomes, users, prices], users in the order of the partitions: one
        pass. Its mean is the value, its spread the error; differences between prices, or policies, are paired, and
        prices that users are drawn to mix."""
        parts = list(self.partitions.each(lambda batch: self.terms(batch).influence(self.moments)))
        return np.concatenate(parts, axis=1)

    def bounds(self, confidence: float = 0.95, side: Side = "both", interval: Interval | None = None) -> Bounds:
        """Bounds of all outcomes and prices; skewed as their terms are unless another interval is given."""
        return (interval or Skewed()).bounds(self, confidence, side)

    def place(self, outcome: str) -> int:
        """Where an outcome is among all."""
        if outcome not in self.outcome_names:
            raise UsageError(f"there is no estimate of {outcome!r}, only of {', '.join(self.outcome_names)}")
        return self.outcome_names.index(outcome)

    def reasons(self, outcome: str, price: int = 0) -> tuple[Reason, ...]:
        """What speaks against the estimate of an outcome at one of the prices."""
        place = self.place(outcome)
        value, error = float(self.value[place, price]), float(self.standard_error[place, price])
        found = list(self.estimator.reasons(self.diagnostics, price))
        if self.users < 2:
            found.append(_ONE_USER)
        elif error <= _ROUNDING * abs(value):
            found.append(Reason("no_variance", Weight.WARNING, f"every user adds the same {outcome}: {_CONSTANT}"))
        if not np.isfinite(value):
            found.append(_NO_WEIGHT)
        return tuple(found)

    def estimate(
        self,
        outcome: str,
        price: int = 0,
        confidence: float = 0.95,
        side: Side = "both",
        interval: Interval | None = None,
    ) -> Estimate:
        """The estimate of one outcome at one of the prices."""
        place = self.place(outcome)
        bounds = self.bounds(confidence, side, interval)
        return Estimate(
            outcome=outcome,
            value=float(self.value[place, price]),
            standard_error=float(self.standard_error[place, price]),
            lower=float(bounds.lower[place, price]),
            upper=float(bounds.upper[place, price]),
            confidence=confidence,
            estimator=self.estimator.name,
            users=self.users,
            reasons=self.reasons(outcome, price),
        )


# A standard error this small next to its value is the rounding of a sum, not a spread.
_ROUNDING = 1e-12
_CONSTANT = "its interval has no width; check that the column varies in the log"
_ONE_USER = Reason("one_user", Weight.REFUSAL, "one user has no spread: no error can be told; bring at least 2 users")
_NO_WEIGHT = Reason(
    "no_overlap", Weight.REFUSAL, "no logged user did anything that the policy would do: there is no estimate"
)

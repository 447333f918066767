"""Diagnostics of importance weights: effective sample size, overlap, and reasons against an estimate, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.audit.overlap import LEAST_EFFECTIVE_USERS
from redenvelope.evaluation.data import OffPolicyData

_THIN_SHARE = 0.05
_HEAVY_SHARE = 0.05
# The outcomes of never-logged actions are unknown; up to this share, they cannot move an estimate far.
_UNLOGGED_SHARE = 0.01
# Weights have mean 1. A mean this many standard errors away is not chance; one within this share does not matter.
_OFF_ERRORS, _OFF_SHARE = 5.0, 0.05


class Weight(StrEnum):
    """How severe a reason against an estimate is."""

    REFUSAL = "refusal"
    """The estimate must not be relied on."""
    WARNING = "warning"
    """The estimate may be used, if the reason is stated with it."""


@dataclass(frozen=True)
class Reason:
    """One reason against an estimate."""

    rule: str
    weight: Weight
    message: str

    def __str__(self) -> str:
        return f"{self.weight}: {self.message}"


def merged_reasons(parts: Iterable[Iterable[Reason]]) -> list[Reason]:
    """Merge reasons against any of several mixed plans: one per rule, as a refusal if any of them is one."""
    found: dict[str, Reason] = {}
    for reason in (reason for part in parts for reason in part):
        known = found.get(reason.rule)
        if known is None or (reason.weight is Weight.REFUSAL and known.weight is not Weight.REFUSAL):
            found[reason.rule] = reason
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Sums over users of importance weights after each step; a user who has left keeps the last weight."""

    users: int
    rows: int
    sums: FloatArray
    """Sum of weights, [steps, prices]."""
    squares: FloatArray
    """Sum of squared weights, [steps, prices]."""
    largest: FloatArray
    """Largest weight of one user, [steps, prices]."""
    unlogged: FloatArray
    """Mean probability of never-logged actions under the policy, [prices]."""
    clipped: FloatArray
    """Share of rows with a clipped ratio, [prices]."""
    certain: float
    """Share of rows whose logged action had probability 1."""
    estimated: bool
    """Whether the propensities were estimated."""

    @property
    def effective_users(self) -> FloatArray:
        """Effective sample size (Kish) after each step, in users, [steps, prices]."""
        return np.divide(self.sums**2, self.squares, out=np.zeros_like(self.sums), where=self.squares > 0)

    @property
    def mean_weight(self) -> FloatArray:
        """Mean weight after each step, [steps, prices]: 1 in expectation if propensities are right and overlap is
        complete."""
        return self.sums / self.users

    @property
    def is_thin(self) -> NDArray[np.bool_]:
        """Whether the effective sample size is small next to the number of users, at any step, [prices]."""
        return np.asarray(self.effective_users.min(axis=0) < max(LEAST_EFFECTIVE_USERS, _THIN_SHARE * self.users))

    @property
    def largest_share(self) -> FloatArray:
        """Largest share of the total weight that one user has at any step, [prices]."""
        shares = np.divide(self.largest, self.sums, out=np.ones_like(self.sums), where=self.sums > 0)
        return np.asarray(shares.max(axis=0))

    def merge(self, other: Diagnostics) -> Diagnostics:
        """Merge the diagnostics of two batches of users."""
        share = other.rows / (self.rows + other.rows)
        return Diagnostics(
            users=self.users + other.users,
            rows=self.rows + other.rows,
            sums=self.sums + other.sums,
            squares=self.squares + other.squares,
            largest=np.maximum(self.largest, other.largest),
            unlogged=self.unlogged + share * (other.unlogged - self.unlogged),
            clipped=self.clipped + share * (other.clipped - self.clipped),
            certain=self.certain + share * (other.certain - self.certain),
            estimated=self.estimated or other.estimated,
        )

    def reasons(self, price: int = 0) -> tuple[Reason, ...]:
        """The reasons against weighted estimates at one of the prices."""
        found = [
            self._deterministic(price),
            self._unlogged(price),
            self._thin(price),
            self._off(price),
            self._heavy(price),
            self._clipped(price),
            self._estimated(),
        ]
        return tuple(reason for reason in found if reason is not None)

    def is_refused(self, price: int) -> bool:
        """Whether weighted estimates at one of the prices are refused."""
        return any(reason.weight is Weight.REFUSAL for reason in self.reasons(price))

    def _deterministic(self, price: int) -> Reason | None:
        if self.certain < 1 or float(self.sums[:, price].min()) >= self.users * (1 - 1e-9):
            return None
        return Reason(
            "deterministic_log",
            Weight.REFUSAL,
            "every logged action had probability 1, so the log says nothing about a policy that decides otherwise; "
            "log with some randomness, and its probabilities",
        )

    def _unlogged(self, price: int) -> Reason | None:
        share = float(self.unlogged[price])
        if share <= 0:
            return None
        return Reason(
            "unlogged_action",
            Weight.REFUSAL if share > _UNLOGGED_SHARE else Weight.WARNING,
            f"the policy gives {share:.2%} of its decisions to actions that were never logged: what they cost and "
            "earn is unknown; rule these actions out, or log them first",
        )

    def _thin(self, price: int) -> Reason | None:
        sizes = self.effective_users[:, price]
        step, size = int(sizes.argmin()) + 1, float(sizes.min())
        if not self.is_thin[price]:
            return None
        return Reason(
            "thin_overlap",
            Weight.REFUSAL if size < LEAST_EFFECTIVE_USERS else Weight.WARNING,
            f"overlap is thin: after step {step} the weights of {self.users:,} users amount to {size:,.1f} users; "
            "bring a log of more users, or plan closer to what was logged (a higher temperature, fewer steps)",
        )

    def _off(self, price: int) -> Reason | None:
        mean = self.mean_weight[:, price]
        if self.users < 2:
            return None
        spread = np.maximum(self.squares[:, price] / self.users - mean**2, 0.0)
        # With marginalised ratios, the error of one step's mean carries over to later steps, beyond the spread of their
        # weights.
        errors = np.sqrt(np.cumsum(spread) / (self.users - 1))
        off = (np.abs(mean - 1) > _OFF_ERRORS * errors) & (np.abs(mean - 1) > _OFF_SHARE)
        if not off.any():
            return None
        step = int(np.flatnonzero(off)[0])
        return Reason(
            "weights_off",
            Weight.REFUSAL,
            f"after step {step + 1} the weights have mean {mean[step]:.3f} instead of 1, which is not chance: the "
            "propensities are wrong, or the policy does what the logger never would in such states; check how "
            "propensities were logged, and which actions were eligible",
        )

    def _heavy(self, price: int) -> Reason | None:
        share = float(self.largest_share[price])
        if share <= _HEAVY_SHARE:
            return None
        return Reason(
            "heavy_weight",
            Weight.WARNING,
            f"one of {self.users:,} users carries {share:.1%} of all weight; intervals may be too narrow",
        )

    def _clipped(self, price: int) -> Reason | None:
        share = float(self.clipped[price])
        if share <= 0:
            return None
        return Reason(
            "clipped",
            Weight.WARNING,
            f"{share:.2%} of the ratios were clipped: the estimate has a bias that its interval does not include",
        )

    def _estimated(self) -> Reason | None:
        if not self.estimated:
            return None
        return Reason(
            "estimated_propensities",
            Weight.WARNING,
            "propensities were estimated from the log, not logged: intervals do not include their error",
        )


def diagnose(data: OffPolicyData) -> Diagnostics:
    """The sums of the importance weights after each step."""
    weights, ones = data.weights, np.ones(data.users)
    return Diagnostics(
        users=data.users,
        rows=data.rows,
        sums=ones @ weights,  # several times faster than a sum over few prices
        squares=ones @ weights**2,
        largest=weights.max(axis=1),
        unlogged=data.unlogged,
        clipped=data.clipped,
        certain=data.certain,
        estimated=data.estimated,
    )

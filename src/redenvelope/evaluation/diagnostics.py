"""May an estimate be trusted? What its weights look like, and the reasons against it in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData

# An average over fewer effective users has no error worth quoting.
_LEAST_EFFECTIVE_USERS = 50.0
_THIN_SHARE = 0.05
_HEAVY_SHARE = 0.05
# Outcomes of an action that was never logged are unknown: up to this much of them cannot move an estimate far.
_UNLOGGED_SHARE = 0.01
# Weights have mean 1. Off by this many standard errors is not chance, and by less than this not worth a word.
_OFF_ERRORS, _OFF_SHARE = 5.0, 0.05


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Sums over users of the weights after each step; a user who has left keeps the last weight."""

    users: int
    rows: int
    sums: FloatArray
    """Sum of weights, [steps, prices]."""
    squares: FloatArray
    """Sum of squared weights, [steps, prices]."""
    largest: FloatArray
    """Largest weight of one user, [steps, prices]."""
    unlogged: FloatArray
    """Mean probability that the policy gives to actions the log never holds, [prices]."""
    clipped: FloatArray
    """Share of rows with a clipped ratio, [prices]."""
    certain: float
    """Share of rows whose logged action had probability 1."""
    estimated: bool
    """Whether the propensities were estimated."""

    @property
    def effective_users(self) -> FloatArray:
        """How many users the weights amount to after each step (Kish), [steps, prices]."""
        return np.divide(self.sums**2, self.squares, out=np.zeros_like(self.sums), where=self.squares > 0)

    @property
    def mean_weight(self) -> FloatArray:
        """Mean weight after each step, [steps, prices]: 1 if the propensities are right and the logger could have
        done whatever the policy does."""
        return self.sums / self.users

    @property
    def largest_share(self) -> FloatArray:
        """Share of the total weight that one user has, at the step where that is most, [prices]."""
        shares = np.divide(self.largest, self.sums, out=np.ones_like(self.sums), where=self.sums > 0)
        return np.asarray(shares.max(axis=0))

    def reasons(self, price: int = 0) -> tuple[Reason, ...]:
        """What speaks against estimates by weighting at one of the prices."""
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
            f"the policy gives {share:.2%} of its decisions to actions that the log never holds: what they cost and "
            "earn is unknown; rule these actions out, or log them first",
        )

    def _thin(self, price: int) -> Reason | None:
        sizes = self.effective_users[:, price]
        step, size = int(sizes.argmin()) + 1, float(sizes.min())
        if size >= max(_LEAST_EFFECTIVE_USERS, _THIN_SHARE * self.users):
            return None
        return Reason(
            "thin_overlap",
            Weight.REFUSAL if size < _LEAST_EFFECTIVE_USERS else Weight.WARNING,
            f"overlap is thin: after step {step} the weights of {self.users:,} users amount to {size:,.1f} users; "
            "bring a log of more users, or plan closer to what was logged (a higher temperature, fewer steps)",
        )

    def _off(self, price: int) -> Reason | None:
        mean = self.mean_weight[:, price]
        if self.users < 2:
            return None
        spread = np.maximum(self.squares[:, price] / self.users - mean**2, 0.0)
        # Marginalised ratios hand the chance of one step's mean on to the next, which their own spread does not know.
        errors = np.sqrt(np.cumsum(spread) / (self.users - 1))
        off = (np.abs(mean - 1) > _OFF_ERRORS * errors) & (np.abs(mean - 1) > _OFF_SHARE)
        if not off.any():
            return None
        step = int(np.flatnonzero(off)[0])
        return Reason(
            "weights_off",
            Weight.REFUSAL,
            f"after step {step + 1} the weights have mean {mean[step]:.3f} in place of 1, which is not chance: the "
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
            f"{share:.2%} of the ratios were clipped: the estimate has a bias that its interval does not know",
        )

    def _estimated(self) -> Reason | None:
        if not self.estimated:
            return None
        return Reason(
            "estimated_propensities",
            Weight.WARNING,
            "propensities were estimated from the log, not logged: intervals do not know the error of the estimate",
        )


def diagnose(evidence: OffPolicyData) -> Diagnostics:
    """Sums of the weights of the evidence after each step."""
    weights, ones = evidence.weights, np.ones(evidence.users)
    return Diagnostics(
        users=evidence.users,
        rows=evidence.rows,
        sums=ones @ weights,  # several times faster than a sum over few prices
        squares=ones @ weights**2,
        largest=weights.max(axis=1),
        unlogged=evidence.unlogged,
        clipped=evidence.clipped,
        certain=evidence.certain,
        estimated=evidence.estimated,
    )


def merge_diagnostics(first: Diagnostics, second: Diagnostics) -> Diagnostics:
    """The diagnostics of two batches of users as those of all."""
    share = second.rows / (first.rows + second.rows)
    return Diagnostics(
        users=first.users + second.users,
        rows=first.rows + second.rows,
        sums=first.sums + second.sums,
        squares=first.squares + second.squares,
        largest=np.maximum(first.largest, second.largest),
        unlogged=first.unlogged + share * (second.unlogged - first.unlogged),
        clipped=first.clipped + share * (second.clipped - first.clipped),
        certain=first.certain + share * (second.certain - first.certain),
        estimated=first.estimated or second.estimated,
    )


# Reasons: what speaks against an estimate, as data.


class Weight(StrEnum):
    """What a reason means for an estimate."""

    REFUSAL = "refusal"
    """The estimate must not be relied on."""
    WARNING = "warning"
    """The estimate may be used, and the reason is to be shown with it."""


@dataclass(frozen=True)
class Reason:
    """One thing that speaks against an estimate."""

    rule: str
    weight: Weight
    message: str

    def __str__(self) -> str:
        return f"{self.weight}: {self.message}"

    def as_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"rule": self.rule, "weight": self.weight.value, "message": self.message}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Reason:
        """The reason that `as_dict` wrote."""
        return cls(str(content["rule"]), Weight(content["weight"]), str(content["message"]))

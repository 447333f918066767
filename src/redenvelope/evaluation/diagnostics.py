"""May an estimate be trusted? What its weights look like, and the reasons against it in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.evidence import Evidence

__all__ = ["Diagnostics", "Reason", "Weight", "diagnose", "merge_diagnostics"]

FloatArray = NDArray[np.float64]

# An average over fewer effective users has no error worth quoting.
_LEAST_EFFECTIVE_USERS = 50.0
_THIN_SHARE = 0.05
_HEAVY_SHARE = 0.05
# Outcomes of an action that was never logged are unknown: up to this much of them cannot move an estimate far.
_UNLOGGED_SHARE = 0.01
# Weights have mean 1. Off by this many standard errors is not chance, and by less than this not worth a word.
_OFF_ERRORS, _OFF_SHARE = 5.0, 0.05


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


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Sums over users of the weights after each step; a user who has left keeps the last weight."""

    users: int
    rows: int
    sums: FloatArray
    """Sum of weights, [steps, duals]."""
    squares: FloatArray
    """Sum of squared weights, [steps, duals]."""
    largest: FloatArray
    """Largest weight of one user, [steps, duals]."""
    unlogged: FloatArray
    """Mean probability that the policy gives to actions the log never holds, [duals]."""
    clipped: FloatArray
    """Share of rows with a clipped ratio, [duals]."""
    certain: float
    """Share of rows whose logged action had probability 1."""
    estimated: bool
    """Whether the propensities were estimated."""

    @property
    def effective_users(self) -> FloatArray:
        """How many users the weights amount to after each step (Kish), [steps, duals]."""
        return np.divide(self.sums**2, self.squares, out=np.zeros_like(self.sums), where=self.squares > 0)

    @property
    def mean_weight(self) -> FloatArray:
        """Mean weight after each step, [steps, duals]: 1 if the propensities are right and the logger could have
        done whatever the policy does."""
        return self.sums / self.users

    @property
    def largest_share(self) -> FloatArray:
        """Share of the total weight that one user has, at the step where that is most, [duals]."""
        shares = np.divide(self.largest, self.sums, out=np.ones_like(self.sums), where=self.sums > 0)
        return np.asarray(shares.max(axis=0))

    def reasons(self, dual: int = 0) -> tuple[Reason, ...]:
        """What speaks against estimates by weighting at one of the duals."""
        found = [
            self._deterministic(dual),
            self._unlogged(dual),
            self._thin(dual),
            self._off(dual),
            self._heavy(dual),
            self._clipped(dual),
            self._estimated(),
        ]
        return tuple(reason for reason in found if reason is not None)

    def _deterministic(self, dual: int) -> Reason | None:
        if self.certain < 1 or float(self.sums[:, dual].min()) >= self.users * (1 - 1e-9):
            return None
        return Reason(
            "deterministic_log",
            Weight.REFUSAL,
            "every logged action had probability 1, so the log says nothing about a policy that decides otherwise; "
            "log with some randomness, and its probabilities",
        )

    def _unlogged(self, dual: int) -> Reason | None:
        share = float(self.unlogged[dual])
        if share <= 0:
            return None
        return Reason(
            "unlogged_action",
            Weight.REFUSAL if share > _UNLOGGED_SHARE else Weight.WARNING,
            f"the policy gives {share:.2%} of its decisions to actions that the log never holds: what they cost and "
            "earn is unknown; rule these actions out, or log them first",
        )

    def _thin(self, dual: int) -> Reason | None:
        sizes = self.effective_users[:, dual]
        step, size = int(sizes.argmin()) + 1, float(sizes.min())
        if size >= max(_LEAST_EFFECTIVE_USERS, _THIN_SHARE * self.users):
            return None
        return Reason(
            "thin_overlap",
            Weight.REFUSAL if size < _LEAST_EFFECTIVE_USERS else Weight.WARNING,
            f"overlap is thin: after step {step} the weights of {self.users:,} users amount to {size:,.1f} users; "
            "bring a log of more users, or plan closer to what was logged (a higher temperature, fewer steps)",
        )

    def _off(self, dual: int) -> Reason | None:
        mean = self.mean_weight[:, dual]
        if self.users < 2:
            return None
        spread = np.maximum(self.squares[:, dual] / self.users - mean**2, 0.0)
        errors = np.sqrt(spread / (self.users - 1))
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

    def _heavy(self, dual: int) -> Reason | None:
        share = float(self.largest_share[dual])
        if share <= _HEAVY_SHARE:
            return None
        return Reason(
            "heavy_weight",
            Weight.WARNING,
            f"one of {self.users:,} users carries {share:.1%} of all weight; intervals may be too narrow",
        )

    def _clipped(self, dual: int) -> Reason | None:
        share = float(self.clipped[dual])
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


def diagnose(evidence: Evidence, state_ratio: FloatArray | None = None) -> Diagnostics:
    """Sums of weights after each step: products of ratios, or ratios of states [rows, duals] times the step's own."""
    if state_ratio is not None and state_ratio.shape != evidence.ratio.shape:
        raise UsageError(f"state_ratio must be [rows, duals] = {evidence.ratio.shape}, not {state_ratio.shape}")
    shape = (evidence.steps, evidence.duals)
    sums, squares, largest = np.empty(shape), np.empty(shape), np.empty(shape)
    weight = np.ones((evidence.users, evidence.duals))
    for position in range(evidence.steps):
        if position < len(evidence.positions):
            users, rows = evidence.positions[position]
            if state_ratio is None:
                weight[users] *= evidence.ratio[rows]
            else:
                weight[users] = state_ratio[rows] * evidence.ratio[rows]
        sums[position] = weight.sum(axis=0)
        squares[position] = np.einsum("ud,ud->d", weight, weight)
        largest[position] = weight.max(axis=0)
    return Diagnostics(
        users=evidence.users,
        rows=evidence.rows,
        sums=sums,
        squares=squares,
        largest=largest,
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

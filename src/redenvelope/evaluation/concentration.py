"""Concentration: whether so few users carry so much that no bound of their mean can be believed.

A standard error is itself an estimate, from as many users as carry the squares. With a handful of them it is a guess,
and no transformation or resampling knows of the user who happened not to be drawn. To be asked of the costs of *all*
users of a log, train users included: a fold that holds none of the few looks tame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.evaluation.reasons import Reason, Weight

__all__ = ["Concentration"]

FloatArray = NDArray[np.float64]

# Calibrated on 40 campaigns a family in benchmarks/trials. Whales (one user of a thousand costs 400 times as much) in
# 8,000 and 40,000 users: 1 to 17 carriers of 70 to 1,400 times the mean each, 39 and 40 of 40 refused. Log-normal
# amounts with a spread of 0.8 to 1.3, which Hall's bound covers: at most 66 times the mean, none refused.
_FEW = 25
"""Users who carry the squares: a variance from fewer is a guess."""
_TIMES = 100.0
"""Each of them as much as so many users on average."""
_MUCH = 0.02
"""Share of the total that they must carry together: less cannot move it further than bounds are wide."""


@dataclass(frozen=True, eq=False)
class Concentration:
    """Sums over users that merge, and the largest amounts."""

    users: int
    total: float
    squares: float
    fourths: float
    largest: FloatArray
    """The largest amounts, falling, at most 25."""

    @classmethod
    def of(cls, amounts: ArrayLike) -> Concentration:
        """Of what each user costs, or adds to an estimate, [users]."""
        values = np.asarray(amounts, dtype=np.float64)
        squares = values**2
        largest = np.sort(values)[::-1][:_FEW].copy()
        return cls(len(values), float(values.sum()), float(squares.sum()), float((squares**2).sum()), largest)

    def merge(self, other: Concentration) -> Concentration:
        """Two batches of users as one."""
        largest = np.sort(np.concatenate([self.largest, other.largest]))[::-1][:_FEW].copy()
        return Concentration(
            self.users + other.users,
            self.total + other.total,
            self.squares + other.squares,
            self.fourths + other.fourths,
            largest,
        )

    @property
    def carriers(self) -> int:
        """How many users the squares amount to (Kish's effective number, of squares)."""
        return 0 if self.fourths <= 0 else max(1, round(self.squares**2 / self.fourths))

    @property
    def share(self) -> float:
        """Share of the total that so many of the largest carry; of at most 25."""
        return 0.0 if self.total <= 0 else float(self.largest[: self.carriers].sum() / self.total)

    @property
    def times(self) -> float:
        """What each of them carries, in means over all users."""
        return self.share * self.users / max(self.carriers, 1)

    def reason(self, what: str = "cost") -> Reason | None:
        """Why no bound may be relied on, if so few carry so much."""
        if not 0 < self.carriers < _FEW or self.share < _MUCH or self.times < _TIMES:
            return None
        return Reason(
            "concentrated",
            Weight.REFUSAL,
            f"{self.carriers:,} users of {self.users:,} carry {self.share:.0%} of the {what}: how many there are is "
            "chance, and no bound of the mean can be believed; cap what one user may cost, treat such users apart, or "
            f"bring a log that holds at least {_FEW} of them",
        )

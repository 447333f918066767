"""Folds of users for cross-fitting: what is learned from some is applied to others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope import chance
from redenvelope.errors import UsageError

__all__ = ["Folds"]


@dataclass(frozen=True)
class Folds:
    """So many folds of users, drawn by their keys: the same in every partition and in any order."""

    count: int
    seed: int

    def __post_init__(self) -> None:
        if self.count < 2:
            raise UsageError(f"cross-fitting needs at least 2 folds, not {self.count}")

    def of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The fold of each user, [users]: about equally large."""
        return chance.fold(keys, self.count, "cross-fit", self.seed)

    def check(self, users: int) -> None:
        """Refuse fewer users than folds."""
        if users < self.count:
            raise UsageError(f"cross-fitting over {self.count} folds needs at least {self.count} users, not {users}")

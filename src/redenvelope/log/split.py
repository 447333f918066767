"""Folds by user: a user lands in the same fold whatever the row order, the files or the other users."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fraction
from redenvelope.errors import UsageError
from redenvelope.log.log import Log

__all__ = ["SHARES", "split", "split_fold"]

SHARES = (0.5, 0.1, 0.4)
"""Of the users: train, tune and check. A certificate's bound narrows with the check users: on finite campaigns of 6,000
users four in ten spend a hundredth more of the budget than three in ten, which earns more than the model loses."""


def split(log: Log, parts: Sequence[float] = SHARES, seed: int = 0) -> tuple[Log, ...]:
    """Split a log by user into folds of about these shares: train, tune and check by default."""
    fold = split_fold(log.keys, parts, seed)
    folds = tuple(log.select(fold == number) for number in range(len(parts)))
    for number, part in enumerate(folds):
        if not len(part.users):
            raise UsageError(
                f"fold {number + 1} of {len(parts)} got none of the {len(log.users)} users; bring more users"
            )
    return folds


def split_fold(keys: NDArray[np.uint64], parts: Sequence[float] = SHARES, seed: int = 0) -> NDArray[np.int64]:
    """Which fold each user is in, by the user's key alone, [users]."""
    if not all(part > 0 for part in parts) or abs(sum(parts) - 1) > 1e-9:
        raise UsageError(f"the parts of a split must be positive and sum to 1, not {tuple(parts)}")
    return np.searchsorted(np.cumsum(parts)[:-1], fraction(keys, "fold", seed), side="right")

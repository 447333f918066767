"""Folds by user: a user lands in the same fold whatever the row order, the files or the other users."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from redenvelope.chance import user_fraction
from redenvelope.errors import UsageError
from redenvelope.log.log import Log

__all__ = ["split"]


def split(log: Log, parts: Sequence[float] = (0.7, 0.15, 0.15), seed: int = 0) -> tuple[Log, ...]:
    """Split a log by user into folds of about these shares: train, search and certify by default."""
    if not all(part > 0 for part in parts) or abs(sum(parts) - 1) > 1e-9:
        raise UsageError(f"the parts of a split must be positive and sum to 1, not {tuple(parts)}")
    fold = np.searchsorted(np.cumsum(parts)[:-1], user_fraction(log.users, "fold", seed), side="right")
    folds = tuple(log.select(fold == number) for number in range(len(parts)))
    for number, part in enumerate(folds):
        if not len(part.users):
            raise UsageError(
                f"fold {number + 1} of {len(parts)} got none of the {len(log.users)} users; bring more users"
            )
    return folds

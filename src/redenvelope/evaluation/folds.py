"""Folds of users for cross-fitting: what is learned from some is applied to others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError

__all__ = ["user_folds"]


def user_folds(users: int, folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of each user, [users]: equally large, drawn at random so that the order of users means nothing."""
    if folds < 2:
        raise UsageError(f"cross-fitting needs at least 2 folds, not {folds}")
    if users < folds:
        raise UsageError(f"cross-fitting over {folds} folds needs at least {folds} users, not {users}")
    return np.random.default_rng(seed).permutation(users) % folds

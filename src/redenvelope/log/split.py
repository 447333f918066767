"""Folds by user: a user lands in the same fold whatever the row order, the files or the other users."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.log.log import Log
from redenvelope.log.numbers import PLAIN_INTEGER

__all__ = ["split", "user_fractions"]

_PLAIN_INTEGER = re.compile(PLAIN_INTEGER)


def split(log: Log, parts: Sequence[float] = (0.7, 0.15, 0.15), seed: int = 0) -> tuple[Log, ...]:
    """Split a log by user into folds of about these shares: train, search and certify by default."""
    if not all(part > 0 for part in parts) or abs(sum(parts) - 1) > 1e-9:
        raise UsageError(f"the parts of a split must be positive and sum to 1, not {tuple(parts)}")
    fold = np.searchsorted(np.cumsum(parts)[:-1], user_fractions(log.users, seed), side="right")
    folds = tuple(log.select(fold == number) for number in range(len(parts)))
    for number, part in enumerate(folds):
        if not len(part.users):
            raise UsageError(
                f"fold {number + 1} of {len(parts)} got none of the {len(log.users)} users; bring more users"
            )
    return folds


def user_fractions(users: pl.Series, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each user id [users], uniform and fixed by the id and the seed alone."""
    if users.dtype.is_integer():
        keys = users.cast(pl.Int64).to_numpy().view(np.uint64)
    else:
        keys = np.fromiter(map(_text_key, users.cast(pl.String)), dtype=np.uint64, count=len(users))
    mixed = _mix(keys ^ _mix(np.array([seed], dtype=np.int64).view(np.uint64)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _text_key(user: str) -> int:
    # "7" is the same user as 7: whether ids are read as text depends on the other users' ids.
    if _PLAIN_INTEGER.fullmatch(user) and -(2**63) <= int(user) < 2**63:
        return int(user) % 2**64
    return zlib.crc32(user.encode())


def _mix(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: neighbouring keys become unrelated numbers, the same on every machine."""
    with np.errstate(over="ignore"):
        keys = keys + np.uint64(0x9E3779B97F4A7C15)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return keys ^ (keys >> np.uint64(31))

"""The error of what an estimator learns from the users whom it is applied to: a jackknife over groups of users.

Learned ratios are shared by many users, so the spread of users' contributions, in which the ratios count as known,
understates the error of their mean. How much depends on the log: next to nothing if a few states were met by thousands
of users, half of the error and more if forty columns are regressed on the weights of a hundred effective users. The
jackknife leaves out one group of users after the other, learns from the rest anew, and compares how far the estimates
move with how far they move if what was learned is kept. Both are sums over the same groups, so most of their noise
cancels in the ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.partitions import Partitions
from redenvelope.randomness import fold, fraction

_GROUPS = 20
"""The factor of one log then varies by a tenth to a fifth; twice as many groups take twice the time."""
_MOST_USERS = 20_000
"""With more users, the factor is estimated on a sample: there it is larger, if anything."""
_STREAM, _SEED = "jackknife", 0


@dataclass(frozen=True)
class SparsePrices:
    """Some of the prices of several policies: figures are computed at these, and interpolated between them."""

    ladders: tuple[range, ...]
    """Indices of each policy's prices, in order."""
    every: tuple[int, ...]
    """Every which price of each policy is used, besides its last one."""

    @classmethod
    def all_of(cls, prices: int) -> SparsePrices:
        """All prices."""
        return cls((range(prices),), (1,))

    @property
    def by_ladder(self) -> list[NDArray[np.intp]]:
        """Indices of the prices in use, by policy."""
        pairs = zip(self.ladders, self.every, strict=True)
        return [np.unique([*prices[::every], prices[-1]]) for prices, every in pairs]

    @property
    def places(self) -> NDArray[np.intp]:
        """Indices of all prices in use, [some prices]."""
        return np.concatenate(self.by_ladder)

    def everywhere(self, table: FloatArray) -> FloatArray:
        """Interpolate figures along each policy's prices, [outcomes, some prices] -> [outcomes, prices]."""
        known = self.by_ladder
        edges = np.cumsum([0, *map(len, known)])
        parts = [table[:, first:last] for first, last in pairwise(edges)]
        trios = zip(self.ladders, known, parts, strict=True)
        rows = [[np.interp(every, some, row) for row in part] for every, some, part in trios]
        return np.concatenate(rows, axis=1)


Contributions = Callable[[Partitions], FloatArray]
"""Users -> each one's contribution to an estimate that learns from them anew, [outcomes, users, prices]."""


def learning_factor(contributions: Contributions, users: Partitions, sparse: SparsePrices) -> FloatArray:
    """Factor from standard errors in which what was learned counts as known to those that include its error,
    [outcomes, prices]; at least 1. For estimates that are plain means over users."""
    held = _sample(users, sparse.places)
    groups = [fold(part.keys, _GROUPS, _STREAM, _SEED) for part in held]
    together, group = contributions(_of_parts(held, users)), np.concatenate(groups)
    kept, learned = [], []
    for left_out in np.unique(group):
        kept.append(together[:, group != left_out].mean(axis=1))
        pairs = zip(held, groups, strict=True)
        rest = [part.of_users(own != left_out) for part, own in pairs if (own != left_out).any()]
        learned.append(contributions(_of_parts(rest, users)).mean(axis=1))
    if len(kept) < 2:
        return np.ones((together.shape[0], len(np.concatenate(sparse.ladders))))
    before, after = np.std(kept, axis=0), np.std(learned, axis=0)
    return sparse.everywhere(np.maximum(np.divide(after, before, out=np.ones_like(after), where=before > 0), 1.0))


def _sample(users: Partitions, places: NDArray[np.intp]) -> list[OffPolicyData]:
    """The data of a sample of the users, by a hash of their keys, at some prices."""
    parts = list(users.parts())
    share = _MOST_USERS / max(sum(part.users for part in parts), 1)
    chosen = [fraction(part.keys, _STREAM, _SEED + 1) < share for part in parts]
    pairs = zip(parts, chosen, strict=True)
    return [part.of_users(own).at_prices(places) for part, own in pairs if own.any()]


def _of_parts(parts: list[OffPolicyData], users: Partitions) -> Partitions:
    """Partitions of which nothing is learned yet."""
    return replace(users, parts=lambda: parts, learned={})

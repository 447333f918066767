"""The bootstrap, over sums of groups of users: they merge over partitions, and a replicate costs no pass over users.

Users fall into groups by their keys. Groups are not equally large; but what a group differs by from so many times the
mean has the variance and the skewness of as many users, so that drawing groups with replacement has those of drawing
users, in expectation. With no more users than groups it *is* drawing users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fold, fraction
from redenvelope.errors import UsageError
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.terms import Moments, Terms, safe_ratio

__all__ = [
    "GROUPS",
    "GroupSums",
    "bootstrap_values",
    "group_influence",
    "group_sums",
    "studentised_draws",
    "sums_by_group",
]

FloatArray = NDArray[np.float64]

GROUPS = 2048
"""Number of groups: their spread tells the standard error to within 2 %."""
_STREAM, _SEED = "bootstrap group", 0
# Replicates drawn at once: their counts stay in a second-level cache.
_REPLICATES = 32


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Sums of terms by group of users."""

    sizes: FloatArray
    """Users in each group, [groups]."""
    sums: FloatArray
    """[groups, columns, prices]; columns are plain terms, numerators, weights."""


def sums_by_group(partitions: Partitions, terms: Callable[[Evidence], Terms], users: int) -> GroupSums:
    """Sums of the terms of all users by group, in one pass; if there are few, each user is a group."""
    if users > GROUPS:
        return partitions.reduce_parts(lambda part: _hashed(part, terms), _merged)
    parts = list(partitions.each(lambda batch: (batch.keys, terms(batch).stacked())))
    # In an order that is the users' own, so that how they were dealt to partitions changes nothing.
    order = np.argsort(fraction(np.concatenate([keys for keys, _ in parts]), _STREAM, _SEED), kind="stable")
    columns = np.concatenate([columns for _, columns in parts], axis=1)
    return GroupSums(np.ones(users), np.moveaxis(columns, 1, 0)[order])


def group_sums(terms: Terms, groups: NDArray[np.int64], count: int) -> GroupSums:
    """Sums by group [users] of so many groups."""
    columns = len(terms.plain) * (1 + terms.parts) + terms.parts
    result = GroupSums(np.zeros(count), np.zeros((count, columns, terms.plain.shape[2])))
    _add(result, terms, groups)
    return result


def _hashed(part: Evidence, terms: Callable[[Evidence], Terms]) -> GroupSums:
    """Sums of one partition, batch after batch in the same room: it is large next to a batch."""
    batches = part.in_batches
    first = next(batches)
    sums = group_sums(terms(first), fold(first.keys, GROUPS, _STREAM, _SEED), GROUPS)
    for batch in batches:
        _add(sums, terms(batch), fold(batch.keys, GROUPS, _STREAM, _SEED))
    return sums


def _add(sums: GroupSums, terms: Terms, groups: NDArray[np.int64]) -> None:
    """Add the terms of users, whose groups are [users], to sums that are being built."""
    order = np.argsort(groups, kind="stable")
    found, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    sums.sizes[found] += sizes
    for place, column in enumerate(terms.stacked()):
        sums.sums[found, place] += np.add.reduceat(column[order], starts, axis=0)


def _merged(first: GroupSums, second: GroupSums) -> GroupSums:
    """The sums of two partitions as those of both."""
    return GroupSums(first.sizes + second.sizes, first.sums + second.sums)


def bootstrap_values(groups: GroupSums, moments: Moments, replicates: int, seed: int) -> FloatArray:
    """Estimates from resampled users, ratios taken anew in each: [replicates, outcomes, prices]."""
    filled = groups.sizes > 0
    count = int(filled.sum())
    _check(count, replicates)
    columns = np.column_stack([groups.sizes[filled], groups.sums[filled].reshape(count, -1)])
    totals = np.concatenate([draws @ columns for draws in _draws(count, replicates, seed)])
    means = totals[:, 1:] / totals[:, :1]
    means = means.reshape(replicates, *groups.sums.shape[1:])
    outcomes, parts = moments.outcomes, moments.parts
    numerators = means[:, outcomes : outcomes * (1 + parts)].reshape(replicates, outcomes, parts, means.shape[2])
    ratios = safe_ratio(numerators, means[:, None, outcomes * (1 + parts) :])
    return np.asarray(means[:, :outcomes] + (moments.shares * ratios).sum(axis=2))


def studentised_draws(groups: GroupSums, moments: Moments, replicates: int, seed: int) -> FloatArray:
    """How many of its own standard errors each replicate is off the estimate, [replicates, outcomes, prices].

    Knows the skewness of the terms, which an interval of normal width does not.
    """
    filled = groups.sizes > 0
    count = int(filled.sum())
    _check(count, replicates)
    change = group_influence(groups, moments)[filled].reshape(count, -1)
    columns = np.concatenate([change, change**2], axis=1)
    totals = np.concatenate([draws @ columns for draws in _draws(count, replicates, seed)])
    means, squares = np.split(totals / count, 2, axis=1)
    spread = np.sqrt(np.maximum(squares - means**2, 0.0) / (count - 1))
    drawn = np.divide(means, spread, out=np.zeros_like(means), where=spread > 0)
    return drawn.reshape(replicates, moments.outcomes, -1)


def group_influence(groups: GroupSums, moments: Moments) -> FloatArray:
    """How far each group moves the estimates, [groups, outcomes, prices]; sums to 0."""
    outcomes, parts, prices = moments.shares.shape
    centred = groups.sums - groups.sizes[:, None, None] * moments.means
    result = centred[:, :outcomes].copy()
    slopes = safe_ratio(moments.shares, moments.mean_weights)
    numerators = centred[:, outcomes : outcomes * (1 + parts)].reshape(len(centred), outcomes, parts, prices)
    weights = centred[:, None, outcomes * (1 + parts) :]
    result += (slopes * (numerators - moments.ratios * weights)).sum(axis=2)
    return result


def _draws(count: int, replicates: int, seed: int) -> Iterator[FloatArray]:
    """How often each group is drawn in each replicate: blocks of [replicates, count]."""
    generator = np.random.default_rng(seed)

    for first in range(0, replicates, _REPLICATES):
        size = min(_REPLICATES, replicates - first)
        drawn = generator.integers(count, size=(size, count), dtype=np.int32)
        drawn += np.arange(size, dtype=np.int32)[:, None] * count
        counts = np.bincount(drawn.ravel(), minlength=size * count)
        yield counts.reshape(size, count).astype(np.float64)


def _check(count: int, replicates: int) -> None:
    if count < 2:
        raise UsageError("a bootstrap needs at least 2 users")
    if replicates < 2:
        raise UsageError(f"a bootstrap needs at least 2 replicates, not {replicates}")

"""Overlap: propensities, their calibration, and effective sample sizes by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.statistics import ROUNDING, UserMoments, user_blocks
from redenvelope.log.log import Log
from redenvelope.merging import merged

LEAST_EFFECTIVE_USERS = 50
"""A certificate refuses fewer: the standard error of their mean would be unreliable."""

MOST_STEPS = 20
"""Most steps for which overlap is computed."""


@dataclass(frozen=True)
class Calibration:
    """Whether an action's propensities add up: 1/p over its rows should count every row once."""

    label: str
    ratio: float
    z: float

    @property
    def is_off(self) -> bool:
        """Off by more than chance and by more than 2 %."""
        return abs(self.z) > 4 and abs(self.ratio - 1) > 0.02


@dataclass(frozen=True)
class StepOverlap:
    """Effective sample size for a policy after a number of steps."""

    step: int
    """Number of steps weighted, from 1."""
    users: int
    """Users with at least this many steps."""
    uniform: float
    """Effective number of users for the uniform policy."""
    greedy: float
    """Effective number of users for always giving the action of highest mean reward, all steps so far weighted."""
    alone: float
    """The same with this step weighted alone, users who have left by their last one: the most a certificate can have,
    which weights states and not histories."""
    matching: int
    """Users whose logged actions are all that action."""


def calibration_sums(log: Log) -> UserMoments:
    """By user and action, the sum over rows of 1/p − 1 (p where the action was logged, 0 for 1/p elsewhere); rows in
    which an action was not eligible count for nothing."""
    count, inverse = len(log.catalogue), 1.0 / log.propensity
    moments = []
    for rows, cell, users in user_blocks(log, log.action, count):
        sums = np.bincount(cell, weights=inverse[rows], minlength=users * count).reshape(users, count)
        first = int(log.user_of_row[rows.start])
        counted = log.lengths[first : first + users, None]
        if log.eligible is not None:
            starts = log.starts[first : first + users] - rows.start
            counted = np.add.reduceat(log.eligible[rows], starts, axis=0, dtype=np.int64)
        moments.append(UserMoments.of(np.subtract(sums, counted, dtype=np.float64), log.begins[first : first + users]))
    return merged(moments)


def calibration(labels: tuple[str, ...], sums: UserMoments, rows: int) -> tuple[Calibration, ...]:
    """For each action, the mean of 1/p over all rows (0 where another action was logged): 1 if p is right."""
    length = rows / sums.users
    means, errors = sums.mean / length, sums.errors / length
    return tuple(
        Calibration(label, float(1 + mean), float(mean / error) if error > ROUNDING else 0.0)
        for label, mean, error in zip(labels, means, errors, strict=True)
    )


def given_counts(log: Log) -> NDArray[np.int64]:
    """Rows that would get each action where one is given to everybody, [fixed actions, actions]: where it is not
    eligible, the cheapest eligible one is given."""
    count = len(log.catalogue)
    if log.eligible is None:
        return len(log) * np.eye(count, dtype=np.int64)
    cheapest = log.eligible.argmax(axis=1)
    counts = [np.bincount(cheapest[~own], minlength=count) for own in log.eligible.T]
    return np.asarray(counts + np.diag(log.eligible.sum(axis=0)), dtype=np.int64)


_FEWEST_EXPECTED = 30.0  # rows: of fewer, none may be missing by chance
_MOST_GROUPS = 5


@dataclass(frozen=True)
class NeverGiven:
    """Rows that never got an action that others got: perhaps they could not."""

    label: str
    group: str
    """The condition that they have in common."""
    otherwise: str
    """The condition of those who could get it."""
    rows: int
    expected: float
    """How many would have got the action if they were like the others."""

    @property
    def rule(self) -> str:
        """What a campaign's rule would say."""
        return f'actions = ["{self.label}"], only_where = "{self.otherwise}"'


def never_given(log: Log) -> tuple[NeverGiven, ...]:
    """Groups of rows that never got an action and were not listed as ineligible for it: those of a category's label, of
    a step, or below or above a number; the largest first."""
    found, features = [], log.features
    columns: list[tuple[str, NDArray[np.integer], list[str]]] = [
        (name, features.codes[:, place], [repr(label) for label in features.labels[place]])
        for place, name in enumerate(features.category_names)
    ]
    steps = [str(log.first_step + step) for step in range(log.campaign_steps)]
    columns.append(("step", log.step - log.first_step, steps))
    for action, label in enumerate(log.catalogue.labels):
        could = np.ones(len(log), dtype=bool) if log.eligible is None else log.eligible[:, action]
        got = log.action == action
        share = float(got.sum() / max(int(could.sum()), 1))
        groups: list[tuple[int, str, str]] = []
        for name, codes, labels in columns:
            rows, given = (np.bincount(codes[which & (codes >= 0)], minlength=len(labels)) for which in (could, got))
            groups += [
                (int(rows[code]), f"{name} == {labels[code]}", f"{name} != {labels[code]}")
                for code in np.flatnonzero(given[: len(labels)] == 0).tolist()
            ]
        for name, values in zip(features.numeric_names, features.numeric.T, strict=True):
            known = values[got & ~np.isnan(values)]
            low, high = (float(known.min()), float(known.max())) if len(known) else (-np.inf, np.inf)
            groups.append((int((could & (values < low)).sum()), f"{name} < {low:g}", f"{name} >= {low:g}"))
            groups.append((int((could & (values > high)).sum()), f"{name} > {high:g}", f"{name} <= {high:g}"))
        found += [
            NeverGiven(label, group, otherwise, rows, share * rows)
            for rows, group, otherwise in groups
            if share * rows >= _FEWEST_EXPECTED
        ]
    return tuple(sorted(found, key=lambda one: -one.expected)[:_MOST_GROUPS])


def overlap_sums(log: Log, greedy_action: int, steps: int) -> NDArray[np.float64]:
    """Sums for the effective numbers of users, for the uniform policy and for one fixed action; parts add up. Where
    rows list what was eligible, both choose among that.

    [steps, 8]: users who are there, whose actions all match, then sums and squares of the weights for the uniform
    policy, the fixed action, and the fixed action at this step alone.
    """
    users, choices, given = len(log.users), np.full(len(log), len(log.catalogue)), np.full(len(log), greedy_action)
    if log.eligible is not None:
        choices = log.eligible.sum(axis=1)
        given = np.where(log.eligible[:, greedy_action], greedy_action, log.eligible.argmax(axis=1))
    uniform, greedy, alone = np.ones(users), np.ones(users), np.ones(users)
    sums = np.zeros((steps, 8))
    for position in range(steps):
        present = np.flatnonzero(log.lengths > position)
        rows = log.starts[present] + position
        uniform[present] /= choices[rows] * log.propensity[rows]
        alone[present] = (log.action[rows] == given[rows]) / log.propensity[rows]
        greedy[present] *= alone[present]
        sums[position, :2] = len(present), np.count_nonzero(greedy[present])
        for place, weights in enumerate((uniform[present], greedy[present], alone), start=1):
            sums[position, 2 * place : 2 * place + 2] = weights.sum(), (weights**2).sum()
    return sums


def overlap_by_step(sums: NDArray[np.float64]) -> tuple[StepOverlap, ...]:
    """Effective number of users by step, from the `overlap_sums` of all users."""
    return tuple(
        StepOverlap(
            step=position + 1,
            users=int(row[0]),
            uniform=_effective_size(row[2], row[3]),
            greedy=_effective_size(row[4], row[5]),
            alone=_effective_size(row[6], row[7]),
            matching=int(row[1]),
        )
        for position, row in enumerate(sums)
    )


def _effective_size(total: float, squares: float) -> float:
    """Kish's effective sample size of weights with this sum and this sum of squares."""
    return float(total) ** 2 / float(squares) if squares > 0 else 0.0


def steps_alive(overlaps: tuple[StepOverlap, ...], check_share: float) -> int:
    """Number of steps for which a fixed action has enough effective users in the check fold."""
    needed = LEAST_EFFECTIVE_USERS / check_share
    return next((place for place, overlap in enumerate(overlaps) if overlap.greedy < needed), len(overlaps))


# Quantiles of propensities from mergeable counts: exact where values repeat, else within 1/4,000 of a value.


_DROPPED_BITS = 40  # of a float64: twelve binary digits of its value are left


@dataclass(frozen=True, eq=False)
class QuantileSums:
    """Positive values in narrow bins, whose edges are the same for all data."""

    bins: NDArray[np.int64]
    """Which bins have values, rising, [bins]."""
    counts: NDArray[np.int64]
    """[bins]"""
    low: NDArray[np.float64]
    """The least value of each bin, [bins]."""
    high: NDArray[np.float64]
    """The greatest value of each bin, [bins]."""

    def merge(self, other: QuantileSums) -> QuantileSums:
        """See Mergeable."""
        bins = np.union1d(self.bins, other.bins)
        counts = np.zeros(len(bins), dtype=np.int64)
        low, high = np.full(len(bins), np.inf), np.full(len(bins), -np.inf)
        for part in (self, other):
            place = np.searchsorted(bins, part.bins)
            counts[place] += part.counts
            low[place] = np.minimum(low[place], part.low)
            high[place] = np.maximum(high[place], part.high)
        return QuantileSums(bins, counts, low, high)


def quantile_sums(values: NDArray[np.float64]) -> QuantileSums:
    """The bins of positive values, [rows]."""
    rising = np.sort(values)
    # The bits of positive floats, read as integers, rise with the floats.
    bins = rising.view(np.int64) >> _DROPPED_BITS
    starts = np.append(0, np.flatnonzero(bins[1:] != bins[:-1]) + 1)
    ends = np.append(starts[1:], len(bins))
    return QuantileSums(bins[starts], ends - starts, rising[starts], rising[ends - 1])


def quantiles(sums: QuantileSums, levels: Sequence[float]) -> list[float]:
    """The values below which these shares of all values lie, between neighbours in proportion."""
    before = np.cumsum(sums.counts) - sums.counts
    last = int(sums.counts.sum()) - 1

    def ranked(rank: int) -> float:
        place = int(np.searchsorted(before, rank, side="right")) - 1
        within = (rank - before[place]) / max(sums.counts[place] - 1, 1)
        return float(sums.low[place] + within * (sums.high[place] - sums.low[place]))

    found = []
    for level in levels:
        rank = floor(level * last)
        lower, upper = ranked(rank), ranked(min(rank + 1, last))
        found.append(lower + (level * last - rank) * (upper - lower))
    return found

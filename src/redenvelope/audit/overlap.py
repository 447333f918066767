"""Overlap: calibration of propensities, actions that some groups never got, and effective sample sizes by step."""

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
"""A certificate refuses fewer effective users, because standard errors would be unreliable."""

MOST_STEPS = 20
"""Most steps for which overlap is computed."""


@dataclass(frozen=True)
class Calibration:
    """Whether an action's propensities add up: the sum of 1/p over its rows should equal the number of all rows."""

    label: str
    ratio: float
    z: float

    @property
    def is_off(self) -> bool:
        """Whether the ratio differs from 1 by more than chance and by more than 2 %."""
        return abs(self.z) > 4 and abs(self.ratio - 1) > 0.02


@dataclass(frozen=True)
class StepOverlap:
    """Effective sample size for a policy after a number of steps."""

    step: int
    """Number of weighted steps, from 1."""
    users: int
    """Number of users with at least this many steps."""
    uniform: float
    """Effective number of users for the uniform policy."""
    greedy: float
    """Effective number of users for always giving the action with the highest mean reward, over all steps so far."""
    alone: float
    """The same, weighted at this step alone (for users who have left, at their last step): the most that a certificate
    can have, because it weights states and not histories."""
    matching: int
    """Number of users whose logged actions are all that action."""


def calibration_sums(log: Log) -> UserMoments:
    """Sums over rows of 1/p − 1, by user and action (1/p counts as 0 where another action was logged); rows in which an
    action was not eligible do not count."""
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
    """For each action, the mean of 1/p over all rows (0 where another action was logged); 1 if p is right."""
    length = rows / sums.users
    means, errors = sums.mean / length, sums.errors / length
    return tuple(
        Calibration(label, float(1 + mean), float(mean / error) if error > ROUNDING else 0.0)
        for label, mean, error in zip(labels, means, errors, strict=True)
    )


def given_counts(log: Log) -> NDArray[np.int64]:
    """Rows that would get each action if one is given to everybody, [fixed actions, actions]; where it is not eligible,
    the cheapest eligible action is given instead."""
    count = len(log.catalogue)
    if log.eligible is None:
        return len(log) * np.eye(count, dtype=np.int64)
    cheapest = log.eligible.argmax(axis=1)
    counts = [np.bincount(cheapest[~own], minlength=count) for own in log.eligible.T]
    return np.asarray(counts + np.diag(log.eligible.sum(axis=0)), dtype=np.int64)


_FEWEST_EXPECTED = 30.0  # rows; with fewer expected, there may be none by chance
_MOST_GROUPS = 5


@dataclass(frozen=True)
class NeverGiven:
    """A group of rows that never got an action that others got; perhaps it was not eligible."""

    label: str
    group: str
    """The condition that the rows have in common."""
    otherwise: str
    """The opposite condition, of the rows that could get the action."""
    rows: int
    expected: float
    """Expected number of rows with the action if they were like the others."""

    @property
    def rule(self) -> str:
        """A campaign rule that would say so."""
        return f'actions = ["{self.label}"], only_where = "{self.otherwise}"'


def never_given(log: Log) -> tuple[NeverGiven, ...]:
    """Groups of rows that never got an action and were not listed as ineligible for it: rows with one label of a
    category, at one step, or below or above a number; largest first."""
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
    """Sums for effective numbers of users, for the uniform policy and for one fixed action; they add up over parts.
    Both policies choose only eligible actions, where these are listed.

    [steps, 8]: users with such a step, users whose actions all match, then sums and squares of the weights for the
    uniform policy, the fixed action, and the fixed action at this step alone.
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
    """Effective numbers of users by step, from the `overlap_sums` of all users."""
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
    """Kish's effective sample size, from the sum and the sum of squares of weights."""
    return float(total) ** 2 / float(squares) if squares > 0 else 0.0


def steps_alive(overlaps: tuple[StepOverlap, ...], check_share: float) -> int:
    """Number of steps until a fixed action has too few effective users in the check fold."""
    needed = LEAST_EFFECTIVE_USERS / check_share
    return next((place for place, overlap in enumerate(overlaps) if overlap.greedy < needed), len(overlaps))


# Quantiles of propensities from mergeable counts: exact for repeated values, else within 1/4,000 of a value.


_DROPPED_BITS = 40  # of a float64, which leaves twelve binary digits of its value


@dataclass(frozen=True, eq=False)
class QuantileSums:
    """Counts of positive values in narrow bins, whose edges are the same for all data."""

    bins: NDArray[np.int64]
    """Non-empty bins, ascending, [bins]."""
    counts: NDArray[np.int64]
    """Number of values in each bin, [bins]."""
    low: NDArray[np.float64]
    """Smallest value in each bin, [bins]."""
    high: NDArray[np.float64]
    """Largest value in each bin, [bins]."""

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
    """Bin positive values, [rows]."""
    rising = np.sort(values)
    # Read as integers, the bits of positive floats are in the same order as the floats.
    bins = rising.view(np.int64) >> _DROPPED_BITS
    starts = np.append(0, np.flatnonzero(bins[1:] != bins[:-1]) + 1)
    ends = np.append(starts[1:], len(bins))
    return QuantileSums(bins[starts], ends - starts, rising[starts], rising[ends - 1])


def quantiles(sums: QuantileSums, levels: Sequence[float]) -> list[float]:
    """The quantiles of all values at these levels, interpolated linearly."""
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

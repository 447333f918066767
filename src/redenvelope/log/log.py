"""A log in memory: immutable columns sorted by user and step, views by trajectory, and folds by user.

Users (or clusters of users) are the independent units: folds, samples and standard errors are made by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Finding
from redenvelope.randomness import fraction, user_keys
from redenvelope.wording import counted

_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True)
class ActionCatalogue:
    """The actions of a log, sorted by their mean logged cost."""

    labels: tuple[str, ...]
    """The label of each action; an action's index is its position here."""
    numeric: bool
    """Whether the labels are numbers in the user's own tables."""

    def __len__(self) -> int:
        return len(self.labels)

    def named(self, text: str) -> str:
        """A model's sentence with action indices replaced by labels."""
        return re.sub(r"\baction (\d+)\b", lambda found: f"action {self.labels[int(found[1])]!r}", text)


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """The features of every row: numbers (booleans are 0 and 1) and categories. Missing is NaN or −1."""

    numeric_names: tuple[str, ...]
    numeric: NDArray[np.float32]
    """[rows, numeric features], column by column in memory."""
    category_names: tuple[str, ...]
    codes: NDArray[np.int32]
    """[rows, category features]: index into the feature's labels."""
    labels: tuple[tuple[str, ...], ...]
    """The labels of each category feature, sorted."""
    static: frozenset[str]
    """Names of features that never change within a user; these are carried over instead of predicted."""

    @property
    def names(self) -> tuple[str, ...]:
        """All feature names, numbers first."""
        return self.numeric_names + self.category_names

    def rows(self, index: slice | NDArray[np.int64]) -> FeatureTable:
        """Some of the rows; a slice copies nothing."""
        # Index each feature by itself, so that its column stays contiguous.
        return replace(self, numeric=self.numeric.T[:, index].T, codes=self.codes.T[:, index].T)


@dataclass(frozen=True, eq=False)
class Log:
    """Logged feedback: one row per user and step, sorted by cluster if there are any, then by user and step.

    Rows `starts[i]:starts[i + 1]` are the trajectory of user i, so trajectories are slices.
    """

    users: pl.Series
    """The id of each user, [users]; a user with several episodes appears once for each, consecutively."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    step: NDArray[np.int32]
    """[rows], as in the source table."""
    action: NDArray[np.int32]
    """[rows], index into the catalogue."""
    propensity: NDArray[np.float64]
    """[rows], probability with which the behaviour policy chose the logged action."""
    reward: NDArray[np.float64]
    """[rows]"""
    cost: NDArray[np.float64]
    """[rows]"""
    features: FeatureTable
    catalogue: ActionCatalogue
    propensity_source: Literal["logged", "estimated"] = "logged"
    findings: tuple[Finding, ...] = ()
    """Warnings and repairs from reading."""
    further: tuple[tuple[str, NDArray[np.float64]], ...] = ()
    """Other columns that budgets sum, besides `cost`: the name of each, and its values [rows]."""
    charged: tuple[tuple[str, NDArray[np.float64]], ...] = ()
    """The charges of each budget: its name, and its costs [rows]; empty if the only budget is of `cost`."""
    eligible: NDArray[np.bool_] | None = None
    """The actions that each row's user was eligible for, [rows, actions]; None if the log does not list them."""
    clusters: NDArray[np.uint64] | None = None
    """The cluster of each user as a 64-bit key, [users], ascending; None if users are independent."""
    attributes: NDArray[np.float32] | None = None
    """Attributes of the actions, [attributes, actions], see `campaign/items.py`; None if there are none."""
    columns: ColumnMap = field(default_factory=ColumnMap)
    """The table's column names and how it was read; a plan stores it to read later tables the same way."""

    def __post_init__(self) -> None:
        columns = (self.starts, self.step, self.action, self.propensity, self.reward, self.cost)
        for column in (*columns, self.features.numeric, self.features.codes):
            _frozen(column)
        for _, costs in (*self.further, *self.charged):
            _frozen(costs)
        for listed in (self.eligible, self.clusters):
            if listed is not None:
                _frozen(listed)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.step)

    def __repr__(self) -> str:
        whose = f"{self.people:,} users" if self.people == len(self.users) else _episodes(self.people, len(self.users))
        whose += "" if self.clusters is None else f" in {self.independent:,} clusters"
        return (
            f"Log({whose}, {len(self):,} rows, {len(self.catalogue)} actions, "
            f"{counted(len(self.features.names), 'feature')}, propensities {self.propensity_source})"
        )

    @property
    def outcome_names(self) -> tuple[str, ...]:
        """Names of the outcomes: the reward, then one cost for each budget, [outcomes]."""
        if len(self.charged) < 2:
            return ("reward", "cost")
        return ("reward", *(f"cost of {name}" for name, _ in self.charged))

    @cached_property
    def outcomes(self) -> NDArray[np.float64]:
        """The outcomes of each row, [outcomes, rows]: the reward, then one cost for each budget."""
        if not self.charged:
            return self.measured
        return _frozen(np.stack([self.reward, *(values for _, values in self.charged)]))

    @property
    def measured_names(self) -> tuple[str, ...]:
        """Names of the measured columns, [measured]: the reward, the cost, and others that budgets sum."""
        return ("reward", "cost", *(name for name, _ in self.further))

    @cached_property
    def measured(self) -> NDArray[np.float64]:
        """The measured values of each row, [measured, rows], from which the budgets' costs follow."""
        return _frozen(np.stack([self.reward, self.cost, *(values for _, values in self.further)]))

    @cached_property
    def user_keys(self) -> NDArray[np.uint64]:
        """The users as 64-bit keys, [users]."""
        return user_keys(self.users)

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The keys of the independent units, [users]: of clusters, or of users if there are none. Folds, samples and
        standard errors are by key."""
        return self.user_keys if self.clusters is None else self.clusters

    @cached_property
    def begins(self) -> NDArray[np.bool_]:
        """Which entries of `users` are the first of their key, [users]: all, without episodes and clusters."""
        return _frozen(begins_of(self.keys))

    @cached_property
    def first_episodes(self) -> NDArray[np.bool_]:
        """Which entries of `users` are the first of their user, [users]: all, unless users have several episodes."""
        return _frozen(begins_of(self.user_keys))

    @property
    def people(self) -> int:
        """Number of distinct users; fewer than entries of `users` if some have several episodes."""
        return int(np.count_nonzero(self.first_episodes))

    @property
    def independent(self) -> int:
        """Number of distinct keys: of clusters, or of users if there are none."""
        return int(np.count_nonzero(self.begins))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of steps of each user, [users]."""
        return _frozen(np.diff(self.starts))

    @cached_property
    def user_of_row(self) -> NDArray[np.int64]:
        """Index of the user of each row, [rows]."""
        return _frozen(np.repeat(np.arange(len(self.users)), self.lengths))

    @cached_property
    def is_last(self) -> NDArray[np.bool_]:
        """Whether a row is the last of its user, [rows]; the next state of any other row is in the row below."""
        last = np.zeros(len(self), dtype=bool)
        last[self.starts[1:] - 1] = True
        return _frozen(last)

    @cached_property
    def gaps(self) -> int:
        """Number of rows that are followed by a skipped step of their user."""
        following = ~self.is_last[:-1]
        return int((np.diff(self.step)[following] != 1).sum())

    @property
    def has_gaps(self) -> bool:
        """Whether any user skips a step."""
        return self.gaps > 0

    @cached_property
    def first_step(self) -> int:
        """The campaign's first step number."""
        return int(self.step.min())

    @cached_property
    def campaign_steps(self) -> int:
        """Number of steps of the campaign, from the first step number seen to the last."""
        return int(self.step.max()) - self.first_step + 1

    def sums_by_user(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum a value over each trajectory: [rows] -> [users]."""
        return np.add.reduceat(values, self.starts[:-1])

    def trajectory(self, user: int) -> Log:
        """The rows of one user (by index), as views."""
        return self._slice(slice(user, user + 1))

    def batches(self, users: int) -> Iterator[Log]:
        """Batches of the log with so many users each, as views."""
        for first in range(0, len(self.users), users):
            yield self._slice(slice(first, min(first + users, len(self.users))))

    def select(self, chosen: NDArray[np.bool_]) -> Log:
        """The log of the chosen users, [users]."""
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64)
        rows = np.flatnonzero(np.repeat(chosen, self.lengths))
        return self._part(np.flatnonzero(chosen), starts, rows)

    def grouped(self, group: NDArray[np.integer[Any]]) -> Iterator[Log]:
        """The log of each group of users, group [users], in ascending order of groups; users keep their order."""
        order = np.argsort(group, kind="stable")
        together = self.reordered(order)
        edges = np.flatnonzero(np.diff(group[order])) + 1
        for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(order)], strict=True):
            yield together._slice(slice(first, last))

    def reordered(self, order: NDArray[np.int64]) -> Log:
        """The log with its users in another order, [users]."""
        lengths = self.lengths[order]
        starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
        rows = np.repeat(self.starts[:-1][order] - starts[:-1], lengths) + np.arange(starts[-1])
        return self._part(order, starts, rows)

    def _slice(self, users: slice) -> Log:
        starts = self.starts[users.start : users.stop + 1]
        return self._part(users, starts - starts[0], slice(int(starts[0]), int(starts[-1])))

    def _part(
        self, users: slice | NDArray[np.int64], starts: NDArray[np.int64], rows: slice | NDArray[np.int64]
    ) -> Log:
        return replace(
            self,
            users=self.users[users] if isinstance(users, slice) else self.users.gather(users),
            clusters=None if self.clusters is None else self.clusters[users],
            starts=starts,
            step=self.step[rows],
            action=self.action[rows],
            propensity=self.propensity[rows],
            reward=self.reward[rows],
            cost=self.cost[rows],
            features=self.features.rows(rows),
            further=tuple((name, values[rows]) for name, values in self.further),
            charged=tuple((name, values[rows]) for name, values in self.charged),
            eligible=None if self.eligible is None else self.eligible[rows],
        )


def begins_of(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which keys differ from the one before, [users]."""
    begins = np.ones(len(keys), dtype=bool)
    begins[1:] = keys[1:] != keys[:-1]
    return begins


def _episodes(people: int, episodes: int) -> str:
    return f"{people:,} users in {episodes:,} episodes"


def _frozen(array: NDArray[_Number]) -> NDArray[_Number]:
    """The same array, made read-only."""
    array.flags.writeable = False
    return array


def join_logs(parts: Sequence[Log]) -> Log:
    """One log of all parts (at least one, read against the same schema), its users sorted by cluster and id."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    users = pl.concat([part.users for part in parts])
    # Stable, so that the episodes of a user keep their order.
    clusters = None if first.clusters is None else np.concatenate([part.keys for part in parts])
    by = {"user": users} if clusters is None else {"cluster": pl.Series(clusters), "user": users}
    order = pl.DataFrame(by).select(pl.arg_sort_by(*by, maintain_order=True)).to_series().to_numpy()
    lengths = np.concatenate([part.lengths for part in parts])
    begins = np.cumsum(lengths) - lengths
    starts = np.append(0, np.cumsum(lengths[order]))
    # For each row: its user's first row in the concatenated parts, plus its position within the user.
    rows = np.repeat(begins[order] - starts[:-1], lengths[order]) + np.arange(starts[-1])
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])[rows]
        for name in ("step", "action", "propensity", "reward", "cost")
    }
    numeric = np.concatenate([part.features.numeric.T for part in parts], axis=1)[:, rows].T
    codes = np.concatenate([part.features.codes.T for part in parts], axis=1)[:, rows].T
    eligible = None
    if first.eligible is not None:
        eligible = np.concatenate([part.eligible for part in parts if part.eligible is not None])[rows]
    return replace(
        first,
        eligible=eligible,
        clusters=None if clusters is None else clusters[order],
        users=users.gather(order),
        starts=starts,
        features=replace(first.features, numeric=numeric, codes=codes),
        **columns,
    )


SHARES = (0.5, 0.1, 0.4)
"""Shares of users for train, tune and check. A certificate's bound narrows with more check users: on finite campaigns
of 6,000 users, plans with 40 % check users spend a hundredth more of the budget than with 30 %, which earns more than
the smaller training fold loses."""


def split(log: Log, parts: Sequence[float] = SHARES, seed: int = 0) -> tuple[Log, ...]:
    """Split a log by user into folds with about these shares; by default train, tune and check.

    The fold of a user does not depend on the order of rows, the files or the other users.
    """
    fold = split_fold(log.keys, parts, seed)
    folds = tuple(log.select(fold == number) for number in range(len(parts)))
    for number, part in enumerate(folds):
        if not len(part.users):
            raise UsageError(
                f"fold {number + 1} of {len(parts)} has none of the {len(log.users)} users; use a log with more users"
            )
    return folds


def split_fold(keys: NDArray[np.uint64], parts: Sequence[float] = SHARES, seed: int = 0) -> NDArray[np.int64]:
    """The fold of each user, [users], from the user's key alone."""
    if not all(part > 0 for part in parts) or abs(sum(parts) - 1) > 1e-9:
        raise UsageError(f"the parts of a split must be positive and sum to 1, not {tuple(parts)}")
    return np.searchsorted(np.cumsum(parts)[:-1], fraction(keys, "fold", seed), side="right")

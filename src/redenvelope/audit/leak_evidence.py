"""What columns are held against: outcomes less what action, step and the row before tell, and the draws of actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.cells import Cells, category_cells, number_cells
from redenvelope.audit.foresight import residuals
from redenvelope.audit.groups import ROUNDING
from redenvelope.audit.lottery import Lottery, lottery
from redenvelope.chance import fold, fraction
from redenvelope.log.log import Log

__all__ = ["FEWEST_USERS", "Column", "Evidence", "leak_sample"]

FloatArray = NDArray[np.float64]
Index = NDArray[np.int64]

FEWEST_USERS = 200
"""Of fewer nothing is said: a share that is told on users apart means nothing with so few."""

_ROWS = 100_000  # about: a leak is plain in far fewer, and the audit of a million rows stays a matter of seconds
_FOLDS = 5
_ACTIONS = 50  # the most frequent; all others are taken together
_LAST_DIGITS = 1e-6  # of numbers of 32 bits
_FOLLOWING = 0.2  # of the rows: from this share on it is the row before that a column is compared with


@dataclass(frozen=True, eq=False)
class Column:
    """One feature in cells."""

    name: str
    static: bool
    cells: Cells
    """Of all rows."""
    change: Cells | None
    """Of the difference from the row before, for rows that have one; None for categories and static features."""


def leak_sample(log: Log, rows: int) -> Log | None:
    """The users of a part who stand for a log of so many rows, chosen by their ids; None where there is none."""
    chosen = fraction(log.keys, "leaks", 0) < _ROWS / rows
    return log if chosen.all() else log.select(chosen) if chosen.any() else None


@dataclass(frozen=True, eq=False)
class Evidence:
    """A log, or the users who stand for it."""

    log: Log

    @cached_property
    def fold(self) -> Index:
        """By user: what is told is measured on users of other folds than those it is learned from, [rows]."""
        return np.repeat(fold(self.log.keys, _FOLDS, "leak folds", seed=0), self.log.lengths)

    @property
    def folds(self) -> int:
        """Number of folds."""
        return _FOLDS

    @cached_property
    def step(self) -> Index:
        """From 0, [rows]."""
        return (self.log.step - self.log.first_step).astype(np.int64)

    @cached_property
    def action(self) -> Index:
        """[rows]"""
        counts = np.bincount(self.log.action)
        if len(counts) <= _ACTIONS:
            return self.log.action.astype(np.int64)
        place = np.full(len(counts), _ACTIONS, dtype=np.int64)
        place[np.argsort(-counts, kind="stable")[:_ACTIONS]] = np.arange(_ACTIONS)
        return place[self.log.action]

    @cached_property
    def following(self) -> Index:
        """Rows that have a row before."""
        first = np.zeros(len(self.log), dtype=bool)
        first[self.log.starts[:-1]] = True
        return np.flatnonzero(~first)

    @property
    def has_past(self) -> bool:
        """Whether enough rows have a row before to compare with."""
        return len(self.following) >= max(FEWEST_USERS, _FOLLOWING * len(self.log))

    @property
    def drawn(self) -> bool:
        """Whether the propensities are those of the draws, and not made of the very columns in question."""
        return self.log.propensity_source == "logged"

    @cached_property
    def draws(self) -> Lottery:
        """Of all rows."""
        log = self.log
        # Rare actions are one together: what was in the draw of each is then not asked.
        few = len(log.catalogue) <= _ACTIONS
        eligible = log.eligible if few else None
        return lottery(self.action, log.propensity, self.step, log.outcomes, self.fold, _FOLDS, eligible)

    @cached_property
    def later_draws(self) -> Lottery:
        """Of the rows that have a row before."""
        return self.draws.at(self.following)

    @cached_property
    def outcomes(self) -> FloatArray:
        """Less their means by step, [outcomes, rows]."""
        counts = np.maximum(np.bincount(self.step), 1)
        return np.stack([row - (np.bincount(self.step, weights=row) / counts)[self.step] for row in self.log.outcomes])

    @cached_property
    def left(self) -> FloatArray:
        """What action and step leave of the outcomes, [outcomes, rows]."""
        cell = self.step * len(self.draws.shares) + self.action
        weights = self.draws.weights  # whoever got an action: its mean is not to take away what a column tells
        totals = np.bincount(cell, weights=weights)
        totals[totals == 0] = 1.0
        rests = []
        for row in self.log.outcomes:
            rest = row - (np.bincount(cell, weights=weights * row) / totals)[cell]
            # Where action and step tell an outcome, what they leave is rounding, and there is nothing to explain.
            rests.append(rest if float(rest @ rest) > ROUNDING * float(row @ row) else np.zeros_like(rest))
        return np.stack(rests)

    @cached_property
    def later_left(self) -> FloatArray:
        """What the outcomes of the row before leave of that, [outcomes, following rows]."""
        here, before = self.following, self.following - 1
        known = [number_cells(row[before].astype(np.float32)) for row in self.log.outcomes]
        rest = []
        for row in self.left:
            values = row[here]
            for cells in known:
                values = residuals(values, cells, self.fold[here], _FOLDS)
            rest.append(values)
        return np.stack(rest)

    def columns(self) -> Iterator[Column]:
        """The features, in cells."""
        features, here = self.log.features, self.following
        for place, name in enumerate(features.numeric_names):
            values, static = features.numeric[:, place], name in features.static
            change = None
            if not static and len(here):
                change = number_cells(_change(values, here))
            yield Column(name, static, number_cells(values), change)
        for place, name in enumerate(features.category_names):
            cells = category_cells(features.codes[:, place], len(features.labels[place]))
            yield Column(name, name in features.static, cells, None)


def _change(values: NDArray[np.float32], here: Index) -> NDArray[np.float32]:
    """The difference of some rows from the row before, [rows]; what is rounding beside the usual value is none."""
    change = np.asarray(values[here] - values[here - 1])
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    usual = float(np.median(sizes)) if len(sizes) else 0.0
    # A sum from which a term is taken away again remembers the term in its last digits.
    change[np.abs(change) <= _LAST_DIGITS * usual] = 0.0
    return change

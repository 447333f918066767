"""Tests of randomisation: given the propensities, nothing known before a draw can depend on the drawn action.

Given all that was known, 1/propensity of an action (0 where another was drawn) has mean 1 over the rows in which it was
eligible. So the sum over these rows of (1/propensity − 1) times anything known before has mean zero, and a user's rows
add no covariance, because each draw is new. If a column depends on the action all the same, it was recorded after the
draw, or the logged propensities are not those that were used.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.audit.statistics import Cells, number_cells
from redenvelope.log.log import Log
from redenvelope.log.propensity import FOLDS, fit_assignment, fold_of_rows
from redenvelope.randomness import fraction

_FEW = 20  # rows; with fewer, calibration of an action's propensities at a step is unknown
_PRIOR = 2.0  # rows added to every cell, so that a handful of rows counts for little
_SEEN = 5.0  # standard errors; the share of an effect on the outcome that may be zero is meaningless
_CORRELATED = 2.0  # factor by which the variance of a sum of dependent squares may exceed that of independent ones


@dataclass(frozen=True)
class Moved:
    """Whether a column depends on the action as a function of the outcome would."""

    share: float
    """The difference between actions, as a share of that of such a column: 1 for a copy of the outcome, noisy or not; 0
    for what was known before."""
    error: float
    """Standard error of the share; infinite if the action has no visible effect on the outcome."""
    z: float
    """Statistic of the test that actions do not differ, standard normal without a difference."""


@dataclass(frozen=True, eq=False)
class Lottery:
    """The draws of actions in some rows, with their outcomes."""

    action: IntArray
    """Drawn actions, [rows]."""
    weights: FloatArray
    """1/propensity, calibrated by action and step, [rows]."""
    shares: FloatArray
    """Frequency of each action, [actions]."""
    outcomes: tuple[Cells, ...]
    """Each outcome in cells."""
    fold: IntArray
    """Fold of each row's user, [rows]; what a leak would look like is learned on the other folds."""
    folds: int
    eligible: NDArray[np.bool_] | None = None
    """Which actions were eligible in each row, [rows, actions]; None if all."""

    def at(self, rows: IntArray) -> Lottery:
        """The draws of some rows."""
        outcomes = tuple(cells.at(rows) for cells in self.outcomes)
        eligible = None if self.eligible is None else self.eligible[rows]
        drawn = (self.action[rows], self.weights[rows], self.shares)
        return Lottery(*drawn, outcomes, self.fold[rows], self.folds, eligible)

    def moved(self, column: Cells, outcome: int) -> Moved:
        """Whether a column, binned in cells, depends on the action as if it was computed from an outcome."""
        came = self.outcomes[outcome]
        together = self._counts(column.beside(came)).reshape(self.folds, column.count, came.count)
        drawn, squares = self._drawn(column)
        came_drawn, came_squares = self._drawn(came)
        fair, came_fair = self._fair(column), self._fair(came)
        signal = whole = noise = whole_noise = 0.0
        for own in range(self.folds):
            mine, others = together[own], together.sum(axis=0) - together[own]
            shown = self._shown(others, came_drawn.sum(axis=0) - came_drawn[own])
            given = mine / np.maximum(mine.sum(axis=0), 1.0)  # the column's cells given each outcome, [cells, outcomes]
            expected = given.T @ shown
            signal += float((self.shares * shown * (drawn[own] - fair[own])).sum())
            noise += float(((self.shares * shown) ** 2 * squares[own]).sum())
            whole += float((self.shares * expected * (came_drawn[own] - came_fair[own])).sum())
            whole_noise += float(((self.shares * expected) ** 2 * came_squares[own]).sum())
        if not noise > 0:
            return Moved(0.0, np.inf, 0.0)
        z = signal / float(np.sqrt(noise))
        if whole <= _SEEN * float(np.sqrt(whole_noise)):
            return Moved(0.0, np.inf, z)
        share = signal / whole
        return Moved(share, float(np.sqrt(noise + share**2 * whole_noise)) / whole, z)

    def departure(self, column: Cells) -> tuple[float, float]:
        """How far the odds of actions, given the cells of a column, are from the logged ones: size and z.

        The size is the root mean square of the relative difference, with chance subtracted.
        """
        rows = len(self.action)
        drawn, squares = (table.sum(axis=0) for table in self._drawn(column))
        counts = self._fair(column).sum(axis=0)
        seen = np.maximum(counts, 1.0)
        # If an action was never drawn in a cell, the cell has no information on its variance, so the whole log's is
        # used.
        usual = np.maximum((squares - drawn).sum(axis=0) / np.maximum(counts.sum(axis=0), 1.0), 0.0)
        chance = self.shares * np.maximum(squares - drawn, counts * usual) / seen
        found = self.shares * (drawn - counts) ** 2 / seen
        excess = float((found - chance).sum())
        deviation = float(np.sqrt(2 * _CORRELATED * (chance**2).sum()))
        return float(np.sqrt(max(excess, 0.0) / rows)), excess / deviation if deviation > 0 else 0.0

    def _shown(self, together: FloatArray, drawn: FloatArray) -> FloatArray:
        """How the action would change the odds of each cell of a column made from the outcome, [cells, actions]:
        `together` [cells, outcomes] counts rows, `drawn` [outcomes, actions] sums weights of drawn actions."""
        totals = drawn.sum(axis=0)
        odds = drawn / np.where(totals > 0, totals, 1.0)
        effects = odds - (odds @ self.shares)[:, None]
        given = together / (together.sum(axis=0) + _PRIOR)
        common = (together.sum(axis=1) + _PRIOR) / max(together.sum(), 1.0)
        shown = (given @ effects) / common[:, None]
        # Given what was known, draws average this to zero over actions.
        return np.asarray(shown - (shown @ self.shares)[:, None])

    def _drawn(self, cells: Cells) -> tuple[FloatArray, FloatArray]:
        """Sums of weights and of squared weights of drawn actions by cell, each [folds, cells, actions]."""
        actions = len(self.shares)
        place = (self.fold * cells.count + cells.of_row) * actions + self.action
        shape = (self.folds, cells.count, actions)
        size = int(np.prod(shape))
        first, second = (
            np.bincount(place, weights=weights, minlength=size).astype(np.float64, copy=False).reshape(shape)
            for weights in (self.weights, self.weights**2)
        )
        return first, second

    def _fair(self, cells: Cells) -> FloatArray:
        """Expected sums of the weights of drawn actions by cell: the number of rows in which each action was eligible,
        [folds, cells, actions or 1]."""
        if self.eligible is None:
            return self._counts(cells).astype(np.float64).reshape(self.folds, cells.count, 1)
        place, size = self.fold * cells.count + cells.of_row, self.folds * cells.count
        columns = [np.bincount(place, weights=column, minlength=size) for column in self.eligible.T]
        table: FloatArray = np.stack(columns, axis=1).astype(np.float64)
        return table.reshape(self.folds, cells.count, -1)

    def _counts(self, cells: Cells) -> FloatArray:
        place = self.fold * cells.count + cells.of_row
        return np.bincount(place, minlength=self.folds * cells.count).astype(np.float64)


def lottery(
    action: IntArray,
    propensity: FloatArray,
    step: IntArray,
    outcomes: FloatArray,
    fold: IntArray,
    folds: int,
    eligible: NDArray[np.bool_] | None = None,
) -> Lottery:
    """The draws of rows, from action, propensity, step (from 0) and fold [rows], outcomes [outcomes, rows], and
    eligible actions [rows, actions]."""
    listed = None if eligible is None else eligible[:, : int(action.max()) + 1]
    shares = np.bincount(action) / len(action)
    weights = _adding_up(action, 1.0 / propensity, step, len(shares), listed)
    cells = tuple(number_cells(row.astype(np.float32)) for row in outcomes)
    return Lottery(action, weights, shares, cells, fold, folds, listed)


def _adding_up(
    action: IntArray, weights: FloatArray, step: IntArray, actions: int, eligible: NDArray[np.bool_] | None
) -> FloatArray:
    """Weights that add up to the rows of each step for every action: an error common to all rows is no column's."""
    steps = int(step.max()) + 1
    place, size = step * actions + action, steps * actions
    totals = np.bincount(place, weights=weights, minlength=size).reshape(steps, actions)
    counts = np.bincount(place, minlength=size).reshape(steps, actions)
    rows = np.bincount(step, minlength=steps)[:, None].astype(np.float64)
    if eligible is not None:
        rows = np.stack([np.bincount(step, weights=column, minlength=steps) for column in eligible.T], axis=1)
    overall = totals.sum(axis=0) / np.maximum(rows.sum(axis=0), 1.0)
    ratio = np.where(counts >= _FEW, totals / np.maximum(rows, 1), overall)
    return np.asarray(weights / ratio.ravel()[place])


# Whether draws depend on the user's previous step beyond their propensities, which is a sign of hidden confounding.

_SURE_OF_PAST, _LEAST_DEPARTURE = 6.0, 0.05


@dataclass(frozen=True)
class PastDependence:
    """How far the odds of actions, given the user's previous step, are from the logged ones."""

    column: str
    """The action, the reward or the cost of the previous step."""
    size: float
    """Root mean square of the relative difference, with chance subtracted."""
    z: float

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the dependence is significant and large enough to matter."""
        return self.z > _SURE_OF_PAST and self.size > _LEAST_DEPARTURE


def past_dependence(log: Log) -> tuple[PastDependence, ...]:
    """Dependence of draws on the user's previous action, reward and cost; empty if no user has two steps."""
    later = np.ones(len(log), dtype=bool)
    later[log.starts[:-1]] = False
    rows = np.flatnonzero(later)
    if not len(rows):
        return ()
    eligible = None if log.eligible is None else log.eligible[rows]
    step, fold = (log.step - log.first_step)[rows].astype(np.int64), np.zeros(len(rows), dtype=np.int64)
    lots = lottery(
        log.action[rows].astype(np.int64), log.propensity[rows], step, log.outcomes[:, rows], fold, 1, eligible
    )
    # By step, because a calendar makes both this action and the previous one likely, and is no confounder.
    calendar, before = Cells(step, int(step.max()) + 1), rows - 1
    columns = {
        "action": Cells(log.action[before].astype(np.int64), len(log.catalogue)),
        "reward": number_cells(log.reward[before].astype(np.float32)),
        "cost": number_cells(log.cost[before].astype(np.float32)),
    }
    found = ((name, lots.departure(cells.beside(calendar))) for name, cells in columns.items())
    return tuple(PastDependence(name, size, z) for name, (size, z) in found)


# Whether features predict the action on held-out users, so that the assignment depends on them.


@dataclass(frozen=True)
class AssignmentEvidence:
    """How well features predict the action, compared with its frequency at the step."""

    gain: float
    """Mean gain in log-likelihood, in nats per row."""
    standard_error: float
    """Standard error over users."""

    @property
    def looks_random(self) -> bool:
        """Whether the gain is not significant, or negligible."""
        return self.gain < 2 * self.standard_error or self.gain < 1e-3


def evidence_sample(log: Log, users: int, most: int) -> Log | None:
    """A part's share of a sample of `most` of the log's `users` users, by user id; None if empty."""
    chosen = one_of_each(log) & (fraction(log.keys, "assignment evidence", 0) < most / users)
    return log if chosen.all() else log.select(chosen) if chosen.any() else None


def one_of_each(log: Log) -> NDArray[np.bool_]:
    """One user per cluster, [users], or all users if there are no clusters: rows drawn together are a single draw."""
    return log.begins if log.clusters is not None else np.ones(len(log.users), dtype=bool)


def assignment_evidence(log: Log) -> AssignmentEvidence:
    """Compare, cross-fitted, the features' prediction of the action with its frequency at each step."""
    if len(np.unique(fold_of_rows(log))) < 2:
        return AssignmentEvidence(0.0, float("inf"))
    explained = np.log(fit_assignment(log).propensities(log))
    gains = log.sums_by_user(explained - np.log(_frequencies(log))) / log.lengths.mean()
    return AssignmentEvidence(float(gains.mean()), float(gains.std() / np.sqrt(len(gains))))


def _frequencies(log: Log) -> NDArray[np.float64]:
    """Frequency of the logged action at its step among other folds' users, each action counted once more, [rows]."""
    fold = fold_of_rows(log)
    step = log.step - log.first_step
    shape = (FOLDS, log.campaign_steps, len(log.catalogue))
    own = np.bincount(np.ravel_multi_index((fold, step, log.action), shape), minlength=int(np.prod(shape)))
    counts = own.reshape(shape)
    others = counts.sum(axis=0) - counts + 1
    return np.asarray((others / others.sum(axis=2, keepdims=True))[fold, step, log.action])


# Whether actions were drawn per user, or once for all users of a village, a household or a store.
#
# If two users are drawn for independently, the second gets the first one's action with its own propensity, so the
# weights 1/p of second users with the same action add up to the number of pairs. If they are drawn together, all second
# users have the same action. The position between these two extremes is the correlation of draws within a group.


@dataclass(frozen=True)
class SharedDraws:
    """A column whose values determine shared draws: users with equal values got the same actions, beyond chance."""

    column: str
    groups: int
    """Number of values with at least two users."""
    share: float
    """1 if all users of a value always get the same action, 0 if each is drawn for independently."""
    z: float


_LEAST_GROUPS = 20
_LEAST_Z = 5.0  # several columns are tested; chance alone exceeds this in none of them
_LEAST_SHARE = 0.2
_LEAST_SHARE_ESTIMATED = 0.8  # estimated propensities know no rule, so only a plainly shared draw is reported


def shared_draws(log: Log, excluded: Collection[str] = ()) -> SharedDraws | None:
    """The static column whose users most clearly share draws; among similar ones, the one with the fewest values."""
    names = [name for name in log.features.names if name in log.features.static and name not in excluded]
    estimated = log.propensity_source == "estimated"
    least = _LEAST_SHARE_ESTIMATED if estimated else _LEAST_SHARE
    action, step = log.action.astype(np.int64), (log.step - log.first_step).astype(np.int64)
    inverse = np.ones(len(log)) if estimated else 1.0 / log.propensity
    weights = _adding_up(action, inverse, step, len(log.catalogue), log.eligible)
    found = [entry for name in names if (entry := _shared(log, name, weights)) is not None]
    plain = [entry for entry in found if entry.z > _LEAST_Z and entry.share > least]
    return max(plain, key=lambda entry: (round(entry.share, 1), -entry.groups), default=None)


def _shared(log: Log, name: str, weights: FloatArray) -> SharedDraws | None:
    value, count = _values(log, name)
    rows = value[log.user_of_row]
    known = rows >= 0
    steps, actions = log.campaign_steps, len(log.catalogue)
    place = rows[known] * steps + (log.step - log.first_step)[known]
    cell, weight = place * actions + log.action[known], weights[known]
    drawn, users = (np.bincount(cell, own, count * steps * actions).reshape(-1, actions) for own in (weight, None))
    size, total = users.sum(axis=1), drawn.sum(axis=1)
    pairs = size * (size - 1)
    seen = (users * drawn).sum(axis=1) - total - pairs
    most = (size - 1) * total - pairs
    # Sum over steps before squaring, because the users of a value may keep their action.
    seen, most, pairs = (figure.reshape(count, steps).sum(axis=1) for figure in (seen, most, pairs))
    groups, spread = int(np.count_nonzero(pairs)), float(np.sqrt((seen**2).sum()))
    if groups < _LEAST_GROUPS or not spread > 0 or not most.sum() > 0:
        return None
    return SharedDraws(name, groups, float(min(seen.sum() / most.sum(), 1.0)), float(seen.sum()) / spread)


def _values(log: Log, name: str) -> tuple[IntArray, int]:
    """The value of each user in a static column, [users], −1 if missing, and the number of values."""
    first, features = log.starts[:-1], log.features
    if name in features.category_names:
        place = features.category_names.index(name)
        return features.codes[first, place].astype(np.int64), len(features.labels[place])
    numbers = features.numeric[first, features.numeric_names.index(name)]
    different, codes = np.unique(numbers, return_inverse=True)
    return np.where(np.isnan(numbers), -1, codes), len(different)

"""Effects of the past that the state does not show: whether outcomes depend on the past (`past_scores`), and how much
(`PastEffects`).

Both are regressions on logged rows without importance weights, so they detect far smaller effects than a comparison of
estimators. Outcomes and columns of the past are first residualised on the state, by step and action. Effects may differ
between users (loyal users acquire a habit and dormant ones tire, with no effect on average), so the columns of the past
are also multiplied by the static columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from redenvelope.arrays import Float32Array, FloatArray, IntArray
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.log.log import Log
from redenvelope.models.dataset import Examples

_MOST_ROWS = 50_000  # enough to detect a history that matters
_MOST_CODES = 30  # of a static category; rarer codes share the constant
_ROWS_PER_COLUMN = 5  # fewest rows of a step and action per column
_MOST_PRODUCTS = 150  # of two columns: interactions and curvature must not look like an effect of history
_MOST_PAST = 120
"""Products of past and static columns are added up to this many columns."""
_MOST_ACTIONS = 6
"""With more actions, an effect of the past depends on the rank of an action, not on each action by itself."""
_LAGS = (2, 3)
_PLAIN_ERRORS, _PLAIN_SHARE = 10.0, 0.004
_RIDGE = 1e-3  # of the columns' own variance, for collinear columns


# Columns that describe the past.


def lagged(log: Log) -> Float32Array:
    """Actions and outcomes two and three steps before each row, [rows, columns]; zero where there was no such step.

    The history holds only the last step and sums; a cost that is booked later depends on a single earlier step.
    """
    position = np.arange(len(log)) - np.repeat(log.starts[:-1], log.lengths)
    spread = np.sqrt((log.measured**2).mean(axis=1))
    outcomes = log.measured / np.where(spread > 0, spread, 1.0)[:, None]
    rank = log.action / max(len(log.catalogue) - 1, 1)
    known = np.stack([log.action > 0, rank, *outcomes], axis=1)
    found = [np.where((position >= lag)[:, None], np.roll(known, lag, axis=0), 0.0) for lag in _LAGS]
    return np.concatenate(found, axis=1, dtype=np.float32)


def static_columns(states: NDArray[np.floating], layout: StateLayout) -> FloatArray:
    """Static numbers, and one column for each frequent code of a static category, [rows, columns]."""
    categories = len(layout.static_categories)
    parts = [np.asarray(states[:, categories : layout.step], dtype=np.float64)]
    for place in range(categories):
        codes, counts = np.unique(states[:, place], return_counts=True)
        frequent = codes[np.argsort(-counts, kind="stable")][:_MOST_CODES]
        parts.append((states[:, place, None] == frequent).astype(np.float64))
    return np.concatenate(parts, axis=1)


def with_products(past: NDArray[np.floating], static: FloatArray) -> FloatArray:
    """Columns of the past, then their products with as many static columns as `_MOST_PAST` allows, [rows, columns].

    Indicators come first, because effects differ between groups of users more often than along a number.
    """
    most = max(_MOST_PAST // max(past.shape[1], 1) - 1, 0)
    order = np.argsort(~np.isin(static, (0.0, 1.0)).all(axis=0), kind="stable")[:most]
    products = (static[:, order, None] * past[:, None, :]).reshape(len(past), -1)
    return np.concatenate([past, products], axis=1, dtype=np.float64)


# The score test: whether outcomes depend on the history at all.


@dataclass(frozen=True)
class PastScore:
    """How strongly an outcome depends on the history beyond the state."""

    errors: float
    """The joint score of all columns in standard errors: (χ² − columns) / √(2 · columns)."""
    share: float
    """Approximate share of the outcome's residual variance that the history explains."""

    @property
    def is_plain(self) -> bool:
        """Whether the history clearly matters, beyond any curvature that products of columns do not remove.

        The two limits were chosen on at most eight campaigns of each of nine families; on others, `benchmarks/past.py`
        counts how often habits and late costs are found, and how often a complete state raises a false alarm.
        """
        return self.errors > _PLAIN_ERRORS and self.share > _PLAIN_SHARE


def past_scores(examples: Examples) -> tuple[PastScore, ...]:
    """The score test of each outcome, [outcomes], on states that contain the history, clustered by user.

    It takes the clearer result of the history alone and the history with products, which dilute effects without them.
    """
    # The first users of the log, which is sorted by user ids.
    users = int(np.searchsorted(examples.starts, min(len(examples), _MOST_ROWS), side="right")) - 1
    starts = examples.starts[: users + 1]
    rows = slice(0, int(starts[-1]))
    states, layout = np.asarray(examples.states[rows], dtype=np.float64), examples.layout
    alone = states[:, layout.history]
    past = with_products(alone, static_columns(states, layout))
    cell = examples.step[rows] * examples.actions + examples.action[rows]
    left = _freed(states, layout, cell, np.concatenate([examples.outcomes[:, rows].T, past], axis=1), told=False)
    outcomes, widths = len(examples.outcomes), (alone.shape[1], past.shape[1])
    return tuple(
        max(
            (_score(left[:, outcome], left[:, outcomes : outcomes + width], starts) for width in widths),
            key=lambda score: (score.is_plain, score.errors),
        )
        for outcome in range(outcomes)
    )


def _freed(
    states: NDArray[np.floating],
    layout: StateLayout,
    cell: NDArray[np.integer],
    left: FloatArray,
    told: bool,
    further: FloatArray | None = None,
) -> FloatArray:
    """Residuals of the columns `left` [rows, any] from regressions on the state, one per cell [rows]; in place.

    `told` says whether the state includes its history; `further` is one more column of the state, [rows].
    """
    for own in np.unique(cell):
        rows = np.flatnonzero(cell == own)
        # Cell by cell: with their products, the columns of all rows would take hundreds of megabytes.
        columns, plain = _columns(states[rows], layout, told, None if further is None else further[rows])
        _free_of(columns, plain, left, rows)
    return left


def _columns(
    states: NDArray[np.floating], layout: StateLayout, told: bool, further: FloatArray | None
) -> tuple[FloatArray, int]:
    """Regressors: a constant, the state with one column per category code, and products of columns, [rows, columns];
    and the number of columns before the products."""
    static = static_columns(states, layout)
    last = layout.width if told else layout.history.start
    first = [] if further is None else [further[:, None]]
    plain = np.concatenate([*first, states[:, layout.step : last], static], axis=1, dtype=np.float64)
    # Dynamic columns come first: their products with each other and with static columns.
    pairs = np.stack(np.triu_indices(plain.shape[1]))[:, :_MOST_PRODUCTS]
    made = np.concatenate([np.ones((len(plain), 1)), plain, plain[:, pairs[0]] * plain[:, pairs[1]]], axis=1)
    return made, 1 + plain.shape[1]


def _free_of(columns: FloatArray, plain: int, left: FloatArray, rows: IntArray) -> None:
    """Replace some rows of `left` [all rows, any] in place by residuals from a regression on `columns` [some rows,
    columns]. With few rows, products are dropped; with too few for the `plain` columns, residuals are zero."""
    width = min(len(rows) // _ROWS_PER_COLUMN, columns.shape[1])
    if width < plain:
        left[rows] = 0.0
        return
    own = columns[:, :width]
    squares = own.T @ own
    squares[np.diag_indices_from(squares)] += _RIDGE * (1 + squares.diagonal() / len(rows))
    left[rows] -= own @ np.linalg.solve(squares, own.T @ left[rows])


def _score(outcome: FloatArray, past: FloatArray, starts: NDArray[np.int64]) -> PastScore:
    """The score of the residuals of an outcome [rows] and of the past [rows, columns]."""
    spread = float((outcome**2).sum())
    squares = (past**2).sum(axis=0)
    varies = squares > 1e-6 * max(float(squares.max(initial=0.0)), 1e-12)
    if not spread or not varies.any():
        return PastScore(0.0, 0.0)
    past = past[:, varies] / np.sqrt(squares[varies])
    scores = _added(past, outcome, starts[:-1])
    # Collinear columns count as one direction.
    sizes, directions = np.linalg.eigh(scores.T @ scores)
    sure = sizes > 1e-8 * sizes[-1]
    if not sure.any():  # no residual where the history varies
        return PastScore(0.0, 0.0)
    along = directions[:, sure].T @ scores.sum(axis=0)
    square, count = float((along**2 / sizes[sure]).sum()), int(sure.sum())
    weights, axes = np.linalg.eigh(past.T @ past)
    firm = weights > 1e-8 * weights[-1]
    explained = float(((axes[:, firm].T @ (past.T @ outcome)) ** 2 / weights[firm]).sum())
    return PastScore(float((square - count) / np.sqrt(2 * count)), explained / spread)


# Effects: how much outcomes depend on the past, with standard errors.


@dataclass(frozen=True, eq=False)
class PastEffects:
    """Linear effects of the past on outcomes beyond the state, separately for each kind of action.

    Regressors [rows, width] are the products of a row's kinds of action with the columns of its past. They are never
    materialised, because a row has few kinds and most products are zero.
    """

    keys: NDArray[np.uint64]
    """Keys of the users they were learned from, [users]."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    past: Float32Array
    """Columns of the past with their products, [rows, columns]."""
    kinds: Float32Array
    """Kind of each row's action, [rows, kinds]: one column per action, or a constant and the action's rank."""
    freed: Float32Array
    """Residuals of the columns of the past given the state, [rows, columns]."""
    scale: FloatArray
    """Inverse root mean square of each regressor, [width = kinds · columns]; 0 if it does not vary."""
    effects: FloatArray
    """Coefficients of regressors scaled to unit size, [outcomes, width]."""
    covariance: FloatArray
    """Covariance of the effects, clustered by user or cluster, [outcomes, width, width]."""

    @property
    def is_known(self) -> bool:
        """Whether there were enough rows for any regression."""
        return bool(self.scale.any())

    @classmethod
    def of(cls, log: Log, states: Float32Array, layout: StateLayout, past: NDArray[np.floating]) -> PastEffects:
        """Estimate the effects from a log with its states [rows, width] and columns of its past [rows, columns]."""
        columns, outcomes = with_products(past, static_columns(states, layout)), len(log.outcomes)
        actions, rank = len(log.catalogue), log.action / max(len(log.catalogue) - 1, 1)
        left, known = np.concatenate([log.outcomes.T, columns], axis=1), columns.astype(np.float32)
        del columns  # all of these are large
        if actions <= _MOST_ACTIONS:
            kinds, cell = np.eye(actions)[log.action], log.step * actions + log.action
            _freed(states, layout, cell, left, told=True)
        else:
            kinds = np.stack([np.ones(len(log)), rank], axis=1)
            _freed(states, layout, log.step, left, told=True, further=rank)
        left[log.starts[:-1]] = 0.0  # at a user's first step nothing has happened yet
        freed, left = np.ascontiguousarray(left[:, outcomes:]), left[:, :outcomes].copy()
        squares = _squares(kinds, freed) / len(log)
        size = np.sqrt(np.diagonal(squares))
        varies = size > 1e-6 * max(float(size.max()), 1e-12)
        scale = np.where(varies, 1 / np.where(varies, size, 1.0), 0.0)
        unit = scale[:, None] * squares * scale + np.diag(np.where(varies, _RIDGE, 1.0))
        regression = _Regression(kinds, freed, scale, np.linalg.inv(unit), log.starts[:-1][log.begins])
        found = [regression.of(left[:, outcome]) for outcome in range(outcomes)]
        effects, covariance = (np.stack(each) for each in zip(*found, strict=True))
        kind, free = (each.astype(np.float32) for each in (kinds, freed))
        return cls(log.keys, log.starts, known, kind, free, scale, effects, covariance)

    def rows_of(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """The rows of some of the users, [rows]."""
        return np.repeat(np.isin(self.keys, keys), np.diff(self.starts))

    def weighed(self, rows: IntArray, weights: FloatArray) -> FloatArray:
        """Weighted sums [width, prices] of the regressors of some rows [some], with weights [some, prices]."""
        return self.scale[:, None] * _summed(self.kinds[rows], self.freed[rows], weights)

    def moved(self, shift: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Effect on outcomes of a shift of the past [width, prices], and its standard error: [outcomes, prices]."""
        variance = np.einsum("wp,owv,vp->op", shift, self.covariance, shift, optimize=True)
        return self.effects @ shift, np.sqrt(np.maximum(variance, 0.0))


@dataclass(frozen=True, eq=False)
class _Regression:
    """A regression on the regressors [rows, width] of `PastEffects`: `inverse` [width, width] inverts their scaled Gram
    matrix; independent units (users or clusters) begin at the rows `starts`."""

    kinds: FloatArray
    freed: FloatArray
    scale: FloatArray
    inverse: FloatArray
    starts: NDArray[np.int64]

    def of(self, outcome: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The effects on a residualised outcome [rows], [width], and their covariance [width, width]."""
        rows, used = len(outcome), self.scale > 0
        effects = self.inverse @ (self.scale * _summed(self.kinds, self.freed, outcome[:, None])[:, 0]) / rows
        by_kind = (self.scale * effects).reshape(self.kinds.shape[1], -1)
        left = outcome - ((self.freed @ by_kind.T) * self.kinds).sum(axis=1)
        scores = np.empty((len(self.starts), len(used)))
        for own, kind in zip(np.split(scores, self.kinds.shape[1], axis=1), self.kinds.T, strict=True):
            own[...] = _added(self.freed, kind * left, self.starts)
        spread = self.scale[:, None] * (scores.T @ scores) * self.scale
        covariance = self.inverse @ spread @ self.inverse / rows**2
        # Degrees-of-freedom correction: residuals of a fitted regression are smaller than the errors.
        return np.where(used, effects, 0.0), covariance * (rows / max(rows - int(used.sum()), 1))


def _added(columns: FloatArray, weights: FloatArray, starts: NDArray[np.int64]) -> FloatArray:
    """Weighted sums of columns [rows, any] over the rows from each of `starts` to the next; many of the weights [rows]
    are zero."""
    rows = np.flatnonzero(weights)
    edges = np.append(np.searchsorted(rows, starts), len(rows))
    shape = len(starts), len(columns)
    return np.asarray(csr_array((weights[rows], rows, edges), shape=shape) @ columns)


def _summed(kinds: NDArray[np.floating], freed: NDArray[np.floating], weights: FloatArray) -> FloatArray:
    """Sums over rows of products of kinds [rows, kinds], columns [rows, columns] and weights [rows, prices]:
    [kinds · columns, prices]."""
    parts = []
    for kind in kinds.T:
        own = np.flatnonzero(kind)
        parts.append(freed[own].T @ (kind[own, None] * weights[own]))
    return np.concatenate(parts)


def _squares(kinds: FloatArray, freed: FloatArray) -> FloatArray:
    """The regressors' Gram matrix, [width, width]."""
    count = kinds.shape[1]
    blocks = [[np.zeros((freed.shape[1],) * 2)] * count for _ in range(count)]
    for one in range(count):
        for other in range(one, count):
            both = kinds[:, one] * kinds[:, other]
            own = np.flatnonzero(both)
            if len(own):
                blocks[one][other] = freed[own].T @ (both[own, None] * freed[own])
                blocks[other][one] = blocks[one][other].T
    return np.block(blocks)

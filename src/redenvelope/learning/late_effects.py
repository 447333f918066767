"""Late effects: outcomes of an action that the next state does not show, found in the log and added to the targets.

Bootstrapping from the next state loses whatever that state does not show: a cost that is booked a step later, a habit
without a column. The residuals of later steps (observed minus expected outcomes) reveal it: where the state is
complete, they are independent of earlier actions. So each residual is regressed on the action some steps earlier, with
importance weights towards the policy of each price (the doubly robust multi-step target, decomposed by lag). Only what
held-out users confirm becomes part of a target. The residuals themselves never do: their noise, multiplied by the
weights, would dominate the targets even where the state is complete. A few thousand users suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array, FloatArray, IntArray
from redenvelope.models.dataset import Examples
from redenvelope.models.networks import outcome_names
from redenvelope.randomness import fold, fraction

_MOST_RATIO = 10.0
"""Largest importance ratio of a step: rare paths must not dominate."""
_MOST_COLUMNS = 512
_MOST_USERS = 10_000
"""Most users in the regressions: effects that this many do not confirm are small."""


class Ahead(NamedTuple):
    """Values to go at rows of the log, for the policy at each price."""

    value: Any
    """Of the state, [rows, heads, components]."""
    taken: Any
    """Of the logged action, by networks that were not trained on its user, [rows, heads, components]."""
    chance: Any
    """Probability of the logged action under the policy, [rows, heads]."""


class _Step(NamedTuple):
    """The rows of sampled users at one step, for the step before it."""

    rows: IntArray
    target: Float32Array
    """Their targets, [rows, heads, components]."""
    residuals: Float32Array
    """Residuals 1, 2, … steps later: observed minus expected outcomes, [rows, lags, heads, components]."""


@dataclass(eq=False)
class LateEffects:
    """Computes the targets step by step, from the last but one to the first."""

    examples: Examples
    responses: NDArray[np.float32]
    """Expected outcomes of each row, [rows, outcomes, actions]."""
    lags: int
    """Largest lag; 0 relies on the states alone."""
    discount: float
    seed: int
    found: set[int] = field(default_factory=set)
    """Components with late effects."""
    _next: _Step | None = None

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes with late effects; the entropy bonus is not one."""
        names = outcome_names(self.examples.budgets)
        return tuple(name for place, name in enumerate(names) if place in self.found)

    @cached_property
    def sampled(self) -> NDArray[np.bool_]:
        """Whether a row belongs to a user in the regressions, [rows]."""
        examples, places = self.examples, fraction(self.examples.keys, "late effects asked", self.seed)
        chosen = places * examples.users < _MOST_USERS if self.lags else np.zeros(examples.users, dtype=bool)
        return np.repeat(chosen, np.diff(examples.starts))

    @cached_property
    def half(self) -> IntArray:
        """The half of the users that a row belongs to, 0 or 1, [rows]."""
        return np.repeat(fold(self.examples.keys, 2, "late effects half", self.seed), np.diff(self.examples.starts))

    def targets(self, rows: IntArray, value: Float32Array, ahead: Ahead | None) -> Float32Array:
        """Targets of the values to go of a step's rows [rows], [rows, heads, components].

        `value` is that of the next states of rows that continue, `ahead` further values of the sampled ones among them
        (None where there are none). The value to go of users who left is zero.
        """
        continues = self.examples.continues[rows]
        target = np.zeros((len(rows), *value.shape[1:]), np.float32)
        target[continues] = self.discount * value
        if ahead is None:
            return target
        sampled = np.flatnonzero(self.sampled[rows])
        continuing = continues[sampled]
        lags = min(self.lags, 1 + (0 if self._next is None else self._next.residuals.shape[1]))
        met, known = self._residuals(rows[sampled[continuing]] + 1, ahead, lags)
        late = self._confirmed(rows[sampled[continuing]][known], met[known])
        residuals = np.zeros((len(sampled), *met.shape[1:]), np.float32)
        place = np.flatnonzero(continuing)[known]
        residuals[place] = met[known]
        if late is not None:
            residuals[place] -= late(rows[sampled[place]])
            target[continues] += late(rows[continues]).sum(axis=1)
        self._next = _Step(rows[sampled], target[sampled], residuals)
        return target

    def _residuals(self, after: IntArray, ahead: Ahead, lags: int) -> tuple[Float32Array, NDArray[np.bool_]]:
        """Weighted residuals from the row `after` on, [rows, lags, heads, components], and where they are known."""
        examples = self.examples
        came = np.zeros(ahead.value.shape, np.float32)
        came[..., : len(examples.outcomes)] = examples.outcomes.T[after][:, None]
        known, later = np.ones(len(after), dtype=bool), came[:, None][:, :0]
        if self._next is not None:
            place = np.searchsorted(self._next.rows, after).clip(0, len(self._next.rows) - 1)
            known = self._next.rows[place] == after
            came += self._next.target[place]
            later = self._next.residuals[place][:, : lags - 1]
        ratio = np.minimum(ahead.chance / examples.propensity[after][:, None], _MOST_RATIO).astype(np.float32)
        met = np.concatenate([(came - ahead.taken)[:, None], later], axis=1)
        met *= self.discount * ratio[:, None, :, None]
        return met, known

    def _confirmed(self, rows: IntArray, met: Float32Array) -> Callable[[IntArray], Float32Array] | None:
        """The part of residuals [rows, lags, heads, components] that the actions of `rows` explain, as a function of
        rows; None if they explain nothing."""
        lags, heads, components = met.shape[1:]
        described = _Described.by(self.examples, self.responses, rows)
        kinds = np.swapaxes(met, 2, 3).reshape(len(rows), lags * components, heads)
        credible = credible_means(described.columns(rows), described.leading, kinds, self.half[rows])
        self.found.update(int(kind) % components for kind in np.flatnonzero(credible.confirmed))

        def late(some: IntArray) -> Float32Array:
            means = credible.means(described.columns(some), self.half[some])
            return np.swapaxes(means.reshape(len(some), lags, components, heads), 2, 3)

        return late if credible.confirmed.any() else None


@dataclass(frozen=True, eq=False)
class _Described:
    """Action and state of rows as columns of a regression."""

    examples: Examples
    responses: NDArray[np.float32]
    expected: _Standard
    state: _Standard | None
    """None if there would be too many columns."""

    @classmethod
    def by(cls, examples: Examples, responses: NDArray[np.float32], rows: IntArray) -> _Described:
        """Standardised on these rows."""
        expected = _Standard.of(responses[rows, :, examples.action[rows]])
        # Codes of static categories are not numbers.
        state = _Standard.of(examples.states[rows, len(examples.layout.static_categories) :])
        few = int(state.moving.sum()) * examples.actions <= _MOST_COLUMNS
        return cls(examples, responses, expected, state if few else None)

    @property
    def leading(self) -> int:
        """Number of columns before those of the state."""
        return self.examples.actions * (1 + int(self.expected.moving.sum()))

    def columns(self, rows: IntArray) -> NDArray[np.float32]:
        """For each action a constant and its expected outcomes, then the state, [rows, columns]."""
        examples, action = self.examples, self.examples.action[rows]
        expected = self.expected(self.responses[rows, :, action])
        parts = [np.concatenate([np.ones((len(rows), 1), np.float32), expected], axis=1)]
        if self.state is not None:
            parts.append(self.state(examples.states[rows, len(examples.layout.static_categories) :]))
        taken = np.eye(examples.actions, dtype=np.float32)[action]
        return np.concatenate([(taken[:, :, None] * part[:, None]).reshape(len(rows), -1) for part in parts], axis=1)


class _Standard(NamedTuple):
    """Standardisation of columns; those that never vary are dropped."""

    centre: NDArray[np.float32]
    spread: NDArray[np.float32]
    moving: NDArray[np.bool_]

    @classmethod
    def of(cls, columns: NDArray[np.float32]) -> _Standard:
        """Mean and standard deviation of columns [rows, any]."""
        spread = columns.std(axis=0)
        return cls(columns.mean(axis=0), spread, spread > 1e-6)

    def __call__(self, columns: NDArray[np.float32]) -> NDArray[np.float32]:
        """[rows, any] -> [rows, moving]"""
        return np.asarray((columns - self.centre)[:, self.moving] / self.spread[self.moving], np.float32)


_ERRORS = 3.0
"""Standard errors by which the squared error must fall; by chance this happens about once in several hundred cases."""
_PENALTIES = (np.inf, 0.3)
"""Ridge penalties of the columns after the leading ones, in units of their variance; infinity excludes them."""
_LEAST_PENALTY = 1e-3
_LEAST_ROWS = 20
"""Fewest rows per column."""


class Credible(NamedTuple):
    """Regressions of several kinds of residuals (lag and component); those not confirmed on held-out users are zero."""

    confirmed: NDArray[np.bool_]
    """Which kinds depend on the columns, [kinds]."""
    coefficients: NDArray[np.float32]
    """For rows of each half, learned from the other, [2, width, kinds, series]; zero where not confirmed."""

    def means(self, columns: NDArray[np.float32], half: NDArray[np.int64]) -> NDArray[np.float32]:
        """Predicted means [n, kinds, series] of rows with columns [n, width] in halves [n]."""
        shape = self.coefficients.shape[2:]
        found = np.empty((len(columns), int(np.prod(shape))), np.float32)
        for part in (0, 1):
            found[half == part] = columns[half == part] @ self.coefficients[part].reshape(columns.shape[1], -1)
        return found.reshape(len(columns), *shape)


def credible_means(
    columns: NDArray[np.float32], leading: int, values: NDArray[np.float32], half: NDArray[np.int64]
) -> Credible:
    """Regression of values [n, kinds, series] on columns [n, width], cross-fitted over two halves, [n] of 0 and 1.

    The first `leading` columns are hardly penalised, the others by the best of `_PENALTIES`. A kind is confirmed if the
    regression's squared error on the other half is clearly lower (`_ERRORS`) than that of a constant: all series of a
    kind together, each standardised.
    """
    rows, kinds, series = values.shape
    coefficients = np.zeros((2, columns.shape[1], kinds, series), np.float32)
    if rows < _LEAST_ROWS * leading or len(np.unique(half)) < 2:
        return Credible(np.zeros(kinds, dtype=bool), coefficients)
    scale = values.std(axis=0, dtype=np.float64).ravel()
    moving = scale > 1e-6  # a constant series has no effect
    standard = (values.reshape(rows, -1) / np.where(moving, scale, np.inf)).astype(np.float32)
    wide = rows >= _LEAST_ROWS * columns.shape[1]
    tried = _coefficients(columns, leading, standard, half, _PENALTIES if wide else _PENALTIES[:1])
    gains = np.stack([_gains(columns, found, standard, half, kinds) for found in tried])
    mean, error = gains.mean(axis=1), gains.std(axis=1) / np.sqrt(rows)  # [penalties, kinds]
    best, every = mean.argmax(axis=0), np.arange(kinds)
    confirmed = mean[best, every] > _ERRORS * np.maximum(error[best, every], 1e-12)
    for kind in np.flatnonzero(confirmed):
        own = slice(kind * series, (kind + 1) * series)
        coefficients[:, :, kind] = tried[best[kind]][:, :, own] * np.where(moving, scale, 0.0)[own]
    return Credible(confirmed, coefficients)


def _coefficients(
    columns: NDArray[np.float32],
    leading: int,
    standard: NDArray[np.float32],
    half: NDArray[np.int64],
    penalties: tuple[float, ...],
) -> list[FloatArray]:
    """Coefficients at each penalty, [2, width, numbers], of values [n, numbers]: each half's come from the other."""
    found = [np.zeros((2, columns.shape[1], standard.shape[1])) for _ in penalties]
    for part in (0, 1):
        other = columns[half != part].astype(np.float64)
        squares, products = other.T @ other / len(other), other.T @ standard[half != part] / len(other)
        for coefficients, penalty in zip(found, penalties, strict=True):
            width = leading if np.isinf(penalty) else columns.shape[1]
            ridge = np.where(np.arange(width) < leading, _LEAST_PENALTY, penalty)
            coefficients[part, :width] = np.linalg.solve(squares[:width, :width] + np.diag(ridge), products[:width])
    return found


def _gains(
    columns: NDArray[np.float32], found: FloatArray, standard: NDArray[np.float32], half: NDArray[np.int64], kinds: int
) -> FloatArray:
    """How much lower each row's squared error is than a constant's, averaged over the series of a kind, [n, kinds]."""
    gains = np.empty((len(standard), kinds))
    for part in (0, 1):
        own = half == part
        constant = standard[~own].mean(axis=0)
        errors = standard[own] - columns[own] @ found[part].astype(np.float32)
        falls = np.square(standard[own] - constant) - np.square(errors)
        gains[own] = falls.reshape(len(falls), kinds, -1).mean(axis=2)
    return gains

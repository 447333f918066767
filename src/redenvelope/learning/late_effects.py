"""Effects that show later than the next state tells: found along the log, and added to what values are learned from.

A value that is learned from the next state's forgets whatever that state does not show: a cost that is booked a step
later, a habit that no column holds. The log remembers: how far what came differs from what was expected is a surprise,
and where the state tells all, no surprise has anything to do with what was done before. So each is regressed on what
was done some steps earlier, weighed by how likely the policy of each price would have gone the way of the log (the
doubly robust, multi-step target taken apart by its steps). Only what users that the regression has not seen confirm
becomes part of a target. Surprises as such never do: their noise, which the ratios multiply, would drown what networks
can learn, and a complete state is not to pay for it. Some thousand users are enough to ask.
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
"""Of a step: a surprise that few would have met is not to speak for many."""
_MOST_COLUMNS = 512
_MOST_USERS = 10_000
"""Who are asked: effects that so many do not confirm are small, and time is for networks."""


class Ahead(NamedTuple):
    """What is ahead of rows of the log, by values of their step, for the policy at each price."""

    value: Any
    """Of the state, [rows, heads, components]."""
    taken: Any
    """Of the logged action, by networks that did not learn from its user, [rows, heads, components]."""
    chance: Any
    """Of the logged action under the policy, [rows, heads]."""


class _Step(NamedTuple):
    """The rows of users who are asked at one step, as the step before it needs them."""

    rows: IntArray
    target: Float32Array
    """What their future was learned from, [rows, heads, components]."""
    surprises: Float32Array
    """What came of it 1, 2, … steps later less what was expected, [rows, lags, heads, components]."""


@dataclass(eq=False)
class LateEffects:
    """Makes the targets of one step after the other, from the last but one to the first."""

    examples: Examples
    responses: NDArray[np.float32]
    """Outcomes of a step as they are expected in each row, [rows, outcomes, actions]."""
    lags: int
    """Steps that an effect may be late, at most; 0 bootstraps through states alone."""
    discount: float
    seed: int
    found: set[int] = field(default_factory=set)
    """Components with late effects."""
    _next: _Step | None = None

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Outcomes with late effects, by name; an entropy bonus is none."""
        names = outcome_names(self.examples.budgets)
        return tuple(name for place, name in enumerate(names) if place in self.found)

    @cached_property
    def asked(self) -> NDArray[np.bool_]:
        """Whether a row is of a user who is asked, [rows]."""
        examples, places = self.examples, fraction(self.examples.keys, "late effects asked", self.seed)
        chosen = places * examples.users < _MOST_USERS if self.lags else np.zeros(examples.users, dtype=bool)
        return np.repeat(chosen, np.diff(examples.starts))

    @cached_property
    def half(self) -> IntArray:
        """Half of the users that a row belongs to, 0 or 1, [rows]."""
        return np.repeat(fold(self.examples.keys, 2, "late effects half", self.seed), np.diff(self.examples.starts))

    def targets(self, rows: IntArray, value: Float32Array, ahead: Ahead | None) -> Float32Array:
        """What the futures of a step's rows [rows] are learned from, [rows, heads, components].

        `value` tells the next state's of those that continue, `ahead` more of those of them who are asked (None: there
        are none). Who has left is followed by nothing.
        """
        continues = self.examples.continues[rows]
        target = np.zeros((len(rows), *value.shape[1:]), np.float32)
        target[continues] = self.discount * value
        if ahead is None:
            return target
        asked = np.flatnonzero(self.asked[rows])
        followed = continues[asked]
        lags = min(self.lags, 1 + (0 if self._next is None else self._next.surprises.shape[1]))
        met, known = self._surprises(rows[asked[followed]] + 1, ahead, lags)
        late = self._confirmed(rows[asked[followed]][known], met[known])
        surprises = np.zeros((len(asked), *met.shape[1:]), np.float32)
        place = np.flatnonzero(followed)[known]
        surprises[place] = met[known]
        if late is not None:
            surprises[place] -= late(rows[asked[place]])
            target[continues] += late(rows[continues]).sum(axis=1)
        self._next = _Step(rows[asked], target[asked], surprises)
        return target

    def _surprises(self, after: IntArray, ahead: Ahead, lags: int) -> tuple[Float32Array, NDArray[np.bool_]]:
        """What rows meet from the next row `after` on, [rows, lags, heads, components], and for which it is known."""
        examples = self.examples
        came = np.zeros(ahead.value.shape, np.float32)
        came[..., : len(examples.outcomes)] = examples.outcomes.T[after][:, None]
        known, later = np.ones(len(after), dtype=bool), came[:, None][:, :0]
        if self._next is not None:
            place = np.searchsorted(self._next.rows, after).clip(0, len(self._next.rows) - 1)
            known = self._next.rows[place] == after
            came += self._next.target[place]
            later = self._next.surprises[place][:, : lags - 1]
        ratio = np.minimum(ahead.chance / examples.propensity[after][:, None], _MOST_RATIO).astype(np.float32)
        met = np.concatenate([(came - ahead.taken)[:, None], later], axis=1)
        met *= self.discount * ratio[:, None, :, None]
        return met, known

    def _confirmed(self, rows: IntArray, met: Float32Array) -> Callable[[IntArray], Float32Array] | None:
        """What explains surprises [rows, lags, heads, components] by what was done in `rows`: for any rows, that part
        of theirs; None where nothing does."""
        lags, heads, components = met.shape[1:]
        described = _Described.by(self.examples, self.responses, rows)
        kinds = np.swapaxes(met, 2, 3).reshape(len(rows), lags * components, heads)
        credible = credible_means(described.columns(rows), described.leading, kinds, self.half[rows])
        self.found.update(int(kind) % components for kind in np.flatnonzero(credible.told))

        def late(some: IntArray) -> Float32Array:
            means = credible.means(described.columns(some), self.half[some])
            return np.swapaxes(means.reshape(len(some), lags, components, heads), 2, 3)

        return late if credible.told.any() else None


@dataclass(frozen=True, eq=False)
class _Described:
    """What was done in rows, and where, as columns of a regression."""

    examples: Examples
    responses: NDArray[np.float32]
    expected: _Standard
    state: _Standard | None
    """None where there would be too many columns."""

    @classmethod
    def by(cls, examples: Examples, responses: NDArray[np.float32], rows: IntArray) -> _Described:
        """In units of the spread in these rows."""
        expected = _Standard.of(responses[rows, :, examples.action[rows]])
        # Codes of static categories are names, not numbers.
        state = _Standard.of(examples.states[rows, len(examples.layout.static_categories) :])
        few = int(state.moving.sum()) * examples.actions <= _MOST_COLUMNS
        return cls(examples, responses, expected, state if few else None)

    @property
    def leading(self) -> int:
        """Columns that do not tell the state."""
        return self.examples.actions * (1 + int(self.expected.moving.sum()))

    def columns(self, rows: IntArray) -> NDArray[np.float32]:
        """Apart for each action: a constant and what was expected of it, then the state, [rows, columns]."""
        examples, action = self.examples, self.examples.action[rows]
        expected = self.expected(self.responses[rows, :, action])
        parts = [np.concatenate([np.ones((len(rows), 1), np.float32), expected], axis=1)]
        if self.state is not None:
            parts.append(self.state(examples.states[rows, len(examples.layout.static_categories) :]))
        taken = np.eye(examples.actions, dtype=np.float32)[action]
        return np.concatenate([(taken[:, :, None] * part[:, None]).reshape(len(rows), -1) for part in parts], axis=1)


class _Standard(NamedTuple):
    """Columns in units of their spread, without those that never change."""

    centre: NDArray[np.float32]
    spread: NDArray[np.float32]
    moving: NDArray[np.bool_]

    @classmethod
    def of(cls, columns: NDArray[np.float32]) -> _Standard:
        """Of columns [rows, any]."""
        spread = columns.std(axis=0)
        return cls(columns.mean(axis=0), spread, spread > 1e-6)

    def __call__(self, columns: NDArray[np.float32]) -> NDArray[np.float32]:
        """[rows, any] -> [rows, moving]"""
        return np.asarray((columns - self.centre)[:, self.moving] / self.spread[self.moving], np.float32)


# A regression that says nothing unless users whom it has not seen speak for it.


_ERRORS = 3.0
"""Standard errors by which the squared error must fall: chance goes so far once in some hundred."""
_PENALTIES = (np.inf, 0.3)
"""Of the columns after the leading ones, in units of their variance; infinity leaves them out."""
_LEAST_PENALTY = 1e-3
_LEAST_ROWS = 20
"""A column: fewer would only repeat their noise."""


class Credible(NamedTuple):
    """What was found."""

    told: NDArray[np.bool_]
    """Which kinds depend on the columns, [kinds]."""
    coefficients: NDArray[np.float32]
    """For rows of each half, learned from the other, [2, width, kinds, series]; zero where nothing is told."""

    def means(self, columns: NDArray[np.float32], half: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of rows with columns [n, width] in halves [n], [n, kinds, series]."""
        shape = self.coefficients.shape[2:]
        found = np.empty((len(columns), int(np.prod(shape))), np.float32)
        for part in (0, 1):
            found[half == part] = columns[half == part] @ self.coefficients[part].reshape(columns.shape[1], -1)
        return found.reshape(len(columns), *shape)


def credible_means(
    columns: NDArray[np.float32], leading: int, lessons: NDArray[np.float32], half: NDArray[np.int64]
) -> Credible:
    """Means of lessons [n, kinds, series] given columns [n, width], of rows in two halves, [n] of 0 and 1.

    The first `leading` columns count in full, the others as far as it helps. A kind is told of if its means lower the
    squared error on the rows that they were not learned from, against a constant: all series of a kind together, each
    in units of its own spread.
    """
    rows, kinds, series = lessons.shape
    coefficients = np.zeros((2, columns.shape[1], kinds, series), np.float32)
    if rows < _LEAST_ROWS * leading or len(np.unique(half)) < 2:
        return Credible(np.zeros(kinds, dtype=bool), coefficients)
    scale = lessons.std(axis=0, dtype=np.float64).ravel()
    moving = scale > 1e-6  # a series that never moves has nothing to tell
    taught = (lessons.reshape(rows, -1) / np.where(moving, scale, np.inf)).astype(np.float32)
    wide = rows >= _LEAST_ROWS * columns.shape[1]
    tried = _coefficients(columns, leading, taught, half, _PENALTIES if wide else _PENALTIES[:1])
    gains = np.stack([_gains(columns, found, taught, half, kinds) for found in tried])
    mean, error = gains.mean(axis=1), gains.std(axis=1) / np.sqrt(rows)  # [penalties, kinds]
    best, every = mean.argmax(axis=0), np.arange(kinds)
    told = mean[best, every] > _ERRORS * np.maximum(error[best, every], 1e-12)
    for kind in np.flatnonzero(told):
        own = slice(kind * series, (kind + 1) * series)
        coefficients[:, :, kind] = tried[best[kind]][:, :, own] * np.where(moving, scale, 0.0)[own]
    return Credible(told, coefficients)


def _coefficients(
    columns: NDArray[np.float32],
    leading: int,
    taught: NDArray[np.float32],
    half: NDArray[np.int64],
    penalties: tuple[float, ...],
) -> list[FloatArray]:
    """What the other half says to each half, at every penalty, [2, width, numbers]; lessons taught are [n, numbers]."""
    found = [np.zeros((2, columns.shape[1], taught.shape[1])) for _ in penalties]
    for part in (0, 1):
        other = columns[half != part].astype(np.float64)
        squares, products = other.T @ other / len(other), other.T @ taught[half != part] / len(other)
        for coefficients, penalty in zip(found, penalties, strict=True):
            width = leading if np.isinf(penalty) else columns.shape[1]
            ridge = np.where(np.arange(width) < leading, _LEAST_PENALTY, penalty)
            coefficients[part, :width] = np.linalg.solve(squares[:width, :width] + np.diag(ridge), products[:width])
    return found


def _gains(
    columns: NDArray[np.float32], found: FloatArray, taught: NDArray[np.float32], half: NDArray[np.int64], kinds: int
) -> FloatArray:
    """By how much each row's squared error falls against a constant, mean over the series of a kind, [n, kinds]."""
    gains = np.empty((len(taught), kinds))
    for part in (0, 1):
        own = half == part
        constant = taught[~own].mean(axis=0)
        errors = taught[own] - columns[own] @ found[part].astype(np.float32)
        falls = np.square(taught[own] - constant) - np.square(errors)
        gains[own] = falls.reshape(len(falls), kinds, -1).mean(axis=2)
    return gains

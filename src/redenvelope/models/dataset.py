"""The rows that models are trained on: encoded states, actions, outcomes and next states (`Examples`, `Rows`); and how
informative each column of a state is (`column_weights`), by which outcome networks weight their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ModelError
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.history import HistoryMoves
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.log.log import Log
from redenvelope.models.targets import UNKNOWN, users_leave
from redenvelope.randomness import fold, fraction


class Rows(NamedTuple):
    """Some rows of a log, for training."""

    states: NDArray[np.float32] | jax.Array
    """[rows, width]"""
    action: NDArray[np.int32] | jax.Array
    """[rows]"""
    outcomes: NDArray[np.float32] | jax.Array
    """The reward, then one cost for each budget and, if users leave, whether the user stayed (1, 0, or −1 for
    unknown), [rows, outcomes]; rows come first because a batch selects some of them."""
    next_tail: NDArray[np.float32] | jax.Array
    """The predicted columns of the next state, [rows, predicted]: all after the step except the history."""
    continues: NDArray[np.float32] | jax.Array
    """1 if the next state is known, else 0, [rows]."""


@dataclass(frozen=True, eq=False)
class Examples:
    """All rows of a log. States may be memory-mapped; only the selected rows are read."""

    states: NDArray[np.float32]
    """[rows, width]; the next state of a row that continues is the row below it."""
    action: NDArray[np.int32]
    """[rows]"""
    outcomes: NDArray[np.float64]
    """Measured outcomes: the reward, then the cost columns, [outcomes, rows]. The budgets' charges are computed from
    them, not learned."""
    propensity: NDArray[np.float64]
    """[rows]"""
    continues: NDArray[np.bool_]
    """Whether the row below is the same user one step later, [rows]."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    keys: NDArray[np.uint64]
    """The users as 64-bit numbers, [users]."""
    layout: StateLayout
    actions: int
    """Number of actions of the catalogue."""
    campaign_steps: int
    history: HistoryMoves | None = None
    """How a step changes the history in a state; None if states have no history."""
    attributes: NDArray[np.float32] | None = None
    """Attributes of the actions, [attributes, actions]; None if there are none."""

    @classmethod
    def from_log(cls, log: Log, encoder: Encoder, states: NDArray[np.float32] | None = None) -> Examples:
        """The rows of a log; `states` may be given, for example as a memory map."""
        if not len(log):
            raise ModelError("a model needs a log with at least one row")
        states = encoder.encode(log) if states is None else states
        if states.shape != (len(log), encoder.layout.width):
            expected = (len(log), encoder.layout.width)
            raise ModelError(f"states must have shape {expected} for this log, not {states.shape}")
        continues = ~log.is_last
        # If a user skips a step, the next row is not the next state.
        continues[:-1] &= np.diff(log.step) == 1
        return cls(
            states=states,
            action=log.action,
            outcomes=log.measured,
            propensity=log.propensity,
            continues=continues,
            starts=log.starts,
            keys=log.keys,
            layout=encoder.layout,
            actions=len(log.catalogue),
            campaign_steps=encoder.campaign_steps,
            history=None if encoder.history is None else encoder.history.moves,
            attributes=log.attributes,
        )

    def __len__(self) -> int:
        return len(self.action)

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.starts) - 1

    @property
    def budgets(self) -> int:
        """Number of measured costs."""
        return len(self.outcomes) - 1

    @property
    def reward(self) -> NDArray[np.float64]:
        """[rows]"""
        return np.asarray(self.outcomes[0])

    @property
    def cost(self) -> NDArray[np.float64]:
        """The first cost, [rows]."""
        return np.asarray(self.outcomes[1])

    @cached_property
    def is_last(self) -> NDArray[np.bool_]:
        """Whether a row is the last of its user, [rows]."""
        last = np.zeros(len(self), dtype=bool)
        last[self.starts[1:] - 1] = True
        return last

    @cached_property
    def step(self) -> NDArray[np.int64]:
        """Index of each row's step, from 0, [rows]."""
        return np.asarray(np.rint(self.states[:, self.layout.step] / self.layout.step_change), dtype=np.int64)

    @property
    def may_continue(self) -> NDArray[np.bool_]:
        """Whether the campaign has a step after a row's own, [rows]."""
        return np.asarray(self.step < self.campaign_steps - 1)

    @cached_property
    def stays(self) -> NDArray[np.float32]:
        """1 if the user continued, 0 if the user left before the last step, −1 if unknown, [rows]."""
        left = self.is_last & self.may_continue
        return np.where(self.continues, 1.0, np.where(left, 0.0, UNKNOWN)).astype(np.float32)

    @cached_property
    def leaves(self) -> bool:
        """Whether users leave before the campaign's last step."""
        return users_leave(self.stays)

    def split_users(self, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Training rows and held-out rows, never of the same user; about `share` of the users is held out."""
        held = fraction(self.keys, "held out", seed) < share
        if held.all() or not held.any():
            raise ModelError(
                f"cannot hold out {share:.0%} of {self.users} user(s) to decide when to stop; log more users"
            )
        by_row = np.repeat(held, np.diff(self.starts))
        return np.flatnonzero(~by_row), np.flatnonzero(by_row)

    def folds(self, count: int, seed: int) -> NDArray[np.int64]:
        """The fold of users, of `count`, that each row is in, by the hash of the user's key, [rows]."""
        return np.repeat(fold(self.keys, count, "member", seed), np.diff(self.starts))

    def gather(self, rows: NDArray[np.int64]) -> Rows:
        """Read some rows; an entry of `rows` may repeat."""
        states = np.ascontiguousarray(self.states[rows])
        require_states(states, self.layout)
        following = np.minimum(rows + 1, len(self) - 1)
        outcomes = self.outcomes[:, rows]
        if self.leaves:
            outcomes = np.concatenate([outcomes, self.stays[None, rows]])
        return Rows(
            states=states,
            action=self.action[rows].astype(np.int32),
            outcomes=np.ascontiguousarray(outcomes.T, dtype=np.float32),
            next_tail=np.ascontiguousarray(self.states[following, self.layout.predicted]),
            continues=self.continues[rows].astype(np.float32),
        )

    def chunks(self, rows: NDArray[np.int64], size: int) -> Iterator[Rows]:
        """Some rows in chunks of at most `size`, with only one chunk in memory."""
        for first in range(0, len(rows), size):
            yield self.gather(rows[first : first + size])


def require_states(states: NDArray[np.float32], layout: StateLayout) -> None:
    """Raise ModelError unless states [rows, width] fit the layout and contain only numbers."""
    if states.ndim != 2 or states.shape[1] != layout.width:
        raise ModelError(f"states must have shape (rows, {layout.width}) as encoded, not {states.shape}")
    # One sum is several times cheaper than a test of each number, and is finite only if all are.
    if np.isfinite(states.sum(dtype=np.float64)):
        return
    row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(states)))
    raise ModelError(
        f"the state in row {row} contains a value that is not a number (column {column} of {layout.width}); "
        "encode the features with the encoder, which replaces missing values"
    )


# Weights of columns by how informative they are. A column is cut into bins. If it is uninformative, the means of the
# residuals (outcomes minus their means per step and action) differ between bins by chance alone, and the sum of squared
# standardised differences is about its degrees of freedom. The excess is signal, as in James–Stein shrinkage. Over all
# rows it finds main effects, within actions interactions; slopes over the bins find both where they are weak.

_BINS = 8
_ERRORS = 1.0
"""Standard deviations of excess over the degrees of freedom that do not count as signal."""
_LEAST = 0.1
"""Weight of a column that is uninformative alone; it may be informative together with another."""


def column_weights(examples: Examples, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Weight of each column of a state, [width]: the share of signal in its association with the outcomes in some rows
    of a log, from `_LEAST` to 1. The step and the history weigh 1."""
    layout, action = examples.layout, examples.action[rows]
    left = [_unexplained(outcome, examples.step[rows], action) for outcome in examples.outcomes[:, rows]]
    everyone = np.zeros_like(action)
    weights = np.ones(layout.width, np.float32)
    for column in (*range(layout.step), *range(layout.step + 1, layout.history.start)):
        is_code = column < len(layout.static_categories)
        code = _binned(examples.states[rows, column], is_code)
        signal = [_differences(own, code, group) for own in left for group in (everyone, action)]
        if not is_code:
            signal += [_slopes(own, code, group) for own in left for group in (everyone, action)]
        weights[column] = max(_LEAST, *signal)
    for block in layout.categories:
        weights[block] = weights[block].max()
    return weights


def _unexplained(outcome: FloatArray, step: NDArray[np.int64], action: NDArray[np.int32]) -> FloatArray:
    """Residuals of an outcome from its mean by step and action, in standard deviations of its action, [rows]."""
    cell = step * (int(action.max()) + 1) + action
    left = outcome - (np.bincount(cell, outcome) / np.maximum(np.bincount(cell), 1))[cell]
    variance = np.bincount(action, left**2) / np.maximum(np.bincount(action), 1)
    return np.asarray(left / np.sqrt(np.maximum(variance, 1e-12))[action])


def _binned(values: NDArray[np.float32], is_code: bool) -> NDArray[np.int64]:
    """The bin of each value, [rows]: its code, or its place among quantiles."""
    if is_code:
        return values.astype(np.int64)
    cuts = np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1], method="nearest"))
    return np.searchsorted(cuts, values, side="left")


def _differences(left: FloatArray, code: NDArray[np.int64], group: NDArray[np.int32]) -> float:
    """The share of signal in the differences of residuals between bins [rows] within groups [rows]."""
    cell = group * (int(code.max()) + 1) + code
    count, total = np.bincount(cell), np.bincount(cell, left)
    seen = count > 0
    return _signal((total[seen] ** 2 / count[seen]).sum(), seen.sum() - len(np.unique(group)))


def _slopes(left: FloatArray, code: NDArray[np.int64], group: NDArray[np.int32]) -> float:
    """The share of signal in the slopes of residuals over bins [rows] within groups [rows]."""
    centred = code - (np.bincount(group, code) / np.maximum(np.bincount(group), 1))[group]
    spread, total = np.bincount(group, centred**2), np.bincount(group, centred * left)
    seen = spread > 0
    return _signal((total[seen] ** 2 / spread[seen]).sum(), seen.sum())


def _signal(squares: float, freedom: int) -> float:
    """The share of a sum of squares that exceeds its degrees of freedom and chance, from 0 to 1."""
    return float(max(0.0, 1 - (freedom + _ERRORS * np.sqrt(2 * freedom)) / max(squares, 1e-12))) if freedom else 0.0

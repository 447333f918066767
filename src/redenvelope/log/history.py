"""What happened to a user before, as columns of the state: last action and outcomes, counts, sums, steps without.

The columns of a row are a linear rule away from those of the row before it, given what was done and what came of it.
The same rule makes them from a log, from a table of past steps, and inside of trees, where a branch *is* the action.
At a user's first step nothing has happened: all columns are zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.encodings import LARGEST_DEVIATION
from redenvelope.log.layout import StateLayout
from redenvelope.log.log import Log

__all__ = ["HistoryEncoding", "HistoryMoves", "HistorySums", "history_sums", "walk"]

FloatArray = NDArray[np.float64]


class HistoryMoves(NamedTuple):
    """How a step changes the columns: kept · history + jump of the action + outcomes @ gain."""

    keep: FloatArray
    """1 for what stays after an action, else 0, [actions, columns]."""
    jump: FloatArray
    """What an action adds, whatever comes of it, [actions, columns]."""
    gain: FloatArray
    """What a unit of each outcome adds, [outcomes, columns]."""

    def after(self, history: FloatArray, action: NDArray[np.int32], outcomes: FloatArray) -> FloatArray:
        """The columns one step on: [n, columns], [n], [outcomes, n] -> [n, columns]."""
        return self.keep[action] * history + self.jump[action] + outcomes.T @ self.gain


@dataclass(frozen=True)
class HistorySums:
    """Sums over some users' rows; those of disjoint sets of users merge."""

    rows: int
    """Rows that have a past."""
    squares: tuple[float, ...]
    """Of the columns, unscaled, [columns]."""
    steps: int
    """Most steps of a user."""
    first_steps: tuple[int, int]
    """Least and greatest step of a user's first row."""


@dataclass(frozen=True)
class HistoryEncoding:
    """The columns, in this order: last action (one-hot) | last outcomes | number of each action so far | earned and
    spent so far, a column an outcome | steps since the last incentive.

    An incentive is any action but the cheapest; whoever got none has waited since the first step.
    """

    labels: tuple[str, ...]
    """Of the actions, in the order of the catalogue."""
    numeric: bool
    """Whether the labels are numbers in the user's own tables."""
    outcomes: tuple[str, ...]
    """Names of the reward and of each cost."""
    scales: tuple[float, ...]
    """What the columns are divided by, [columns]."""
    joins_late: bool
    """Whether some users' campaigns began after the first step: then a past may too."""

    @classmethod
    def fit(cls, log: Log) -> HistoryEncoding:
        """Learn the scales from the (training) users of a log."""
        return cls.from_sums(log, [history_sums(log)])

    @classmethod
    def from_sums(cls, log: Log, parts: Iterable[HistorySums]) -> HistoryEncoding:
        """The same from the sums of a log's parts, of which `log` is any: it names the actions and the outcomes."""
        sums = tuple(parts)
        plain = _unscaled(log)
        rows = max(sum(part.rows for part in sums), 1)
        spread = np.sqrt(np.sum([part.squares for part in sums], axis=0) / rows)
        steps = max(part.steps for part in sums)
        # Counts of rare actions would be huge in units of their own: all count alike, and none is ever clipped.
        counted = plain.counted
        spread[counted] = np.maximum(np.sqrt((spread[counted] ** 2).mean()), (steps - 1) / LARGEST_DEVIATION)
        spread[: len(plain.labels)] = 1.0
        firsts = [step for part in sums for step in part.first_steps]
        scales = tuple(float(scale) for scale in np.where(spread > 1e-9, spread, 1.0))
        return cls(plain.labels, plain.numeric, plain.outcomes, scales, min(firsts) != max(firsts))

    @property
    def width(self) -> int:
        """Number of columns."""
        return StateLayout.history_columns(len(self.labels), len(self.outcomes))

    @property
    def counted(self) -> NDArray[np.intp]:
        """The columns that count steps."""
        actions, outcomes = len(self.labels), len(self.outcomes)
        return np.array([*range(actions + outcomes, 2 * actions + outcomes), self.width - 1])

    @cached_property
    def moves(self) -> HistoryMoves:
        """How a step changes the columns."""
        actions, outcomes = len(self.labels), len(self.outcomes)
        keep, jump = np.zeros((2, actions, self.width))
        gain = np.zeros((outcomes, self.width))
        last, counts = actions, actions + outcomes
        sums, waited = counts + actions, self.width - 1
        jump[:, :actions] = jump[:, counts:sums] = np.eye(actions)
        gain[:, last:counts] = gain[:, sums:waited] = np.eye(outcomes)
        keep[:, counts:waited] = 1.0
        keep[0, waited] = jump[0, waited] = 1.0  # an incentive ends the wait
        scales = np.array(self.scales)
        return HistoryMoves(keep, jump / scales, gain / scales)

    def columns(self, log: Log) -> NDArray[np.float32]:
        """The columns of every row of a log of whole users, [rows, columns]."""
        return self.clipped(walk(self.moves, log.starts, log.action, log.measured)[0])

    def clipped(self, history: NDArray[np.floating]) -> NDArray[np.float32]:
        """Columns as states hold them: an outlier counts as a large number, no more."""
        return np.asarray(np.clip(history, -LARGEST_DEVIATION, LARGEST_DEVIATION), dtype=np.float32)


def history_sums(log: Log) -> HistorySums:
    """The sums of a log of whole users."""
    history = walk(_unscaled(log).moves, log.starts, log.action, log.measured)[0]
    first = log.step[log.starts[:-1]]
    low, high = int(first.min()), int(first.max())
    squares = tuple(float(total) for total in (history.astype(np.float64) ** 2).sum(axis=0))
    return HistorySums(len(log) - len(log.users), squares, int(log.lengths.max()), (low, high))


def walk(
    moves: HistoryMoves, starts: NDArray[np.int64], action: NDArray[np.int32], outcomes: FloatArray
) -> tuple[NDArray[np.float32], FloatArray]:
    """Columns before every row [rows, columns], and after each trajectory's last row [trajectories, columns].

    Rows `starts[i]:starts[i + 1]` are one trajectory in the order of its steps; action [rows], outcomes [outcomes,
    rows].
    """
    lengths = np.diff(starts)
    before = np.zeros((len(action), moves.keep.shape[1]), np.float32)
    now = np.zeros((len(lengths), moves.keep.shape[1]))
    # The longest first, so that those who are still there are a slice.
    order = np.argsort(-lengths, kind="stable")
    for position in range(int(lengths.max(initial=0))):
        here = order[: np.searchsorted(-lengths[order], -position)]
        rows = starts[here] + position
        before[rows] = now[here]
        now[here] = moves.after(now[here], action[rows], outcomes[:, rows])
    return before, now


def _unscaled(log: Log) -> HistoryEncoding:
    width = StateLayout.history_columns(len(log.catalogue), len(log.measured_names))
    return HistoryEncoding(log.catalogue.labels, log.catalogue.numeric, log.measured_names, (1.0,) * width, False)

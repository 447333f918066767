"""A user's history as columns of the state: last action and outcomes, counts, sums, steps since the last incentive.

The columns of a row are a linear function of those of the row before, given its action and outcomes. The same function
computes them from a log, from a table of past steps, and inside trees, where a branch *is* the action. At a user's
first step all columns are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array, FloatArray
from redenvelope.errors import ModelError
from redenvelope.log.cleaning.ids import read_steps, serving_ids
from redenvelope.log.columns import taken
from redenvelope.log.encoding.layout import LARGEST_DEVIATION, StateLayout
from redenvelope.log.encoding.table import serving_numbers, serving_text
from redenvelope.log.log import Log
from redenvelope.wording import counted


class HistoryMoves(NamedTuple):
    """The effect of a step on the columns: keep · history + jump of the action + outcomes @ gain."""

    keep: FloatArray
    """1 for columns that keep their value after an action, else 0, [actions, columns]."""
    jump: FloatArray
    """What an action adds, whatever its outcomes, [actions, columns]."""
    gain: FloatArray
    """What one unit of each outcome adds, [outcomes, columns]."""

    def after(self, history: FloatArray, action: NDArray[np.int32], outcomes: FloatArray) -> FloatArray:
        """The columns after one step: [n, columns], [n], [outcomes, n] -> [n, columns]."""
        return self.keep[action] * history + self.jump[action] + outcomes.T @ self.gain


@dataclass(frozen=True)
class HistoryEncoding:
    """The encoding of histories. The columns, in order: last action (one-hot) | last outcomes | count of each action so
    far | sum of each outcome so far | steps since the last incentive.

    An incentive is any action but the cheapest; for a user without one, the steps since the first are counted.
    """

    labels: tuple[str, ...]
    """Labels of the actions, in the order of the catalogue."""
    numeric: bool
    """Whether the labels are numbers in the user's own tables."""
    outcomes: tuple[str, ...]
    """Names of the outcomes: the reward and each cost."""
    scales: tuple[float, ...]
    """The divisor of each column, [columns]."""
    joins_late: bool
    """Whether some users started after the first step, so that a past may do so too."""

    @classmethod
    def fit(cls, log: Log) -> HistoryEncoding:
        """Learn the scales from the (training) users of a log."""
        plain = _unscaled(log)
        history = walk(plain.moves, log.starts, log.action, log.measured)[0]
        rows_with_past = max(len(log) - len(log.users), 1)
        spread = np.sqrt((history.astype(np.float64) ** 2).sum(axis=0) / rows_with_past)
        # Counts share one scale, large enough that none is clipped: by their own scales, rare actions would be huge.
        counted, longest = plain.counted, int(log.lengths.max())
        spread[counted] = np.maximum(np.sqrt((spread[counted] ** 2).mean()), (longest - 1) / LARGEST_DEVIATION)
        spread[: len(plain.labels)] = 1.0
        scales = tuple(float(scale) for scale in np.where(spread > 1e-9, spread, 1.0))
        first = log.step[log.starts[:-1]]
        return cls(plain.labels, plain.numeric, plain.outcomes, scales, bool(first.min() != first.max()))

    @property
    def width(self) -> int:
        """Number of columns."""
        return StateLayout.history_columns(len(self.labels), len(self.outcomes))

    @property
    def counted(self) -> NDArray[np.intp]:
        """Indices of the columns that count steps."""
        actions, outcomes = len(self.labels), len(self.outcomes)
        return np.array([*range(actions + outcomes, 2 * actions + outcomes), self.width - 1])

    @cached_property
    def moves(self) -> HistoryMoves:
        """The effect of a step on the columns."""
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
        """The columns of every row of a log of complete users, [rows, columns]."""
        return self.clipped(walk(self.moves, log.starts, log.action, log.measured)[0])

    def clipped(self, history: NDArray[np.floating]) -> NDArray[np.float32]:
        """Columns as stored in states, with outliers clipped."""
        return np.asarray(np.clip(history, -LARGEST_DEVIATION, LARGEST_DEVIATION), dtype=np.float32)


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
    # Longest trajectories first, so that those with a step at each position are a slice.
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


# The history of users to decide for, from a table of past steps or from plain rows of one user.


_REMEDY = "pass their earlier steps as the history: user, step, action, reward and cost of each"


class PastKind(Protocol):
    """What must be known about a past: a `HistoryEncoding`, or less."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the actions, in the order of the catalogue."""
        ...

    @property
    def numeric(self) -> bool:
        """Whether the labels are numbers in the user's own tables."""
        ...

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes that every past step must have."""
        ...

    @property
    def joins_late(self) -> bool:
        """Whether some users started after the first step, so that a past may do so too."""
        ...


@dataclass(frozen=True)
class ActionsOnly:
    """A past of which only the actions matter."""

    labels: tuple[str, ...]
    numeric: bool
    joins_late: bool
    outcomes: tuple[str, ...] = ()


def action_index(kind: PastKind, action: Any) -> int:
    """Index of an action, given as in the user's own tables."""
    try:
        return _known(kind)[float(action) if kind.numeric else str(action)]
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"the history holds the action {action!r}, which the plan does not know; it knows {', '.join(kind.labels)}"
        ) from None


def _known(kind: PastKind) -> dict[Any, int]:
    return {float(label) if kind.numeric else label: place for place, label in enumerate(kind.labels)}


class Past(NamedTuple):
    """The earlier steps of users to decide for, in order."""

    starts: NDArray[np.int64]
    """The first of each user's steps, and the number of all at the end, [users + 1]."""
    action: NDArray[np.int32]
    """[past steps]"""
    outcomes: NDArray[np.float64]
    """[outcomes, past steps]"""


def history_of_frame(
    encoding: HistoryEncoding, users: pl.DataFrame, steps: NDArray[np.int32], past: pl.DataFrame | None, first_step: int
) -> Float32Array:
    """The history columns of users to decide for at steps [rows], [rows, columns]."""
    earlier = past_of_frame(encoding, users, steps, past, first_step)
    return encoding.clipped(walk(encoding.moves, *earlier)[1])


def past_of_frame(
    encoding: PastKind, users: pl.DataFrame, steps: NDArray[np.int32], past: pl.DataFrame | None, first_step: int
) -> Past:
    """The past of users before their steps [rows]; no past is needed at the first step.

    `past` has a row for each earlier step of these users; rows of other users or later steps are ignored.
    """
    later = steps > first_step
    if not later.any():
        none = np.zeros((len(encoding.outcomes), 0))
        return Past(np.zeros(len(users) + 1, np.int64), np.zeros(0, np.int32), none)
    if past is None or "user" not in users.columns:
        raise ModelError(
            f"{counted(int(later.sum()), 'user')} past the campaign's first step: this plan's decisions depend on "
            f"their history; {_REMEDY}"
        )
    for name in ("user", "step", "action", *encoding.outcomes):
        if name not in past.columns:
            needed = ", ".join(("user", "step", "action", *encoding.outcomes))
            raise ModelError(f"the history has no column {name!r}; it needs {needed}")
    now = pl.Series("now", steps)
    rows = pl.DataFrame({"row": np.arange(len(users), dtype=np.int64), "user": serving_ids(users["user"]), "now": now})
    joined = _joined(rows, taken(past, ("user", "step", "action", *encoding.outcomes)))
    _require_complete(joined, rows, encoding, first_step)
    ordered = joined.sort("row", "step")
    lengths = np.bincount(ordered["row"].to_numpy(), minlength=len(users))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    outcomes = np.zeros((len(encoding.outcomes), len(ordered)))
    for place, name in enumerate(encoding.outcomes):
        outcomes[place] = _numbers(ordered, name)
    return Past(starts, _actions(ordered["action"], encoding), outcomes)


def _joined(rows: pl.DataFrame, past: pl.DataFrame) -> pl.DataFrame:
    """The earlier steps of each row."""
    earlier = past.with_row_index("past_row", 1).with_columns(_past_ids(past["user"]))
    if earlier["user"].dtype != rows["user"].dtype:
        earlier, rows = (frame.with_columns(pl.col("user").cast(pl.String)) for frame in (earlier, rows))
    step = read_steps(earlier["step"]).cast(pl.Float64)
    if step.null_count():
        raise ModelError(f"history, row {int(step.is_null().arg_true()[0]) + 1}: the step is not a whole number")
    return rows.join(earlier.with_columns(step.alias("step")), on="user").filter(pl.col("step") < pl.col("now"))


def _past_ids(users: pl.Series) -> pl.Series:
    try:
        return serving_ids(users)
    except ModelError as error:
        raise ModelError(f"history: {error}") from None


def _require_complete(joined: pl.DataFrame, rows: pl.DataFrame, encoding: PastKind, first_step: int) -> None:
    """Check that every row has all of its earlier steps, once each."""
    twice = joined.select(pl.struct("row", "step").is_duplicated()).to_series()
    if twice.any():
        raise ModelError(
            f"history, row {int(joined.filter(twice)['past_row'].min())}: {counted(int(twice.sum()), 'row')} with the "  # type: ignore[arg-type]
            "user and step of another row; keep one row for each"
        )
    seen = joined.group_by("row").agg(pl.len().alias("steps"), pl.col("step").min().alias("first"))
    rows = rows.join(seen, on="row", how="left").filter(pl.col("now") > first_step)
    without = rows.filter(pl.col("steps").is_null())
    if len(without):
        raise ModelError(
            f"{counted(len(without), 'user')} past the campaign's first step without a row in the history (the first: "
            f"{without['user'][0]!r}, step {without['now'][0]}); {_REMEDY}"
        )
    begins = pl.col("first") if encoding.joins_late else pl.lit(float(first_step))
    holes = rows.filter(pl.col("steps") < pl.col("now") - begins)
    if len(holes):
        raise ModelError(
            f"the history of {counted(len(holes), 'user')} lacks steps (the first: {holes['user'][0]!r} has "
            f"{holes['steps'][0]} of the steps before {holes['now'][0]}); include every earlier step"
        )


def _numbers(rows: pl.DataFrame, name: str) -> NDArray[np.float64]:
    values, _ = serving_numbers(rows[name])
    lost = ~values.is_finite().fill_null(False)
    if lost.any():
        raise ModelError(
            f"history, row {int(rows.filter(lost)['past_row'].min())}: the {name} is not a number, in "  # type: ignore[arg-type]
            f"{counted(int(lost.sum()), 'row')}; every past step needs all of its outcomes"
        )
    return values.to_numpy()


def _actions(values: pl.Series, encoding: PastKind) -> NDArray[np.int32]:
    """The index of each action."""
    keys = serving_numbers(values)[0] if encoding.numeric else serving_text(values)
    found = keys.replace_strict(_known(encoding), default=None, return_dtype=pl.Int32)
    if found.null_count():
        odd = values.filter(found.is_null())
        raise ModelError(
            f"the history holds the action {odd[0]!r} in {counted(len(odd), 'row')}, which the plan does not know; it "
            f"knows {', '.join(encoding.labels)}"
        )
    return found.to_numpy()


def history_of_row(
    encoding: HistoryEncoding, step: int, past: Sequence[Mapping[str, Any]] | None, first_step: int
) -> Float32Array:
    """The history columns [columns] of one user at a step, given the user's earlier steps as plain rows."""
    moves, history = encoding.moves, np.zeros((1, encoding.width))
    for one in past_of_row(encoding, step, past, first_step):
        action = np.array([action_index(encoding, one.get("action"))], dtype=np.int32)
        outcomes = np.array([[_number(one, name)] for name in encoding.outcomes])
        history = moves.after(history, action, outcomes)
    return encoding.clipped(history[0])


def past_of_row(
    encoding: PastKind, step: int, past: Sequence[Mapping[str, Any]] | None, first_step: int
) -> list[Mapping[str, Any]]:
    """One user's steps before a step, in order, after checking that each occurs once."""
    if step == first_step:
        return []
    earlier = [one for one in past or () if one.get("step") is not None and float(one["step"]) < step]
    if not earlier:
        raise ModelError(
            f"step {step} is past the campaign's first: this plan's decisions depend on the user's history; {_REMEDY}"
        )
    ordered = sorted(earlier, key=lambda one: float(one["step"]))
    begins = float(ordered[0]["step"]) if encoding.joins_late else first_step
    if [float(one["step"]) for one in ordered] != [begins + place for place in range(round(step - begins))]:
        steps = ", ".join(str(one["step"]) for one in ordered)
        raise ModelError(
            f"the history of a user at step {step} holds the steps {steps}; include every earlier step once"
        )
    return ordered


def _number(row: Mapping[str, Any], name: str) -> float:
    try:
        value = float(row[name])
    except (KeyError, TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise ModelError(
            f"history, step {row['step']}: the {name} is not a number; every past step needs all of its outcomes"
        )
    return value

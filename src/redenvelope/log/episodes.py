"""Episodes and times: several waves of the same users, each a sequence of its own, and steps numbered by time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.named import column, without
from redenvelope.log.numbers import PLAIN_INTEGER
from redenvelope.log.places import Places
from redenvelope.log.tables import EPISODE, FILE, ROW, Table
from redenvelope.log.times import read_times

__all__ = ["Episodes", "with_episodes", "with_moments", "with_steps"]

_TIME = "\0time"


@dataclass(frozen=True)
class Episodes:
    """How the waves of a campaign are told apart."""

    column: str
    count: int
    recognised: bool
    """Whether nobody named the column: folders were called so."""


def with_moments(
    table: Table, columns: ColumnMap, found: dict[tuple[str, str], Places]
) -> tuple[Table, str | None, pl.Series | None]:
    """The table less its column of times, the column of episodes that was named, and the times, [rows]."""
    frame = table.frame
    told = columns.episode if columns.episode in frame.columns else None
    if columns.time is None:
        return table, told, None
    held = "step" if columns.time == columns.name_of("step") else columns.time
    if held not in frame.columns:
        return table, told, None
    values = column(frame, held)
    moments = read_times(values)
    if moments is None:
        moments = pl.Series("value", [None] * len(values), dtype=pl.Int64)
    named = replace(table, frame=frame.rename({held: columns.time}) if held != columns.time else frame)
    named.note(found, "time_null", columns.time, values.is_null())
    named.note(found, "time_unreadable", columns.time, moments.is_null() & values.is_not_null())
    return replace(table, frame=without(frame, {held})), told, moments


def with_episodes(
    table: Table, told: str | None, found: dict[tuple[str, str], Places]
) -> tuple[Table, Episodes | None]:
    """The table with the number of each row's episode; its ids have their types.

    Where nobody named a column, one that folders gave tells episodes apart if the same users have the same steps in
    several of the folders, and are not merely copied there.
    """
    name = told or _recognised(table)
    if name is None:
        return table, None
    values = column(table.frame, name)
    table.note(found, "episode_null", name, values.is_null())
    if values.dtype == pl.String and values.drop_nulls().str.contains(PLAIN_INTEGER).all():
        values = values.cast(pl.Int64, strict=False)  # week 10 comes after week 9
    number = values.rank("dense").fill_null(0).cast(pl.Int32)
    frame = without(table.frame, {name}).with_columns(number.alias(EPISODE))
    return replace(table, frame=frame), Episodes(name, int(number.n_unique()), told is None)


def with_steps(table: Table, moments: pl.Series) -> Table:
    """The table with its steps numbered from 0 by the times [rows] of each user and episode.

    Rows of the same time have the same step: they are copies, or contradict each other, like any such rows.
    """
    groups = ["user", EPISODE] if EPISODE in table.frame.columns else ["user"]
    timed = table.frame.with_columns(moments.alias(_TIME))
    step = (pl.col(_TIME).rank("dense").over(groups) - 1).cast(pl.Int32)
    return replace(table, frame=without(timed.with_columns(step.alias("step")), {_TIME}))


def _recognised(table: Table) -> str | None:
    """A column of folders that tells apart rows of the same user and step."""
    frame = table.frame
    names = [name for name in table.folders if name in frame.columns and name not in ROLES]
    if not names or not {"user", "step"} <= set(frame.columns):
        return None
    together = frame.select("user", "step").n_unique()
    if together == len(frame) or without(frame, {ROW, FILE, *names}).n_unique() == together:
        return None
    for name in names:
        apart = frame.select("user", "step").with_columns(column(frame, name).alias(EPISODE)).n_unique()
        if apart > together and frame.get_column(name).n_unique() > 1:
            return name
    return None

"""Keys of a log: typed user ids, steps, episodes and clusters. They come first, because parts are made by user."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from redenvelope.arrays import KeyArray
from redenvelope.log.cleaning.dates import read_times
from redenvelope.log.cleaning.ids import read_ids
from redenvelope.log.cleaning.number_formats import PLAIN_INTEGER
from redenvelope.log.columns import ROLES, ColumnMap, column, without
from redenvelope.log.eligibility import with_listed
from redenvelope.log.findings import Findings, Found, Places, merge_found, report_places
from redenvelope.log.schema.coerce import coerce_step, coerce_user, ids_are_whole
from redenvelope.log.schema.rows import note_disorder
from redenvelope.log.tables import CLUSTER, EPISODE, FILE, ROW, Table, kind_of
from redenvelope.randomness import user_keys


@dataclass(frozen=True)
class KeySums:
    """Findings about the ids and steps of a table."""

    rows: int
    user_kind: str | None
    """The kind of the id column; None without one."""
    step_kind: str | None
    whole_ids: bool
    """Whether text ids are read as integers, because all of them are integers."""
    found: Found
    episodes: Episodes | None = None
    numbered: int | None = None
    """The last step, if steps were numbered by time."""
    time: str = "step"
    """The name of the column that times, or possible times, were read from."""

    def merge(self, other: KeySums) -> KeySums:
        """See Mergeable."""
        last = [part.numbered for part in (self, other) if part.numbered is not None]
        return replace(
            self,
            rows=self.rows + other.rows,
            found=merge_found(self.found, other.found),
            numbered=max(last, default=None),
        )


def settle_keys(table: Table, columns: ColumnMap | None = None, whole_ids: bool | None = None) -> tuple[Table, KeySums]:
    """The table with typed ids, episodes and steps, and the findings about them and their order.

    For a part of a table, `whole_ids` says whether all ids of the whole table are integers.
    """
    found: dict[tuple[str, str], Places] = {}
    columns = columns or ColumnMap()
    table = replace(table, frame=with_listed(table.frame))
    table, told, moments = with_moments(table, columns, found)
    schema = table.frame.schema
    user_kind, step_kind = (kind_of(schema[name]) if name in schema else None for name in ("user", "step"))
    if whole_ids is None:
        whole_ids = user_kind is not None and ids_are_whole(table.frame["user"])
    typed = with_clusters(with_keys(table, whole_ids, found), columns.cluster, found)
    episodes = None
    if "user" in typed.frame.columns:
        typed, episodes = with_episodes(typed, told, found)
        if moments is not None:
            typed = with_steps(typed, moments)
    numbered = None if moments is None or "step" not in typed.frame.columns else int(typed.frame["step"].max() or 0)  # type: ignore[arg-type]
    if {"user", "step"} <= set(typed.frame.columns):
        note_disorder(typed, found)
    time = columns.time or columns.name_of("step")
    return typed, KeySums(len(table.frame), user_kind, step_kind, whole_ids, found, episodes, numbered, time)


def with_keys(table: Table, whole_ids: bool, found: dict[tuple[str, str], Places]) -> Table:
    """The table with typed ids and steps, without columns that cannot be typed; typed columns stay as they are."""
    frame = table.frame
    if "user" in frame.columns:
        users = coerce_user(table, whole_ids, found)
        frame = frame.drop("user") if users is None else frame.with_columns(users)
    if "step" in frame.columns:
        steps = coerce_step(table, found)
        frame = frame.drop("step") if steps is None else frame.with_columns(steps)
    return replace(table, frame=frame)


def report_keys(keys: KeySums, files: tuple[str, ...], findings: Findings) -> None:
    """Report what is wrong with ids and steps; their order is reported later, with duplicates (see `infer.py`)."""
    broken = ("user_null", "user_not_finite", "user_not_integer", "user_too_large")
    for rule in broken:
        report_places(findings, files, rule, "user", keys.found.get((rule, "user")))
    rewritten = keys.found.get(("user_float", "user"))
    if rewritten is not None and not any((rule, "user") in keys.found for rule in broken):
        findings.add("user_float", column="user", count=rewritten.count)
    if keys.user_kind in ("boolean", "date", "time", "duration"):
        findings.add("user_type", column="user", count=keys.rows, type=f"{keys.user_kind}s")
    for rule, name in keys.found:
        if rule in ("cluster_null", "cluster_changes"):
            report_places(findings, files, rule, name, keys.found[rule, name])
    for rule in ("step_null", "step_not_integer", "step_too_large"):
        report_places(findings, files, rule, "step", keys.found.get((rule, "step")), name=keys.time)
    for rule in ("time_null", "time_unreadable"):
        report_places(findings, files, rule, keys.time, keys.found.get((rule, keys.time)))
    if keys.numbered is not None:
        whose = "user" if keys.episodes is None else "user and episode"
        findings.add("steps_numbered", column=keys.time, count=keys.rows, last=keys.numbered, whose=whose)
    if keys.episodes is not None:
        name, why = keys.episodes.column, " (folders of this name hold the same users and steps)"
        report_places(findings, files, "episode_null", name, keys.found.get(("episode_null", name)))
        findings.add("episodes", column=name, count=keys.episodes.count, why=why if keys.episodes.recognised else "")
    if keys.step_kind == "number" and ("step_not_integer", "step") not in keys.found:
        findings.add("step_float", column="step", count=keys.rows)


# Clusters of users.


_ALONE = np.uint64(0xA1A5E5C1D7B3F00D)
"""Keeps the keys of users without a cluster distinct from those of clusters."""


def cluster_keys(values: pl.Series, users: pl.Series) -> KeyArray:
    """The clusters in a column as 64-bit keys, [rows]; equal names have equal keys, whatever their type. A user whose
    cluster is missing is a cluster of one."""
    if values.dtype.is_float():
        whole = values.cast(pl.Int64, strict=False)
        values = whole if (whole == values).all() else values
    none = values.is_null().to_numpy()
    keys = user_keys(values.cast(pl.String).fill_null("") if none.any() else values)
    if none.any():
        ids = read_ids(users)
        own = users.cast(pl.String) if ids is None else ids.usable.cast(pl.String)
        keys = np.where(none, user_keys(own.fill_null("")) ^ _ALONE, keys)
    return keys


def with_clusters(table: Table, name: str | None, found: dict[tuple[str, str], Places]) -> Table:
    """The table with the key of each row's cluster in place of its name; its ids must be typed."""
    if name is None or name not in table.frame.columns:
        return table
    if "user" not in table.frame.columns:  # the log is refused for it
        return replace(table, frame=without(table.frame, {name}))
    values = column(table.frame, name)
    values = values.fill_nan(None) if values.dtype.is_float() else values
    keyed = table.frame.with_columns(pl.Series(CLUSTER, cluster_keys(values, table.frame["user"])))
    table.note(found, "cluster_null", name, values.is_null())
    changes = pl.col(CLUSTER) != pl.col(CLUSTER).first().over("user")
    table.note(found, "cluster_changes", name, keyed.select(changes).to_series())
    return replace(table, frame=without(keyed, {name}))


# Episodes (waves of the same users, each a sequence of its own) and steps numbered by time.


_TIME = "\0time"


@dataclass(frozen=True)
class Episodes:
    """The column that distinguishes the waves of a campaign."""

    column: str
    count: int
    recognised: bool
    """Whether the column was recognised from folder names rather than named."""


def with_moments(
    table: Table, columns: ColumnMap, found: dict[tuple[str, str], Places]
) -> tuple[Table, str | None, pl.Series | None]:
    """The table without its time column, the named episode column, and the times, [rows]."""
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
    """The table with the number of each row's episode; its ids must be typed.

    Without a named column, a folder column distinguishes episodes if the same users have the same steps in several
    folders, unless the rows are mere copies.
    """
    name = told or _recognised(table)
    if name is None:
        return table, None
    values = column(table.frame, name)
    table.note(found, "episode_null", name, values.is_null())
    if values.dtype == pl.String and values.drop_nulls().str.contains(PLAIN_INTEGER).all():
        values = values.cast(pl.Int64, strict=False)  # so that week 10 comes after week 9
    number = values.rank("dense").fill_null(0).cast(pl.Int32)
    frame = without(table.frame, {name}).with_columns(number.alias(EPISODE))
    return replace(table, frame=frame), Episodes(name, int(number.n_unique()), told is None)


def with_steps(table: Table, moments: pl.Series) -> Table:
    """The table with steps numbered from 0 by the times [rows] within each user and episode.

    Rows with the same time have the same step; as always, such rows are duplicates or in conflict.
    """
    groups = ["user", EPISODE] if EPISODE in table.frame.columns else ["user"]
    timed = table.frame.with_columns(moments.alias(_TIME))
    step = (pl.col(_TIME).rank("dense").over(groups) - 1).cast(pl.Int32)
    return replace(table, frame=without(timed.with_columns(step.alias("step")), {_TIME}))


def _recognised(table: Table) -> str | None:
    """A folder column that distinguishes rows of the same user and step, if there is one."""
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

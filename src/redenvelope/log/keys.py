"""Who and when: ids and steps in their types. They are settled before anything else, because parts are made by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redenvelope.log.coerce import coerce_step, coerce_user, ids_are_whole
from redenvelope.log.columns import ColumnMap
from redenvelope.log.eligible import with_listed
from redenvelope.log.episodes import Episodes, with_episodes, with_moments, with_steps
from redenvelope.log.findings import Findings
from redenvelope.log.order import note_disorder
from redenvelope.log.places import Found, Places, merge_found, report_places
from redenvelope.log.tables import Table, kind_of

__all__ = ["KeySums", "merge_keys", "report_keys", "settle_keys", "with_keys"]


@dataclass(frozen=True)
class KeySums:
    """What a table says about its ids and steps."""

    rows: int
    user_kind: str | None
    """What the column of ids holds; None without one."""
    step_kind: str | None
    whole_ids: bool
    """Whether ids of text are read as integers, because all of them are."""
    found: Found
    episodes: Episodes | None = None
    numbered: int | None = None
    """The last step, where steps were numbered by time."""
    time: str = "step"
    """What the column is called that times, or what may be times, were read from."""


def settle_keys(table: Table, columns: ColumnMap | None = None, whole_ids: bool | None = None) -> tuple[Table, KeySums]:
    """The table with its ids, episodes and steps in their types, and what was found about them and their order.

    Of a part of a table, `whole_ids` says whether all ids of the table are whole.
    """
    found: dict[tuple[str, str], Places] = {}
    columns = columns or ColumnMap()
    table = replace(table, frame=with_listed(table.frame))
    table, told, moments = with_moments(table, columns, found)
    schema = table.frame.schema
    user_kind, step_kind = (kind_of(schema[name]) if name in schema else None for name in ("user", "step"))
    if whole_ids is None:
        whole_ids = user_kind is not None and ids_are_whole(table.frame["user"])
    typed = with_keys(table, whole_ids, found)
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


def merge_keys(parts: Sequence[KeySums]) -> KeySums:
    """What the parts of a table, of whole users each, say about its ids and steps; of their order nothing is said."""
    found = merge_found(part.found for part in parts)
    found.pop(("rows_unordered", "step"), None)  # parts are in an order of their own
    numbered = [part.numbered for part in parts if part.numbered is not None]
    return replace(
        parts[0],
        rows=sum(part.rows for part in parts),
        found=found,
        numbered=max(numbered) if numbered else None,
    )


def with_keys(table: Table, whole_ids: bool, found: dict[tuple[str, str], Places]) -> Table:
    """The table with its ids and steps in their types, less those that can have none; types that they have stay."""
    frame = table.frame
    if "user" in frame.columns:
        users = coerce_user(table, whole_ids, found)
        frame = frame.drop("user") if users is None else frame.with_columns(users)
    if "step" in frame.columns:
        steps = coerce_step(table, found)
        frame = frame.drop("step") if steps is None else frame.with_columns(steps)
    return replace(table, frame=frame)


def report_keys(keys: KeySums, files: tuple[str, ...], findings: Findings) -> None:
    """Report what is wrong with ids and steps; their order is reported with the copies, see `finish.py`."""
    broken = ("user_null", "user_not_finite", "user_not_integer", "user_too_large")
    for rule in broken:
        report_places(findings, files, rule, "user", keys.found.get((rule, "user")))
    rewritten = keys.found.get(("user_float", "user"))
    if rewritten is not None and not any((rule, "user") in keys.found for rule in broken):
        findings.add("user_float", column="user", count=rewritten.count)
    if keys.user_kind in ("boolean", "date", "time", "duration"):
        findings.add("user_type", column="user", count=keys.rows, type=f"{keys.user_kind}s")
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

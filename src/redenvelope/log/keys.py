"""Who and when: ids and steps in their types. They are settled before anything else, because parts are made by them."""

from __future__ import annotations

from dataclasses import dataclass

from redenvelope.log.coerce import coerce_step, coerce_user, ids_are_whole
from redenvelope.log.findings import Findings
from redenvelope.log.order import note_disorder
from redenvelope.log.places import Found, Places, report_places
from redenvelope.log.tables import Table, kind_of

__all__ = ["KeySums", "report_keys", "with_keys"]


@dataclass(frozen=True)
class KeySums:
    """What a table says about its ids and steps."""

    rows: int
    user_kind: str | None
    """What the column of ids holds; None without one."""
    step_kind: str | None
    found: Found


def with_keys(table: Table) -> tuple[Table, KeySums]:
    """The table with its ids and steps in their types (less those that can have none), and what was found."""
    found: dict[tuple[str, str], Places] = {}
    frame = table.frame
    kinds = {name: kind_of(frame.schema[name]) for name in ("user", "step") if name in frame.columns}
    if "user" in kinds:
        users = coerce_user(table, ids_are_whole(frame["user"]), found)
        frame = frame.drop("user") if users is None else frame.with_columns(users)
    if "step" in kinds:
        steps = coerce_step(table, found)
        frame = frame.drop("step") if steps is None else frame.with_columns(steps)
    typed = Table(frame, table.files)
    if {"user", "step"} <= set(frame.columns):
        note_disorder(typed, found)
    return typed, KeySums(len(frame), kinds.get("user"), kinds.get("step"), found)


def report_keys(keys: KeySums, files: tuple[str, ...], findings: Findings) -> None:
    """Report what is wrong with ids and steps; their order is reported with the copies, see `finish.py`."""
    for rule in ("user_null", "user_not_integer", "user_too_large"):
        report_places(findings, files, rule, "user", keys.found.get((rule, "user")))
    if keys.user_kind == "number" and ("user_not_integer", "user") not in keys.found:
        findings.add("user_float", column="user", count=keys.rows)
    if keys.user_kind in ("boolean", "date", "time", "duration"):
        findings.add("user_type", column="user", count=keys.rows, type=f"{keys.user_kind}s")
    for rule in ("step_null", "step_not_integer"):
        report_places(findings, files, rule, "step", keys.found.get((rule, "step")))
    if keys.step_kind == "number" and ("step_not_integer", "step") not in keys.found:
        findings.add("step_float", column="step", count=keys.rows)

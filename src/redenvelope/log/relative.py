"""Dates as features that whoever is decided for later has too: the weekday of a decision, and days until it.

A date itself is of no use: training never saw those that come. What is made of it has a name that says of what
(`sent_at_weekday`, `registered_on_days_before_sent_at`), so that a table or a row to decide for may hold either the
dates or what they tell, and the same is made of them everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import polars as pl

from redenvelope.log.columns import ROLES
from redenvelope.log.findings import Findings
from redenvelope.log.named import column, put_back, without
from redenvelope.log.tables import kind_of, plain
from redenvelope.log.times import read_times

__all__ = ["dates_of", "with_relative", "with_relative_dates", "with_relative_row"]

_WEEKDAY, _DAYS = "_weekday", "_days_before_"
_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY = 86_400_000_000  # microseconds
_THURSDAY = 3  # 1970-01-01


def with_relative_dates(
    frame: pl.DataFrame, time: str | None, vague: Collection[str], findings: Findings
) -> pl.DataFrame:
    """A log's table with what its dates tell of a decision in their place, as far as it is told when a decision was
    made: by the column of times, or by the only date that changes within users. Vague ones are left as they are."""
    dates = [name for name, dtype in frame.schema.items() if kind_of(dtype) == "date" and name not in (*vague, *ROLES)]
    now = time if time in frame.columns else _moment(frame, dates)
    if now is None or _moments(column(frame, now)) is None:
        findings.add("dates_not_relative", why="no column tells when decisions were made")
        return frame
    others = [name for name in dates if name != now]
    made = {f"{now}{_WEEKDAY}", *(f"{name}{_DAYS}{now}" for name in others)}
    taken = sorted(made & set(frame.columns))
    if taken:
        findings.add(
            "dates_not_relative", column=taken[0], why="the table has a column of the name that they would get"
        )
        return frame
    findings.add("dates_relative", column=now, count=len(made), made=", ".join(sorted(made)))
    frame = put_back(frame, {name: _made(frame, name) for name in sorted(made)})
    return without(frame, {*others, *({now} - {time})})


def _moment(frame: pl.DataFrame, dates: list[str]) -> str | None:
    """The one date that changes within users, if there is one."""
    if "user" not in frame.columns:
        return None
    users = column(frame, "user")
    alone = users.n_unique()
    changing = [name for name in dates if pl.DataFrame({"user": users, "date": column(frame, name)}).n_unique() > alone]
    return changing[0] if len(changing) == 1 else None


def dates_of(name: str) -> frozenset[str]:
    """The columns of dates that a feature of this name may be made of."""
    found = {name.removesuffix(_WEEKDAY)} if name.endswith(_WEEKDAY) and name != _WEEKDAY else set()
    for first, second in _pairs(name):
        found |= {first, second}
    return frozenset(found)


def with_relative(frame: pl.DataFrame, features: Iterable[str]) -> pl.DataFrame:
    """A table to decide for, with the features that it lacks but has the dates for."""
    lacking = [name for name in features if name not in frame.columns and dates_of(name) & set(frame.columns)]
    made = {name: values for name in lacking if (values := _made_or_none(frame, name)) is not None}
    return put_back(frame, made) if made else frame


def with_relative_row(row: Mapping[str, Any], features: Iterable[str]) -> Mapping[str, Any]:
    """The same for a single row; `features` are those that may be made of dates."""
    made: dict[str, Any] = {}
    for name in features:
        if name in row:
            continue
        if name.endswith(_WEEKDAY) and (base := name.removesuffix(_WEEKDAY)) in row:
            moment = _moment_of(row[base])
            made[name] = None if moment is None else _NAMES[(moment // _DAY + _THURSDAY) % 7]
            continue
        for first, second in _pairs(name):
            if first in row and second in row:
                before, now = _moment_of(row[first]), _moment_of(row[second])
                made[name] = None if before is None or now is None else float(now // _DAY - before // _DAY)
    return {**row, **made} if made else row


def _pairs(name: str) -> list[tuple[str, str]]:
    """All ways to read a name as one date before another: columns may be called so themselves."""
    parts = name.split(_DAYS)
    pairs = ((_DAYS.join(parts[:cut]), _DAYS.join(parts[cut:])) for cut in range(1, len(parts)))
    return [(first, second) for first, second in pairs if first and second]


def _made(frame: pl.DataFrame, name: str) -> pl.Series:
    values = _made_or_none(frame, name)
    return pl.Series(name, [None] * len(frame), dtype=pl.Float64) if values is None else values


def _made_or_none(frame: pl.DataFrame, name: str) -> pl.Series | None:
    """A feature [rows] of the dates that a table has; None where it has not those that it needs."""
    base = name.removesuffix(_WEEKDAY)
    if base != name and base in frame.columns:
        moments = _moments(column(frame, base))
        days = _empty(frame) if moments is None else moments // _DAY
        return ((days + _THURSDAY) % 7).replace_strict(dict(enumerate(_NAMES)), default=None, return_dtype=pl.String)
    for first, second in _pairs(name):
        if {first, second} <= set(frame.columns):
            before, now = _moments(column(frame, first)), _moments(column(frame, second))
            if before is None or now is None:
                return _empty(frame).cast(pl.Float64)
            return (now // _DAY - before // _DAY).cast(pl.Float64)
    return None


def _empty(frame: pl.DataFrame) -> pl.Series:
    return pl.Series("value", [None] * len(frame), dtype=pl.Int64)


def _moments(values: pl.Series) -> pl.Series | None:
    """Dates as microseconds since 1970, [rows]; None where a column holds none."""
    if kind_of(values.dtype) not in ("date", "text"):
        return None
    return read_times(plain(values))


def _moment_of(value: Any) -> int | None:
    return _moment_of_text(value) if isinstance(value, str) else _moment_in(pl.Series([value], strict=False))


@lru_cache(maxsize=4_096)
def _moment_of_text(text: str) -> int | None:
    return _moment_in(pl.Series([text], dtype=pl.String))


def _moment_in(values: pl.Series) -> int | None:
    moments = _moments(values)
    return None if moments is None else moments[0]

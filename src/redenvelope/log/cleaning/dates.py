"""Dates and times: parsing them, and features relative to the time of a decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import polars as pl

from redenvelope.log.columns import ROLES, column, put_back, without
from redenvelope.log.findings import Findings
from redenvelope.log.tables import kind_of, plain

_CLOCK = r"(?:(?:[T ]|,? +)(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?"
_ISO = rf"^(\d{{4}})[-/](\d{{1,2}})[-/](\d{{1,2}}){_CLOCK} ?(Z|UTC|[+-]\d{{2}}:?\d{{2}})?$"
_DOTTED = rf"^(\d{{1,2}})\.(\d{{1,2}})\.(\d{{4}}){_CLOCK}$"  # with dots, the day always comes first
_SLASHED = r"^\d{1,2}/\d{1,2}/\d{4}(?: .*)?$"  # ambiguous: the day or the month may come first
_MONTH = r"^\d{4}-(?:\d{2}|W\d{2}|Q[1-4])$"


def read_times(values: pl.Series) -> pl.Series | None:
    """Times as integers that increase with time [rows], null if a value is none; None if the column cannot hold times.

    Reads dates and times, text as ISO 8601 or with dots and the day first, and numbers such as seconds since 1970.
    """
    kind = kind_of(values.dtype)
    if kind in ("integer", "number"):
        return values if kind == "integer" else values.set(values.is_nan().fill_null(False), None)
    if kind == "date":
        return values.cast(pl.Datetime("us")).to_physical()
    if kind != "text":
        return None
    distinct = values.drop_nulls().unique()
    moments = _moments(distinct)
    if moments.null_count() == len(moments):
        numbers = values.cast(pl.Int64, strict=False)
        return None if numbers.null_count() == len(numbers) else numbers
    return values.replace_strict(distinct, moments, default=None, return_dtype=pl.Int64)


def is_calendar(text: pl.Series) -> bool:
    """Whether a text column holds only dates, times, months or weeks."""
    filled = text.drop_nulls()
    # The first values rule out nearly every other column; impossible dates (2024-02-31) are ordinary labels.
    pattern = "|".join((_ISO, _DOTTED, _SLASHED, _MONTH))
    if not len(filled) or not filled.head(20).str.contains(pattern).all():
        return False
    distinct = filled.unique()
    known = _moments(distinct).is_not_null() | distinct.str.contains(f"{_SLASHED}|{_MONTH}")
    return bool(known.all())


def _moments(text: pl.Series) -> pl.Series:
    """Microseconds since 1970, null if a text is not a time, [texts]."""
    iso = _written(text, _ISO, ("year", "month", "day"))
    dotted = _written(text, _DOTTED, ("day", "month", "year"))
    return iso.zip_with(iso.is_not_null(), dotted)


def _written(text: pl.Series, pattern: str, order: tuple[str, str, str]) -> pl.Series:
    frame = pl.DataFrame({"text": text.cast(pl.String)})
    groups = {name: place for place, name in enumerate((*order, "hour", "minute", "second", "parts", "zone"), start=1)}
    if "zone" in groups and pattern == _DOTTED:
        del groups["zone"]
    texts = frame["text"]
    parts = pl.DataFrame({name: texts.str.extract(pattern, place) for name, place in groups.items()})
    clock = [part.fill_null("0").str.zfill(2) for part in (pl.col("hour"), pl.col("minute"), pl.col("second"))]
    day = pl.concat_str("year", pl.col("month").str.zfill(2), pl.col("day").str.zfill(2), separator="-")
    written = pl.concat_str(day, pl.concat_str(*clock, separator=":"), separator=" ")
    whole = written.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).to_physical()
    fraction = pl.col("parts").fill_null("0").str.pad_end(6, "0").str.slice(0, 6).cast(pl.Int64)
    moment = whole + fraction
    if "zone" in groups:
        digits = pl.col("zone").str.extract_all(r"\d\d").list
        minutes = digits.get(0, null_on_oob=True).cast(pl.Int64) * 60 + digits.get(1, null_on_oob=True).cast(pl.Int64)
        sign = pl.when(pl.col("zone").str.starts_with("-")).then(-1).otherwise(1)
        moment = moment - (sign * minutes).fill_null(0) * 60_000_000
    return parts.select(moment.alias("moment")).to_series()


# Relative dates: the weekday of a decision, and the days from other dates to it.
#
# A date itself is useless as a feature, because training never saw future dates. A derived feature is named after its
# dates (`sent_at_weekday`, `registered_on_days_before_sent_at`), so users to decide for may have either the dates or
# the features; both give the same states.


_WEEKDAY, _DAYS = "_weekday", "_days_before_"
_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY = 86_400_000_000  # microseconds
_THURSDAY = 3  # 1970-01-01


def with_relative_dates(
    frame: pl.DataFrame, time: str | None, vague: Collection[str], findings: Findings
) -> pl.DataFrame:
    """A log's table with relative features in place of its dates, if the time of a decision is known: from the time
    column, or from the only date that changes within users. Vague dates stay as they are."""
    dates = [name for name, dtype in frame.schema.items() if kind_of(dtype) == "date" and name not in (*vague, *ROLES)]
    now = time if time in frame.columns else _moment(frame, dates)
    if now is None or _moments_or_none(column(frame, now)) is None:
        findings.add("dates_not_relative", why="no column holds the time of the decisions")
        return frame
    others = [name for name in dates if name != now]
    made = {f"{now}{_WEEKDAY}", *(f"{name}{_DAYS}{now}" for name in others)}
    taken = sorted(made & set(frame.columns))
    if taken:
        findings.add("dates_not_relative", column=taken[0], why="the table already has a column of that name")
        return frame
    findings.add("dates_relative", column=now, count=len(made), made=", ".join(sorted(made)))
    frame = put_back(frame, {name: _made(frame, name) for name in sorted(made)})
    return without(frame, {*others, *({now} - {time})})


def _moment(frame: pl.DataFrame, dates: list[str]) -> str | None:
    """The only date that changes within users, if there is exactly one."""
    if "user" not in frame.columns:
        return None
    users = column(frame, "user")
    alone = users.n_unique()
    changing = [name for name in dates if pl.DataFrame({"user": users, "date": column(frame, name)}).n_unique() > alone]
    return changing[0] if len(changing) == 1 else None


def dates_of(name: str) -> frozenset[str]:
    """The date columns that a feature with this name may be derived from."""
    found = {name.removesuffix(_WEEKDAY)} if name.endswith(_WEEKDAY) and name != _WEEKDAY else set()
    for first, second in _pairs(name):
        found |= {first, second}
    return frozenset(found)


def with_relative(frame: pl.DataFrame, features: Iterable[str]) -> pl.DataFrame:
    """A table to decide for, with missing features derived from its dates where possible."""
    lacking = [name for name in features if name not in frame.columns and dates_of(name) & set(frame.columns)]
    made = {name: values for name in lacking if (values := _made_or_none(frame, name)) is not None}
    return put_back(frame, made) if made else frame


def with_relative_row(row: Mapping[str, Any], features: Iterable[str]) -> Mapping[str, Any]:
    """Like `with_relative`, for a single row; `features` are those that may be derived from dates."""
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
    """All ways to read a name as one date before another, because column names may contain the separator."""
    parts = name.split(_DAYS)
    pairs = ((_DAYS.join(parts[:cut]), _DAYS.join(parts[cut:])) for cut in range(1, len(parts)))
    return [(first, second) for first, second in pairs if first and second]


def _made(frame: pl.DataFrame, name: str) -> pl.Series:
    values = _made_or_none(frame, name)
    return pl.Series(name, [None] * len(frame), dtype=pl.Float64) if values is None else values


def _made_or_none(frame: pl.DataFrame, name: str) -> pl.Series | None:
    """A feature [rows] derived from the dates of a table; None if the table lacks them."""
    base = name.removesuffix(_WEEKDAY)
    if base != name and base in frame.columns:
        moments = _moments_or_none(column(frame, base))
        days = _empty(frame) if moments is None else moments // _DAY
        return ((days + _THURSDAY) % 7).replace_strict(dict(enumerate(_NAMES)), default=None, return_dtype=pl.String)
    for first, second in _pairs(name):
        if {first, second} <= set(frame.columns):
            before, now = _moments_or_none(column(frame, first)), _moments_or_none(column(frame, second))
            if before is None or now is None:
                return _empty(frame).cast(pl.Float64)
            return (now // _DAY - before // _DAY).cast(pl.Float64)
    return None


def _empty(frame: pl.DataFrame) -> pl.Series:
    return pl.Series("value", [None] * len(frame), dtype=pl.Int64)


def _moments_or_none(values: pl.Series) -> pl.Series | None:
    """Dates as microseconds since 1970, [rows]; None if a column holds none."""
    if kind_of(values.dtype) not in ("date", "text"):
        return None
    return read_times(plain(values))


def _moment_of(value: Any) -> int | None:
    return _moment_of_text(value) if isinstance(value, str) else _moment_in(pl.Series([value], strict=False))


@lru_cache(maxsize=4_096)
def _moment_of_text(text: str) -> int | None:
    return _moment_in(pl.Series([text], dtype=pl.String))


def _moment_in(values: pl.Series) -> int | None:
    moments = _moments_or_none(values)
    return None if moments is None else moments[0]

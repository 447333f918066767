"""When something happened: dates and times, as types or as text, in one form."""

from __future__ import annotations

import polars as pl

from redenvelope.log.tables import kind_of

__all__ = ["is_calendar", "read_times"]

_CLOCK = r"(?:(?:[T ]|,? +)(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?"
_ISO = rf"^(\d{{4}})[-/](\d{{1,2}})[-/](\d{{1,2}}){_CLOCK} ?(Z|UTC|[+-]\d{{2}}:?\d{{2}})?$"
_DOTTED = rf"^(\d{{1,2}})\.(\d{{1,2}})\.(\d{{4}}){_CLOCK}$"  # day first, wherever dots are written
_SLASHED = r"^\d{1,2}/\d{1,2}/\d{4}(?: .*)?$"  # nobody but its writer knows whether the day or the month comes first
_MONTH = r"^\d{4}-(?:\d{2}|W\d{2}|Q[1-4])$"


def read_times(values: pl.Series) -> pl.Series | None:
    """Moments as whole numbers that grow with time [rows], null where a value is none; None where none can be.

    Dates and times, text as ISO 8601 or with the day first and dots, and numbers such as seconds since 1970.
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
    """Whether a column of text holds dates, times, months or weeks of the calendar and nothing else."""
    filled = text.drop_nulls()
    # The first few rule out nearly every column; dates that no calendar has (2024-02-31) are labels like any other.
    pattern = "|".join((_ISO, _DOTTED, _SLASHED, _MONTH))
    if not len(filled) or not filled.head(20).str.contains(pattern).all():
        return False
    distinct = filled.unique()
    known = _moments(distinct).is_not_null() | distinct.str.contains(f"{_SLASHED}|{_MONTH}")
    return bool(known.all())


def _moments(text: pl.Series) -> pl.Series:
    """Microseconds since 1970, null where a text is no moment, [texts]."""
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

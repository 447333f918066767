"""Text that means a number: what counts as one, and what counts as missing."""

from __future__ import annotations

import polars as pl

__all__ = [
    "CURRENCY",
    "LOOKS",
    "MISSING_WORDS",
    "PLAIN_INTEGER",
    "days",
    "is_number",
    "looks_dressed",
    "outside_calendar",
    "plain_times",
    "to_numbers",
]

PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
"""Text that an integer is written as: "007" and "+7" are not, so they stay text."""

_FIGURES = r"\d[\d.,'’\s]*"
CURRENCY = (
    r"(?:\p{Sc}|EUR|USD|GBP|CHF|JPY|CNY|RMB|INR|KRW|BRL|CAD|AUD|MXN|SEK|NOK|DKK|PLN|CZK|HUF|RUB|TRY|ZAR|kr\.?|zł|Kč|Ft)"
)
"""A sign or a code before or after an amount."""

LOOKS = {
    "value_percentage": rf"^[+-]?\s*{_FIGURES}%$",
    "value_currency": rf"^[+-]?\s*{CURRENCY}\s*[+-]?{_FIGURES}$|^[+-]?\s*{_FIGURES}{CURRENCY}$",
    "value_separators": r"^[+-]?\d{1,3}([ ,.'’\u{a0}\u{202f}]\d{3})+([.,]\d+)?$|^[+-]?\d+,\d+$",
}
"""Rule -> the form of text that means a number to a person, and none here: it could be read in two ways."""

MISSING_WORDS = ("NA", "N/A", "n/a", "#N/A", "null", "NULL", "-")
"""Text that stands for a missing number."""

_TRUTH = {"true": "1", "false": "0"}
_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_CALENDAR = (-719_162, 2_932_896)  # the years 1 to 9999, in days since 1970: what a calendar is defined for
_LONGEST = 999_999_999  # days


def to_numbers(values: pl.Series) -> pl.Series:
    """Numbers as float64: text is read ("1e3", "NaN", "true"); missing words and what is no number become null."""
    if values.dtype == pl.String:
        lowered = values.str.to_lowercase()
        values = lowered.replace(_TRUTH).zip_with(lowered.is_in(list(_TRUTH)).fill_null(False), values)
    return values.cast(pl.Float64, strict=False)


def is_number(values: pl.Series) -> pl.Series:
    """Which values are numbers, or stand for a missing one."""
    missing = values.is_null() | values.is_in(list(MISSING_WORDS)) if values.dtype == pl.String else values.is_null()
    return to_numbers(values).is_not_null() | missing


def looks_dressed(text: pl.Series) -> pl.Series:
    """Which texts are numbers in the dress of a spreadsheet: 25%, €1,200.50, 1 200,50."""
    return text.str.contains("|".join(f"({look})" for look in LOOKS.values())).fill_null(False)


def days(values: pl.Series) -> pl.Series:
    """Dates as days since 1970, times of day and durations as parts of a day; float64."""
    return values.to_physical().cast(pl.Float64) / _ticks(values.dtype)


def outside_calendar(values: pl.Series) -> pl.Series:
    """Which dates and times no calendar knows: whatever shows or converts one of them breaks."""
    low, high = (-_LONGEST, _LONGEST) if values.dtype == pl.Duration else _CALENDAR
    ticks = _ticks(values.dtype)
    first, last = (0, ticks - 1) if values.dtype == pl.Time else (low * ticks, (high + 1) * ticks - 1)
    # The longest durations are beyond int64 in the finest unit: no value can be.
    first, last = max(first, -(2**63)), min(last, 2**63 - 1)
    return (~values.to_physical().cast(pl.Int64).is_between(first, last)).fill_null(False)


def plain_times(values: pl.Series) -> pl.Series:
    """Dates and times without zones, in microseconds; null where no calendar knows them."""
    known = values.to_physical().cast(pl.Int64).set(outside_calendar(values), None)
    dtype = values.dtype
    if isinstance(dtype, pl.Datetime | pl.Duration):
        known = known * 1_000 if dtype.time_unit == "ms" else known // 1_000 if dtype.time_unit == "ns" else known
        dtype = pl.Datetime("us") if isinstance(dtype, pl.Datetime) else pl.Duration("us")
    return known.cast(pl.Int32).cast(pl.Date) if dtype == pl.Date else known.cast(dtype)


def _ticks(dtype: pl.DataType) -> int:
    """How many of what a type counts in make a day."""
    if isinstance(dtype, pl.Datetime | pl.Duration):
        return _DAY[dtype.time_unit]
    return _DAY["ns"] if dtype == pl.Time else 1

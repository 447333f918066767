"""Text that means a number: what counts as one, and what counts as missing."""

from __future__ import annotations

import polars as pl

__all__ = ["LOOKS", "MISSING_WORDS", "PLAIN_INTEGER", "THOUSANDS", "days", "is_number", "looks_dressed", "to_numbers"]

PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
"""Text that an integer is written as: "007" and "+7" are not, so they stay text."""

THOUSANDS = r"^[+-]?[1-9]\d{0,2},\d{3}$"
"""Text such as 1,200 whose comma may stand before thousands or before decimals."""

_FIGURES = r"\d[\d.,'’\s]*"
_CURRENCY = (
    r"(\p{Sc}|EUR|USD|GBP|CHF|JPY|CNY|RMB|INR|KRW|BRL|CAD|AUD|MXN|SEK|NOK|DKK|PLN|CZK|HUF|RUB|TRY|ZAR|kr\.?|zł|Kč|Ft)"
)
LOOKS = {
    "value_percentage": rf"^[+-]?\s*{_FIGURES}%$",
    "value_currency": rf"^[+-]?\s*{_CURRENCY}\s*[+-]?{_FIGURES}$|^[+-]?\s*{_FIGURES}{_CURRENCY}$",
    "value_separators": r"^[+-]?\d{1,3}([ ,.'’\u{a0}\u{202f}]\d{3})+([.,]\d+)?$|^[+-]?\d+,\d+$",
}
"""Rule -> the form of text that means a number to a person, and none here: it could be read in two ways."""

MISSING_WORDS = ("NA", "N/A", "n/a", "#N/A", "null", "NULL", "-")
"""Text that stands for a missing number."""

_TRUTH = {"true": "1", "false": "0"}
_DAY_MICROSECONDS = 86_400_000_000


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
    if values.dtype == pl.Duration:
        return values.dt.total_microseconds() / _DAY_MICROSECONDS
    if values.dtype == pl.Time:
        return values.cast(pl.Int64) / (_DAY_MICROSECONDS * 1_000)
    return values.cast(pl.Datetime("us")).dt.epoch("us") / _DAY_MICROSECONDS

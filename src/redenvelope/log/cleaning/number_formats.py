"""Number formats of spreadsheets (`1.142,40 €`, `1,200.50`, `25 %`), and text that means a number or a missing one.

The values of a column decide whether a comma marks decimals or thousands, and one value may suffice: `12,5` cannot be
thousands. If no value decides (`1,200`), the other columns of the table may; otherwise the values are left as they are
and reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

Decimal = Literal["comma", "point"]

_GAP = r"[ '’\u{a0}\u{202f}\u{2009}]"
_BY_POINTS, _BY_COMMAS, _BY_GAPS = r"(?:\.\d{3})+", r"(?:,\d{3})+", rf"(?:{_GAP}\d{{3}})+"
_COMMA = (
    rf"^(?:\d+,\d{{1,2}}|\d+,\d{{4,}}|0+,\d+|\d{{1,3}}(?:{_BY_POINTS}|{_BY_GAPS}),\d+|\d{{1,3}}\.\d{{3}}{_BY_POINTS})$"
)
_POINT = (
    rf"^(?:\d*\.\d{{1,2}}|\d*\.\d{{4,}}|0*\.\d+|\d{{1,3}}(?:{_BY_COMMAS}|{_BY_GAPS})\.\d+"
    rf"|\d{{1,3}},\d{{3}}{_BY_COMMAS}|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?:\.\d+)?)$"  # in India, 12,34,567.89
)
_COMMA_UNSURE, _POINT_UNSURE = r"^[1-9]\d{0,2},\d{3}$", r"^[1-9]\d{0,2}\.\d{3}$"
_WHOLE = rf"^(?:\d+|\d{{1,3}}(?:{_GAP}\d{{3}})+)$"
_OUTSIDE = r"^[\s\u{a0}\u{202f}]+|[\s\u{a0}\u{202f}]+$"
_LETTERS = [*",%'’ \u00a0\u202f€$£¥₹", "EUR", "USD", "CHF", "GBP", "kr", "zł"]


@dataclass(frozen=True)
class Evidence:
    """What the distinct values of a column say about its decimal mark."""

    comma: int
    """Number of values that can only have a decimal comma."""
    point: int
    unsure: int
    """Number of ambiguous values, with one comma or one point before three digits."""


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column were written."""

    count: int
    """Number of rows that were not plain numbers."""
    decimal: Decimal
    percent: bool
    currency: str
    grouped: bool
    """Whether thousands are separated."""
    examples: tuple[str, ...]
    """A few, such as `'1.142,40 €' is 1142.40`."""

    @property
    def only_comma(self) -> bool:
        """Whether the decimal comma is the only unusual thing."""
        return self.decimal == "comma" and not (self.percent or self.currency or self.grouped)

    @property
    def words(self) -> str:
        """What is unusual, as text."""
        said = [
            "a decimal comma" if self.decimal == "comma" else "",
            "separated thousands" if self.grouped else "",
            f"a currency ({self.currency})" if self.currency else "",
            "a percent sign, so that 25 % is 0.25" if self.percent else "",
        ]
        return " and ".join(part for part in said if part)


def may_be_formatted(text: pl.Series) -> bool:
    """Whether any value has a character that plain numbers do not have; fast, with false positives for words."""
    return bool(text.str.contains_any(_LETTERS).any())


def evidence_in(text: pl.Series) -> Evidence:
    """The evidence in a column's distinct values."""
    bare = _bare(text.drop_nulls().unique())["bare"]

    def count(pattern: str) -> int:
        return int(bare.str.contains(pattern).sum())

    return Evidence(count(_COMMA), count(_POINT), count(f"{_COMMA_UNSURE}|{_POINT_UNSURE}"))


def table_decimal(columns: Mapping[str, Evidence]) -> Decimal | None:
    """The decimal mark that all columns of a table agree on; None if they disagree or say nothing."""
    comma, point = (sum(getattr(column, name) for column in columns.values()) for name in ("comma", "point"))
    return "comma" if comma and not point else "point" if point and not comma else None


def to_plain_numbers(text: pl.Series) -> pl.Series:
    """A column with plain numbers, as far as the column alone determines how to read it."""
    return without_format(text, evidence_in(text), None)[0] if may_be_formatted(text) else text


def without_format(text: pl.Series, own: Evidence, table: Decimal | None) -> tuple[pl.Series, NumberFormat | None]:
    """A text column with plain numbers in place of formatted ones; ambiguous values stay as they are.

    Percentages are read only if all values are percentages (or 0), and amounts only if all have the same currency.
    """
    decimal: Decimal | None = "comma" if own.comma > own.point else "point" if own.point else table
    distinct = text.drop_nulls().unique(maintain_order=True)
    parts = _bare(distinct).with_columns(pl.Series("text", distinct))
    signs = [sign for sign in parts["currency"].drop_nulls().unique(maintain_order=True) if sign]
    zero = pl.col("bare").str.contains(r"^0*(?:[.,]0*)?$")
    missing = pl.col("text").is_in(list(MISSING_WORDS))
    percent = bool(parts["percent"].any()) and parts.select((pl.col("percent") | zero | missing).all()).item()
    currency = signs[0] if len(signs) == 1 else ""
    number = _plain(decimal)
    number = pl.when(pl.col("percent") & (not percent)).then(None).otherwise(number)
    number = pl.when((pl.col("currency") != "") & (currency == "")).then(None).otherwise(number)
    read = parts.with_columns(number.alias("number")).filter(pl.col("number").is_not_null())
    if percent:
        hundredth = read["number"].cast(pl.Float64) / 100
        read = read.with_columns(hundredth.round(12).cast(pl.String).alias("number"))
    changed = read.filter(pl.col("text") != pl.col("number"))
    # A value that is a number as it stands keeps its meaning, unless its point separated thousands.
    kept = changed.filter(~is_number(changed["text"]) | (to_numbers(changed["text"]) != to_numbers(changed["number"])))
    if not len(kept):
        return text, None
    undressed = text.replace(kept["text"], kept["number"])
    examples = tuple(f"{row['text']!r} is {row['number']}" for row in kept.head(5).iter_rows(named=True))
    between = r"\." if decimal == "comma" else ","
    grouped = bool(kept["text"].str.contains(rf"\d(?:{_GAP}|{between})\d{{3}}(?:\D|$)").any())
    count = int((undressed != text).fill_null(False).sum())
    return undressed, NumberFormat(count, decimal or "point", percent, currency, grouped, examples)


def _bare(distinct: pl.Series) -> pl.DataFrame:
    """Values without sign, currency and percent sign: `bare`, `minus`, `percent`, `currency`, each [values]."""
    text = pl.col("text").str.replace_all(_OUTSIDE, "")
    currency = text.str.extract(rf"(?:^[+-]?\s*({CURRENCY})\s*[+-]?\s*\d)|(?:\d\s*({CURRENCY})$)", 0)
    sign = currency.str.extract(f"({CURRENCY})", 1).fill_null("")
    frame = pl.DataFrame({"text": distinct.cast(pl.String)}).with_columns(
        text.alias("text"), sign.alias("currency"), text.str.ends_with("%").alias("percent")
    )
    rest = pl.col("text").str.replace(rf"^([+-]?)\s*{CURRENCY}\s*([+-]?)\s*(\d)", "$1$3$4")
    rest = rest.str.replace(rf"(\d)\s*(?:{CURRENCY}|%)$", "$1")
    frame = frame.with_columns(rest.alias("rest"))
    return frame.select(
        pl.col("rest").str.replace(r"^[+-]\s*", "").alias("bare"),
        pl.col("rest").str.starts_with("-").alias("minus"),
        "percent",
        "currency",
    )


def _plain(decimal: Decimal | None) -> pl.Expr:
    """The number of a bare value as plain text; null if it is not a number or is ambiguous."""
    bare = pl.col("bare")
    no_gaps = bare.str.replace_all(_GAP, "")
    by_comma = no_gaps.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    by_point = no_gaps.str.replace_all(",", "", literal=True)
    fits_comma = bare.str.contains(f"{_COMMA}|{_COMMA_UNSURE}|{_POINT_UNSURE}")
    fits_point = bare.str.contains(f"{_POINT}|{_COMMA_UNSURE}|{_POINT_UNSURE}")
    broken = {
        "comma": pl.when(fits_comma).then(by_comma),
        "point": pl.when(fits_point).then(by_point),
        None: pl.when(bare.str.contains(_POINT_UNSURE)).then(bare),
    }[decimal].otherwise(None)
    number = pl.when(bare.str.contains(_WHOLE)).then(no_gaps).otherwise(broken)
    return pl.concat_str(pl.when(pl.col("minus")).then(pl.lit("-")).otherwise(pl.lit("")), number)


# Text as numbers, missing values, and dates as days.


PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
"""Text in the standard form of an integer; "007" and "+7" are not, so they stay text."""

_FIGURES = r"\d[\d.,'’\s]*"
CURRENCY = (
    r"(?:\p{Sc}|EUR|USD|GBP|CHF|JPY|CNY|RMB|INR|KRW|BRL|CAD|AUD|MXN|SEK|NOK|DKK|PLN|CZK|HUF|RUB|TRY|ZAR|kr\.?|zł|Kč|Ft)"
)
"""A currency's sign or code, before or after an amount."""

LOOKS = {
    "value_percentage": rf"^[+-]?\s*{_FIGURES}%$",
    "value_currency": rf"^[+-]?\s*{CURRENCY}\s*[+-]?{_FIGURES}$|^[+-]?\s*{_FIGURES}{CURRENCY}$",
    "value_separators": r"^[+-]?\d{1,3}([ ,.'’\u{a0}\u{202f}]\d{3})+([.,]\d+)?$|^[+-]?\d+,\d+$",
}
"""Rule -> the form of text that a person reads as a number, but which is ambiguous here."""

MISSING_WORDS = ("NA", "N/A", "n/a", "#N/A", "null", "NULL", "-")
"""Words for a missing number."""

_TRUTH = {"true": "1", "false": "0"}
_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_CALENDAR = (-719_162, 2_932_896)  # days since 1970: the years 1 to 9999
_LONGEST = 999_999_999  # days


def to_numbers(values: pl.Series) -> pl.Series:
    """Numbers as float64; text is parsed ("1e3", "NaN", "true"), and missing words and other text become null."""
    if values.dtype == pl.String:
        lowered = values.str.to_lowercase()
        values = lowered.replace(_TRUTH).zip_with(lowered.is_in(list(_TRUTH)).fill_null(False), values)
    return values.cast(pl.Float64, strict=False)


def is_number(values: pl.Series) -> pl.Series:
    """Which values are numbers or stand for a missing one."""
    missing = values.is_null() | values.is_in(list(MISSING_WORDS)) if values.dtype == pl.String else values.is_null()
    return to_numbers(values).is_not_null() | missing


def looks_formatted(text: pl.Series) -> pl.Series:
    """Which texts are numbers with a spreadsheet's format: 25%, €1,200.50, 1 200,50."""
    return text.str.contains("|".join(f"({look})" for look in LOOKS.values())).fill_null(False)


def days(values: pl.Series) -> pl.Series:
    """Dates as days since 1970, times of day and durations as fractions of a day; float64."""
    return values.to_physical().cast(pl.Float64) / _ticks(values.dtype)


def outside_calendar(values: pl.Series) -> pl.Series:
    """Which dates and times are outside the calendar, so that showing or converting them would fail."""
    low, high = (-_LONGEST, _LONGEST) if values.dtype == pl.Duration else _CALENDAR
    ticks = _ticks(values.dtype)
    first, last = (0, ticks - 1) if values.dtype == pl.Time else (low * ticks, (high + 1) * ticks - 1)
    # In the finest unit, the limits may exceed int64, which no value can.
    first, last = max(first, -(2**63)), min(last, 2**63 - 1)
    return (~values.to_physical().cast(pl.Int64).is_between(first, last)).fill_null(False)


def plain_times(values: pl.Series) -> pl.Series:
    """Dates and times without zones, in microseconds; null if outside the calendar."""
    known = values.to_physical().cast(pl.Int64).set(outside_calendar(values), None)
    dtype = values.dtype
    if isinstance(dtype, pl.Datetime | pl.Duration):
        known = known * 1_000 if dtype.time_unit == "ms" else known // 1_000 if dtype.time_unit == "ns" else known
        dtype = pl.Datetime("us") if isinstance(dtype, pl.Datetime) else pl.Duration("us")
    return known.cast(pl.Int32).cast(pl.Date) if dtype == pl.Date else known.cast(dtype)


def _ticks(dtype: pl.DataType) -> int:
    """How many units of a type make a day."""
    if isinstance(dtype, pl.Datetime | pl.Duration):
        return _DAY[dtype.time_unit]
    return _DAY["ns"] if dtype == pl.Time else 1

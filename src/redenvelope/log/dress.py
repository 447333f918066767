"""Numbers in the dress of a spreadsheet: `1.142,40 €`, `1,200.50`, `25 %`, read one way whatever the file.

Whether a comma stands before decimals or before thousands is told by the column's own values, one of which suffices:
`12,5` cannot be thousands. Where no value of a column tells (`1,200`), the other columns of the table may; where
those do not either, nobody knows, and the values are left as they are, to be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

from redenvelope.log.numbers import CURRENCY, MISSING_WORDS, is_number, to_numbers

__all__ = ["Dress", "Evidence", "evidence_in", "may_be_dressed", "table_decimal", "undress", "undress_alone"]

Decimal = Literal["comma", "point"]

_GAP = r"[ '’\u{a0}\u{202f}\u{2009}]"
_BY_POINTS, _BY_COMMAS, _BY_GAPS = r"(?:\.\d{3})+", r"(?:,\d{3})+", rf"(?:{_GAP}\d{{3}})+"
_COMMA = (
    rf"^(?:\d+,\d{{1,2}}|\d+,\d{{4,}}|0+,\d+|\d{{1,3}}(?:{_BY_POINTS}|{_BY_GAPS}),\d+|\d{{1,3}}\.\d{{3}}{_BY_POINTS})$"
)
_POINT = (
    rf"^(?:\d*\.\d{{1,2}}|\d*\.\d{{4,}}|0*\.\d+|\d{{1,3}}(?:{_BY_COMMAS}|{_BY_GAPS})\.\d+"
    rf"|\d{{1,3}},\d{{3}}{_BY_COMMAS})$"
)
_COMMA_UNSURE, _POINT_UNSURE = r"^[1-9]\d{0,2},\d{3}$", r"^[1-9]\d{0,2}\.\d{3}$"
_WHOLE = rf"^(?:\d+|\d{{1,3}}(?:{_GAP}\d{{3}})+)$"
_OUTSIDE = r"^[\s\u{a0}\u{202f}]+|[\s\u{a0}\u{202f}]+$"
_LETTERS = [
    ",",
    "%",
    "'",
    "’",
    " ",
    "\u00a0",
    "\u202f",
    "€",
    "$",
    "£",
    "¥",
    "EUR",
    "USD",
    "CHF",
    "GBP",
    "kr",
    "zł",
    "₹",
]


@dataclass(frozen=True)
class Evidence:
    """What the different values of a column say about its decimals."""

    comma: int
    """How many can only have a decimal comma."""
    point: int
    unsure: int
    """How many have one comma before three digits, or one point."""


@dataclass(frozen=True)
class Dress:
    """How numbers of a column were written."""

    count: int
    """Rows that were not plain numbers."""
    decimal: Decimal
    percent: bool
    currency: str
    grouped: bool
    """Whether thousands are set apart."""
    examples: tuple[str, ...]
    """`'1.142,40 €' is 1142.40`, at most a few."""

    @property
    def only_comma(self) -> bool:
        """Whether nothing but the comma is unusual."""
        return self.decimal == "comma" and not (self.percent or self.currency or self.grouped)

    @property
    def words(self) -> str:
        """What is unusual, for people."""
        said = [
            "a decimal comma" if self.decimal == "comma" else "",
            "separated thousands" if self.grouped else "",
            f"a currency ({self.currency})" if self.currency else "",
            "a percent sign, so that 25 % is 0.25" if self.percent else "",
        ]
        return " and ".join(part for part in said if part)


def may_be_dressed(text: pl.Series) -> bool:
    """Whether any value holds a letter that plain numbers do not; fast, and often wrong about words."""
    return bool(text.str.contains_any(_LETTERS).any())


def evidence_in(text: pl.Series) -> Evidence:
    """What a column's different values say."""
    bare = _bare(text.drop_nulls().unique())["bare"]

    def count(pattern: str) -> int:
        return int(bare.str.contains(pattern).sum())

    return Evidence(count(_COMMA), count(_POINT), count(f"{_COMMA_UNSURE}|{_POINT_UNSURE}"))


def table_decimal(columns: Mapping[str, Evidence]) -> Decimal | None:
    """What all columns of a table agree on; None where they do not, or say nothing."""
    comma, point = (sum(getattr(column, name) for column in columns.values()) for name in ("comma", "point"))
    return "comma" if comma and not point else "point" if point and not comma else None


def undress_alone(text: pl.Series) -> pl.Series:
    """A column as plain numbers as far as it tells by itself how to read it."""
    return undress(text, evidence_in(text), None)[0] if may_be_dressed(text) else text


def undress(text: pl.Series, own: Evidence, table: Decimal | None) -> tuple[pl.Series, Dress | None]:
    """A column of text with plain numbers in the place of dressed ones; what cannot be read for sure stays as it is.

    Percentages are read where every filled value is one (or 0), amounts where all are in the same currency.
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
    # What is a number as it stands means the same after the change, unless its point set thousands apart.
    kept = changed.filter(~is_number(changed["text"]) | (to_numbers(changed["text"]) != to_numbers(changed["number"])))
    if not len(kept):
        return text, None
    undressed = text.replace(kept["text"], kept["number"])
    examples = tuple(f"{row['text']!r} is {row['number']}" for row in kept.head(5).iter_rows(named=True))
    between = r"\." if decimal == "comma" else ","
    grouped = bool(kept["text"].str.contains(rf"\d(?:{_GAP}|{between})\d{{3}}(?:\D|$)").any())
    count = int((undressed != text).fill_null(False).sum())
    return undressed, Dress(count, decimal or "point", percent, currency, grouped, examples)


def _bare(distinct: pl.Series) -> pl.DataFrame:
    """Values less sign, currency and percent sign: `bare`, `minus`, `percent`, `currency`, each [values]."""
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
    """The number of a bare value as plain text; null where it is none, or may be one of two."""
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

"""Repairs of a table before its columns are typed: formatted numbers, dates as text, yes and no, missing costs.

Each repair depends on all rows, so it is made once, on the joined table, and in the same way for every format.
"""

from __future__ import annotations

import polars as pl

from redenvelope.log.cleaning.dates import is_calendar, read_times, with_relative_dates
from redenvelope.log.cleaning.number_formats import (
    MISSING_WORDS,
    NumberFormat,
    evidence_in,
    is_number,
    may_be_formatted,
    table_decimal,
    without_format,
)
from redenvelope.log.columns import ROLES, ColumnMap, column, put_back
from redenvelope.log.findings import Findings
from redenvelope.log.tables import FILE, ROW, Table

_OUTCOMES = ("propensity", "reward", "cost")
_NOT_NUMBERS = frozenset(ROLES) - frozenset(_OUTCOMES) | {ROW, FILE}
_YES_NO = (
    ("yes", "no"),
    ("y", "n"),
    ("ja", "nein"),
    ("j", "n"),
    ("oui", "non"),
    ("si", "no"),
    ("sí", "no"),
    ("sim", "não"),
    ("wahr", "falsch"),
    ("vrai", "faux"),
    ("t", "f"),
)


def repaired(table: Table, columns: ColumnMap, findings: Findings) -> Table:
    """The table with plain numbers, real dates, and missing costs filled in if the user said so."""
    frame = table.frame
    said = {name for name in (columns.time, columns.episode, columns.cluster) if name is not None}
    text = [name for name, dtype in frame.schema.items() if dtype == pl.String and name not in _NOT_NUMBERS | said]
    frame = _with_plain_numbers(frame, text, findings)
    frame, vague = _with_dates(frame, [name for name in text if name not in _OUTCOMES])
    if columns.dates == "relative":
        frame = with_relative_dates(frame, columns.time, vague | said - {columns.time}, findings)
    if "reward" in text:
        frame = _with_truth(frame, findings)
    if columns.missing_cost is not None and "cost" in frame.columns:
        frame = with_costs(frame, columns.missing_cost, findings)
    return Table(frame, table.files, table.folders)


def _with_plain_numbers(frame: pl.DataFrame, names: list[str], findings: Findings) -> pl.DataFrame:
    """The table with plain numbers in place of formatted ones; in features only if all values are numbers."""
    formatted = [name for name in names if may_be_formatted(column(frame, name))]
    if not formatted:
        return frame
    # A plain number is evidence about decimals too, so look at every text column.
    evidence = {name: evidence_in(column(frame, name)) for name in names}
    decimal = table_decimal(evidence)
    repaired = {}
    for name in names if decimal == "comma" else formatted:
        values = column(frame, name)
        plain, found = without_format(values, evidence[name], decimal)
        if found is not None and (name in _OUTCOMES or is_number(plain).all()):
            repaired[name] = plain
            _report(name, found, findings)
    return put_back(frame, repaired)


def _report(name: str, found: NumberFormat, findings: Findings) -> None:
    rule = "decimal_comma" if found.only_comma else "number_dress"
    findings.add(rule, column=name, count=found.count, examples=found.examples, dress=found.words)


def _with_dates(frame: pl.DataFrame, names: list[str]) -> tuple[pl.DataFrame, set[str]]:
    """The table with text columns of dates as dates, and the names of those whose exact days are unknown."""
    dates, vague = {}, set()
    for name in names:
        values = column(frame, name)
        if is_calendar(values):
            moments = read_times(values)
            if moments is None or moments.null_count() > values.null_count():
                # Months, or days that may be months: keep only the order.
                vague.add(name)
                dates[name] = values.rank("dense").cast(pl.Int32).cast(pl.Date)
            else:
                dates[name] = moments.cast(pl.Datetime("us"))
    return put_back(frame, dates), vague


def _with_truth(frame: pl.DataFrame, findings: Findings) -> pl.DataFrame:
    """The table with rewards that are words for yes and no as 1 and 0."""
    words = column(frame, "reward").str.to_lowercase()
    present = set(words.drop_nulls().unique()) - {word.lower() for word in MISSING_WORDS}
    for yes, no in _YES_NO:
        if present and present <= {yes, no} and yes in present:
            truth = words.replace_strict({yes: "1", no: "0"}, default=None, return_dtype=pl.String)
            findings.add("truth_in_words", column="reward", count=int(truth.is_not_null().sum()), yes=yes, no=no)
            return put_back(frame, {"reward": truth})
    return frame


def with_costs(frame: pl.DataFrame, cost: float, findings: Findings) -> pl.DataFrame:
    """The frame with missing costs replaced by `cost`."""
    values = column(frame, "cost")
    empty = values.is_null()
    if values.dtype == pl.String:
        empty |= values.is_in(list(MISSING_WORDS)).fill_null(False)
    elif values.dtype.is_float():
        empty |= values.is_nan().fill_null(False)  # some tools write NaN for an empty field
    if not empty.any():
        return frame
    findings.add("cost_filled", column="cost", count=int(empty.sum()), value=f"{cost:g}")
    filled = pl.Series([f"{cost!r}" if values.dtype == pl.String else cost])
    if values.dtype != pl.String:
        values = values.cast(pl.Float64)
    return put_back(frame, {"cost": filled.new_from_index(0, len(values)).zip_with(empty, values)})

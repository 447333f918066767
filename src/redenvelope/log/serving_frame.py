"""A table of users to decide for, read as a log's features were: what is odd about it is used as defined, and said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.dress import undress_alone
from redenvelope.log.encodings import RARE_USERS, CategoryEncoding, NumberEncoding
from redenvelope.log.findings import EXAMPLES, Findings
from redenvelope.log.ids import read_steps
from redenvelope.log.log import FeatureTable
from redenvelope.log.named import column
from redenvelope.log.numbers import days, is_number, outside_calendar, to_numbers
from redenvelope.log.tables import TEMPORAL, kind_of, plain

__all__ = ["report_outside", "serving_numbers", "serving_steps", "serving_table", "serving_text"]

_UNSEEN = "\0"  # stands for every label met at serving time that training did not know


def serving_steps(frame: pl.DataFrame, first_step: int, last_step: int, before: int = 0) -> NDArray[np.int32]:
    """The step of each row, [rows], all of them steps of the campaign; so many rows of the table come before."""
    if "step" not in frame.columns:
        raise ModelError("the table has no column 'step'; add the number of the decision to each row")
    steps = read_steps(frame["step"])
    outside = (steps.is_null() | (steps < first_step) | (steps > last_step)).fill_null(True)
    if outside.any():
        row = int(outside.arg_true()[0])
        shown = str(_shown(frame["step"].slice(row, 1))[0])[:60]
        raise ModelError(
            f"row {before + row + 1:,}: step {shown} is not a step of the campaign "
            f"({first_step} to {last_step}); remove the {int(outside.sum())} row(s) outside it"
        )
    return steps.cast(pl.Int32).to_numpy()


def serving_table(
    frame: pl.DataFrame,
    numbers: Sequence[NumberEncoding],
    categories: Sequence[CategoryEncoding],
    findings: Findings,
) -> FeatureTable:
    """The features of a table, as far as it has them."""
    numeric = [_number_column(frame, number, findings) for number in numbers]
    codes = [_code_column(frame, category, findings) for category in categories]
    return FeatureTable(
        numeric_names=tuple(number.name for number in numbers),
        numeric=np.stack(numeric).T if numeric else np.zeros((len(frame), 0), np.float32),
        category_names=tuple(category.name for category in categories),
        codes=np.stack(codes).T if codes else np.zeros((len(frame), 0), np.int32),
        labels=tuple((*category.labels, _UNSEEN) for category in categories),
        static=frozenset(),
    )


def serving_numbers(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Values as float64, read as a log's are, and which of them are no numbers though they are not missing."""
    kind = kind_of(values.dtype)
    if kind == "nested":
        return pl.Series(values.name, [None] * len(values), dtype=pl.Float64), values.is_not_null()
    outside = outside_calendar(values) if kind in TEMPORAL else None
    values = plain(values)
    if outside is not None:
        return days(values), outside
    if values.dtype == pl.String:
        values = undress_alone(values)
    return to_numbers(values), ~is_number(values)


def serving_text(values: pl.Series) -> pl.Series:
    """Values as text, read as a log's are."""
    kind = kind_of(values.dtype)
    if kind in TEMPORAL:
        values = plain(values)
    if kind == "nested" or kind in TEMPORAL:
        return pl.Series(values.name, [None if value is None else str(value) for value in values], dtype=pl.String)
    return plain(values).cast(pl.String)


def _number_column(frame: pl.DataFrame, encoding: NumberEncoding, findings: Findings) -> NDArray[np.float32]:
    name = encoding.name
    if name not in frame.columns:
        findings.add("serving_column_missing", column=name, count=len(frame))
        return np.full(len(frame), np.nan, dtype=np.float32)
    numbers, lost = serving_numbers(column(frame, name))
    values = numbers.cast(pl.Float32, strict=False)
    lost |= values.is_infinite().fill_null(False)
    if lost.any():
        rows = lost.arg_true()
        findings.add(
            "serving_not_a_number",
            column=name,
            count=len(rows),
            rows=[int(row) + 1 for row in rows[:EXAMPLES]],
            examples=_shown(column(frame, name).gather(rows[:EXAMPLES])),
        )
        values = values.set(lost, None)
    found = values.fill_null(float("nan")).to_numpy()
    report_outside(encoding, found, findings)
    return found


def report_outside(encoding: NumberEncoding, values: NDArray[np.float32], findings: Findings) -> None:
    """Report values [rows] beyond those that training users had."""
    if encoding.low is None or encoding.high is None:
        return
    outside = np.flatnonzero((values < encoding.low) | (values > encoding.high))
    if len(outside):
        beyond = values[outside]
        findings.add(
            "serving_outside",
            column=encoding.name,
            count=len(outside),
            rows=[int(row) + 1 for row in outside[:EXAMPLES]],
            examples=[f"{value:.6g}" for value in beyond[:EXAMPLES]],
            share=f"{len(outside) / len(values):.1%}",
            reach=f"{float(beyond.min()):.6g} to {float(beyond.max()):.6g}",
            low=f"{encoding.low:.6g}",
            high=f"{encoding.high:.6g}",
        )


def _shown(values: pl.Series) -> list[object]:
    """Values as examples; dates that no calendar knows as what they are stored as."""
    return (values.to_physical() if kind_of(values.dtype) in TEMPORAL else values).to_list()


def _code_column(frame: pl.DataFrame, encoding: CategoryEncoding, findings: Findings) -> NDArray[np.int32]:
    if encoding.name not in frame.columns:
        findings.add("serving_column_missing", column=encoding.name, count=len(frame))
        return np.full(len(frame), -1, dtype=np.int32)
    values = serving_text(column(frame, encoding.name))
    known = {label: code for code, label in enumerate(encoding.labels)}
    codes = values.replace_strict(known, default=None, return_dtype=pl.Int32)
    other = codes.is_null() & values.is_not_null()
    if other.any():
        rare = other & values.is_in(list(encoding.rare)).fill_null(False)
        for rule, concerned in (("serving_rare_label", rare), ("serving_unseen_label", other & ~rare)):
            rows = concerned.arg_true()
            if len(rows):
                findings.add(
                    rule,
                    column=encoding.name,
                    count=len(rows),
                    rows=[int(row) + 1 for row in rows[:EXAMPLES]],
                    examples=values.gather(rows).unique(maintain_order=True)[:EXAMPLES].to_list(),
                    least=RARE_USERS,
                )
    # Such a label must become "other", not "missing": give it the code of `_UNSEEN`.
    return codes.fill_null(-1).set(other, len(encoding.labels)).to_numpy()

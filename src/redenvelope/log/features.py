"""Every other column: which are numbers, which are categories, which are no features at all."""

from __future__ import annotations

import numpy as np
import polars as pl

from redenvelope.log.findings import Findings
from redenvelope.log.numbers import days, is_number, looks_dressed, to_numbers
from redenvelope.log.tables import TEMPORAL, Table, kind_of

__all__ = ["coerce_feature", "report_leaks"]

_MIXED_SHARE = 0.5  # from this share of numbers on, text in a column is a mistake and not a label
_MOST_LABELS = 10_000
_ID_SHARE = 0.5  # of the users: so many different labels name users or rows, not kinds
_ID_USERS = 100  # fewer users say nothing about cardinality
_ID_ROWS = 100
_HALF = 0.5
_LEAK = 0.99
_SAMPLE_ROWS = 100_000


def coerce_feature(table: Table, name: str, findings: Findings) -> pl.Series | None:
    """A feature as float32 or text; None when it is left out or refused (which is reported)."""
    values = table.frame[name]
    kind = kind_of(values.dtype)
    if kind in TEMPORAL:
        values = days(values)
        findings.add("feature_date", column=name, count=len(values))
        kind = "number"
    if kind == "text":
        text = values.cast(pl.String)
        if not _means_number(table, name, text, findings):
            return _category(name, text, _users(table), findings)
        values = to_numbers(text)
        kind = "integer" if (values == values.floor()).all() else "number"
    numbers = values.cast(pl.Float32, strict=False)
    numbers = numbers.fill_nan(None)
    infinite = numbers.is_infinite()
    if infinite.any():
        table.report(findings, "feature_infinite", name, infinite.fill_null(False))
        return None
    if not _has_values(name, numbers, findings):
        return None
    if kind == "integer" and _is_row_number(values):
        findings.add("feature_like_id", column=name, count=len(values), distinct=len(values), total=len(values))
        return None
    return numbers


def report_leaks(names: list[str], frame: pl.DataFrame, findings: Findings) -> None:
    """Features that all but equal the reward or the cost were known only afterwards."""
    sample = frame if len(frame) <= _SAMPLE_ROWS else frame.gather_every(len(frame) // _SAMPLE_ROWS)
    for outcome in ("reward", "cost"):
        if outcome not in frame.columns:
            continue
        for name in names:
            # A sample finds the suspects cheaply; only a suspect is worth a pass over all rows.
            if abs(_correlation(sample, name, outcome)) <= _LEAK - 0.005:
                continue
            correlation = _correlation(frame, name, outcome)
            if abs(correlation) > _LEAK:
                findings.add("feature_leak", column=name, count=len(frame), outcome=outcome, correlation=correlation)


def _correlation(frame: pl.DataFrame, name: str, outcome: str) -> float:
    pair = frame.select(pl.col(name).cast(pl.Float64), pl.col(outcome)).drop_nulls()
    if len(pair) < 3:
        return 0.0
    value = pair.select(pl.corr(name, outcome)).item()
    return 0.0 if value is None or not np.isfinite(value) else float(value)


def _means_number(table: Table, name: str, text: pl.Series, findings: Findings) -> bool:
    """Whether a column of text is a column of numbers; a few words among numbers are reported as a mistake."""
    filled = text.drop_nulls()
    head = filled.head(1_000)
    if not (head.str.contains(r"\d") | is_number(head)).any():
        return False
    distinct = filled.unique()
    numbers = is_number(distinct)
    if looks_dressed(head).mean() > _MIXED_SHARE:  # type: ignore[operator]
        table.report(findings, "feature_number_as_text", name, looks_dressed(text))
        return False
    if not to_numbers(distinct).is_not_null().any() or distinct.str.contains(r"^0\d").any():
        return False  # codes such as 00123 are labels
    if numbers.all():
        return True
    words = distinct.filter(~numbers)
    broken = text.is_in(words.implode()).fill_null(False)
    if broken.sum() > (1 - _MIXED_SHARE) * len(filled):
        return False
    table.report(findings, "feature_mixed", name, broken)
    return False


def _users(table: Table) -> int:
    """Number of users; that of rows where there is no such column."""
    return table.frame["user"].n_unique() if "user" in table.frame.columns else len(table.frame)


def _category(name: str, text: pl.Series, users: int, findings: Findings) -> pl.Series | None:
    if not _has_values(name, text, findings):
        return None
    distinct = text.n_unique()
    # A second id of the user is constant within it, so labels are counted against users, not rows.
    if distinct > _MOST_LABELS or (users >= _ID_USERS and distinct > _ID_SHARE * users):
        findings.add("feature_like_id", column=name, count=distinct, distinct=distinct, total=len(text))
        return None
    return text


def _has_values(name: str, values: pl.Series, findings: Findings) -> bool:
    """Whether a feature varies at all; half-empty ones are used, and reported."""
    missing = values.null_count()
    if missing == len(values):
        findings.add("feature_missing_all", column=name, count=missing)
        return False
    if not missing and values.min() == values.max():
        findings.add("feature_constant", column=name, count=len(values), value=values[0])
        return False
    if missing > _HALF * len(values):
        findings.add("feature_missing_half", column=name, count=missing, share=f"{missing / len(values):.1%}")
    return True


def _is_row_number(values: pl.Series) -> bool:
    """Whether integers are all different: then they name rows."""
    if len(values) < _ID_ROWS or values.null_count():
        return False
    head = values.head(10_000)
    return head.n_unique() == len(head) and values.n_unique() == len(values)

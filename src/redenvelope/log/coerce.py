"""Columns into the types they mean: ids, steps, actions and numbers; what cannot be is reported by its row."""

from __future__ import annotations

import polars as pl

from redenvelope.log.findings import Findings
from redenvelope.log.numbers import LOOKS, PLAIN_INTEGER, to_numbers
from redenvelope.log.tables import TEMPORAL, Table, kind_of

__all__ = ["coerce_action", "coerce_outcome", "coerce_step", "coerce_user"]

_EXACT_FLOAT = 2.0**53
_STEP_RANGE = 2**31 - 1


def coerce_user(table: Table, findings: Findings) -> pl.Series | None:
    """Ids as int64 or text; None when the column cannot be an id."""
    users = table.frame["user"]
    table.report(findings, "user_null", "user", users.is_null())
    kind = kind_of(users.dtype)
    if kind == "integer":
        if users.dtype != pl.UInt64:
            return users.cast(pl.Int64)
        return users.cast(pl.String)  # some are beyond int64, or they would not be unsigned any more
    if kind == "text":
        text = users.cast(pl.String)
        if not text.str.contains(PLAIN_INTEGER).all():
            return text
        whole = text.cast(pl.Int64, strict=False)  # nineteen digits may be too many for int64
        return whole if whole.null_count() == text.null_count() else text
    if kind == "number":
        fractional = (users != users.floor()) | ~users.is_finite()
        table.report(findings, "user_not_integer", "user", fractional.fill_null(False))
        table.report(findings, "user_too_large", "user", (users.abs() >= _EXACT_FLOAT).fill_null(False) & ~fractional)
        whole_ids = users.cast(pl.Int64, strict=False)
        if not fractional.any():
            findings.add("user_float", column="user", count=len(users))
        return whole_ids
    if kind != "missing":
        findings.add("user_type", column="user", count=len(users), type=f"{kind}s")
    return None


def coerce_step(table: Table, findings: Findings) -> pl.Series | None:
    """Steps as int32; None when the column cannot be a step."""
    steps = table.frame["step"]
    table.report(findings, "step_null", "step", steps.is_null())
    kind = kind_of(steps.dtype)
    if kind in TEMPORAL:
        table.report(findings, "step_not_integer", "step", steps.is_not_null())
        return None
    numbers = steps.cast(pl.Float64) if kind in ("integer", "boolean") else to_numbers(steps)
    broken = numbers.is_null() & steps.is_not_null()
    broken |= ((numbers != numbers.floor()) | ~numbers.is_finite() | (numbers.abs() > _STEP_RANGE)).fill_null(False)
    table.report(findings, "step_not_integer", "step", broken)
    if broken.any():
        numbers = numbers.set(broken, None)
    elif kind == "number":
        findings.add("step_float", column="step", count=len(steps))
    return numbers.cast(pl.Int32)


def coerce_outcome(table: Table, role: str, findings: Findings) -> pl.Series | None:
    """Propensity, reward or cost as float64, every value that is not a finite number reported."""
    values = table.frame[role]
    table.report(findings, "value_null", role, values.is_null())
    if kind_of(values.dtype) in TEMPORAL:
        table.report(findings, "not_a_number", role, values.is_not_null())
        return None
    numbers = to_numbers(values).rename(role)
    _report_no_numbers(table, role, numbers.is_null() & values.is_not_null(), findings)
    table.report(findings, "value_nan", role, numbers.is_nan().fill_null(False))
    table.report(findings, "value_infinite", role, numbers.is_infinite().fill_null(False))
    return numbers


def _report_no_numbers(table: Table, role: str, broken: pl.Series, findings: Findings) -> None:
    """Report values that are no numbers, by what they look like: each look has a remedy of its own."""
    if not broken.any():
        return
    text = table.frame[role].cast(pl.String)
    for rule, look in LOOKS.items():
        looks_so = broken & text.str.contains(look).fill_null(False)
        table.report(findings, rule, role, looks_so)
        broken &= ~looks_so
    table.report(findings, "not_a_number", role, broken)


def coerce_action(table: Table, findings: Findings) -> tuple[pl.Series, bool] | None:
    """Labels as text, and whether they are numbers; the same number written differently is one label."""
    actions = table.frame["action"]
    table.report(findings, "action_null", "action", actions.is_null())
    if actions.null_count() == len(actions):
        return None
    kind = kind_of(actions.dtype)
    if kind == "integer":
        return actions.cast(pl.String), True
    if kind == "boolean":
        return actions.cast(pl.Int8).cast(pl.String), True
    if kind in TEMPORAL:
        return actions.dt.to_string("iso"), False
    if kind == "number":
        table.report(findings, "value_nan", "action", actions.is_nan().fill_null(False))
        table.report(findings, "value_infinite", "action", actions.is_infinite().fill_null(False))
        return _number_labels(actions.cast(pl.Float64)), True
    text = actions.cast(pl.String)
    distinct = text.drop_nulls().unique()
    numbers = distinct.cast(pl.Float64, strict=False)
    if numbers.null_count() or not numbers.is_finite().all():
        return text, False
    labels = dict(zip(distinct, _number_labels(numbers), strict=True))
    if len(set(labels.values())) < len(labels):
        changed = [label for label in sorted(labels) if labels[label] != label]
        findings.add("action_label_form", column="action", count=len(changed), examples=changed)
    return text.replace(labels), True


def _number_labels(numbers: pl.Series) -> pl.Series:
    """5.0 as "5" and 2.5 as "2.5"."""
    whole = numbers.is_finite() & (numbers == numbers.floor()) & (numbers.abs() < _EXACT_FLOAT)
    return (
        numbers.cast(pl.Int64, strict=False).cast(pl.String).zip_with(whole.fill_null(False), numbers.cast(pl.String))
    )

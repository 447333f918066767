"""Text that means a number: what counts as one, and what counts as missing."""

from __future__ import annotations

import polars as pl

__all__ = ["is_number", "to_numbers"]

_MISSING = ("NA", "N/A", "n/a", "#N/A", "null", "NULL", "-")
_TRUTH = {"true": "1", "false": "0"}


def to_numbers(values: pl.Series) -> pl.Series:
    """Numbers as float64: text is read ("1e3", "NaN", "true"); missing words and what is no number become null."""
    if values.dtype == pl.String:
        lowered = values.str.to_lowercase()
        values = lowered.replace(_TRUTH).zip_with(lowered.is_in(list(_TRUTH)).fill_null(False), values)
    return values.cast(pl.Float64, strict=False)


def is_number(values: pl.Series) -> pl.Series:
    """Which values are numbers, or stand for a missing one."""
    missing = values.is_null() | values.is_in(list(_MISSING)) if values.dtype == pl.String else values.is_null()
    return to_numbers(values).is_not_null() | missing

"""Columns by their very names. The table library takes `*` and `^…$` for patterns wherever it asks for a name, and a
table's own names are not ours to choose: columns are taken and left out here, and nowhere else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import polars as pl
import polars.selectors as cs

__all__ = ["column", "is_unnamed", "put_back", "taken", "taken_lazily", "without"]


def column(frame: pl.DataFrame, name: str) -> pl.Series:
    """One column under a name of ours: what a series is asked goes through its name as well."""
    return frame.get_column(name).alias("value")


def put_back(frame: pl.DataFrame, columns: Mapping[str, pl.Series]) -> pl.DataFrame:
    """The frame with other values in some columns, by their names."""
    return frame.with_columns(values.alias(name) for name, values in columns.items())


def is_unnamed(name: str) -> bool:
    """Whether a column has no name to call it by; names of ours begin with the same character."""
    return not name or name.startswith("\0")


def taken(frame: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """The frame's columns of these names, in this order."""
    return frame.select(cs.by_name(list(names)))


def taken_lazily(frame: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """The same of a frame that is not read yet."""
    return frame.select(cs.by_name(list(names)))


def without(frame: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """The frame less the columns of these names, as far as it has them."""
    return taken(frame, [name for name in frame.columns if name not in names])

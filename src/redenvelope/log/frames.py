"""Tables in memory, whoever made them: polars, pandas, Arrow, or anything that hands its columns over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.log.named import without

__all__ = ["to_polars"]

_INDEX = re.compile(r"__index_level_\d+__")  # what Arrow calls rows' own labels that nobody named


def to_polars(table: Any, what: str = "the table") -> pl.DataFrame:
    """The same table as polars holds it.

    A polars frame, one that is not collected yet, anything that speaks Arrow's stream protocol (pandas, pyarrow,
    duckdb, modin, …) or the dataframe interchange protocol, or a mapping of names to columns.
    """
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    try:
        if hasattr(table, "__arrow_c_stream__") or isinstance(table, Mapping):
            found = pl.DataFrame(table)
        elif hasattr(table, "__dataframe__"):
            found = _interchanged(table)
        elif hasattr(table, "to_arrow"):
            found = pl.DataFrame(table.to_arrow())
        else:
            raise UsageError(
                f"{what} is a {type(table).__name__}, not a table; give a dataframe (polars, pandas, pyarrow, …) or a "
                "mapping of names to columns"
            )
    except (TypeError, ValueError, NotImplementedError, ImportError, pl.exceptions.PolarsError) as error:
        if isinstance(error, UsageError):
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{what} cannot be read as a table ({said}); convert it to polars or pyarrow") from None
    return without(found, [name for name in found.columns if _INDEX.fullmatch(name)])


def _interchanged(table: Any) -> pl.DataFrame:
    """By the interchange protocol, which not every version of polars speaks itself."""
    try:
        return pl.from_dataframe(table)
    except TypeError:
        interchange = import_module("pyarrow.interchange")
        return pl.DataFrame(interchange.from_dataframe(table))

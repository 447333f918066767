"""Dataframes of other libraries as polars frames: pandas, Arrow, or anything that exposes its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from redenvelope.errors import UsageError
from redenvelope.log.columns import without

_INDEX = re.compile(r"__index_level_\d+__")  # Arrow's name for an unnamed index


def to_polars(table: Any, what: str = "the table") -> pl.DataFrame:
    """The same table as a polars frame.

    Accepts any frame that narwhals reads (polars, eager or lazy, pandas, modin, pyarrow, duckdb, …), anything with
    Arrow's stream protocol or the dataframe interchange protocol, or a mapping of names to columns.
    """
    try:
        found = _read(table)
    except (TypeError, ValueError, NotImplementedError, ImportError, pl.exceptions.PolarsError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{what} cannot be read as a table ({said}); convert it to polars or pyarrow") from None
    if found is None:
        raise UsageError(
            f"{what} is not a table ({type(table).__name__}); pass a dataframe (polars, pandas, pyarrow, …), such as "
            "polars.read_parquet(path), or a mapping of names to columns"
        )
    return without(found, [name for name in found.columns if _INDEX.fullmatch(name)])


def _read(table: Any) -> pl.DataFrame | None:
    """The table, or None if the object is not a table."""
    frame: Any = nw.from_native(table, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        return _by_column(frame) if frame.implementation.is_pandas_like() else frame.to_polars()
    if hasattr(table, "__arrow_c_stream__") or isinstance(table, Mapping):
        return pl.DataFrame(table)
    lazy: Any = nw.from_native(table, pass_through=True)
    if isinstance(lazy, nw.LazyFrame):
        return _read(lazy.collect().to_native())
    if hasattr(table, "__dataframe__"):
        return _interchanged(table)
    return pl.DataFrame(table.to_arrow()) if hasattr(table, "to_arrow") else None


def _interchanged(table: Any) -> pl.DataFrame:
    """Read by the interchange protocol, which not every version of polars supports."""
    try:
        return pl.from_dataframe(table)
    except TypeError:
        interchange = import_module("pyarrow.interchange")
        return pl.DataFrame(interchange.from_dataframe(table))


def _by_column(frame: nw.DataFrame[Any]) -> pl.DataFrame:
    """A frame of pandas or a similar library, read without pyarrow, which polars would require.

    A named index becomes a column.
    """
    native = frame.to_native()
    named = [name for name in native.index.names if name is not None and name not in native.columns]
    frame = nw.from_native(native.reset_index(level=named)) if named else frame
    return pl.DataFrame([_column(str(name), frame.get_column(name)) for name in frame.columns])


def _column(name: str, column: nw.Series[Any]) -> pl.Series:
    """A column, with null for each of the values by which pandas marks missing ones."""
    native, kind = column.to_native(), column.dtype
    if str(native.dtype).endswith("[pyarrow]"):
        return pl.Series(name, column.to_arrow())  # already in Arrow's format
    if isinstance(kind, nw.Categorical | nw.Enum):
        labels = nw.from_native(native.cat.categories.to_series(), series_only=True)
        codes = pl.Series(native.cat.codes.to_numpy())
        return _column(name, labels).gather(codes.set(codes < 0, None))
    if isinstance(kind, nw.Datetime | nw.Duration):
        return _times(name, column.to_numpy(), getattr(kind, "time_zone", None))
    empty = column.is_null().to_numpy()
    if native.dtype != object and (kind.is_numeric() or isinstance(kind, nw.Boolean)):
        values = column.fill_null(False if isinstance(kind, nw.Boolean) else 0).to_numpy()
        return pl.Series(name, values).set(pl.Series(empty), None)
    return _objects(name, [None if gone else value for value, gone in zip(column.to_list(), empty, strict=True)])


def _times(name: str, values: np.ndarray, zone: str | None) -> pl.Series:
    """Datetimes (those with a zone are stored in UTC) or durations."""
    if np.datetime_data(values.dtype)[0] == "s":  # a unit that polars does not have
        values = values.astype(f"{values.dtype.kind}8[ms]")
    found = pl.Series(name, values)
    if zone is None:
        return found
    return found.dt.replace_time_zone("UTC").dt.convert_time_zone(zone.removeprefix("UTC") or zone)


def _objects(name: str, values: list[Any]) -> pl.Series:
    """A column that pandas holds as Python objects: text, lists, dates, or numbers of several types."""
    plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    numbers = all(value is None or isinstance(value, int | float) for value in plain)
    try:
        found = pl.Series(name, plain, strict=not numbers)
    except TypeError as error:
        raise TypeError(f"column {name!r}: {error}") from None
    if found.dtype == pl.Object:
        odd = next(value for value in plain if value is not None)
        raise TypeError(f"column {name!r} holds objects such as {odd!r}; convert them to numbers or text")
    return found

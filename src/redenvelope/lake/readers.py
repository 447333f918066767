"""Slices into frames: `user` under its own name, every row with its place of origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.lake.inputs import Slice, is_address
from redenvelope.log.coerce import ids_are_whole
from redenvelope.log.columnar import read_failures, read_parquet, scan_file
from redenvelope.log.columns import ColumnMap
from redenvelope.log.delimited import read_delimited
from redenvelope.log.eligible import ELIGIBLE, as_text, is_listed
from redenvelope.log.findings import Findings
from redenvelope.log.mend import mended, with_costs
from redenvelope.log.named import column, is_unnamed, put_back, taken_lazily, without
from redenvelope.log.relative import with_relative_dates
from redenvelope.log.tables import FILE, ROW, Table, prepared, report_not_there
from redenvelope.log.workbook import is_workbook, read_workbook
from redenvelope.plain import to_plain

__all__ = ["LogReader", "Read", "Reader", "TableReader", "raw_rows"]

_LOOKED_AT = 10_000  # rows of a slice, to see whether a column would have to be guessed at
_MOST_EPISODES = 10_000


class Read(NamedTuple):
    """The rows of a slice, and what there is to remember of them."""

    frame: pl.DataFrame
    whole_ids: bool = False
    filled: int = 0
    guessed: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    episodes: tuple[str, ...] = ()


class Reader(Protocol):
    """Reads slices of the inputs of a lake."""

    def read(self, part: Slice, findings: Findings) -> Read | None:
        """The rows of a slice; None where they cannot be had, for a reason that is among the findings."""
        ...

    @property
    def record(self) -> dict[str, Any]:
        """What a manifest keeps: slices that are read otherwise are other parts."""
        ...


@dataclass(frozen=True)
class LogReader:
    """Reads a log as it stands: nothing is decided here that all rows must be looked at for."""

    columns: ColumnMap
    without_propensity: bool = False
    """Whether propensities are to be estimated: those in the table are not looked at."""

    @property
    def record(self) -> dict[str, Any]:
        """See Reader."""
        said = to_plain(self.columns) | {"ignored": sorted(self.columns.ignored)}
        return {"of": "log", "columns": said, "without_propensity": self.without_propensity}

    def read(self, part: Slice, findings: Findings) -> Read | None:
        """See Reader."""
        columns, name = self.columns, part.input.name
        frame = raw_rows(part, columns.ignored - part.input.folders.keys(), findings)
        if frame is None:
            return None
        if part.input.rows is None:
            report_not_there(frame.columns, columns.ignored - part.input.folders.keys(), name, findings)
        added = {key: value for key, value in part.input.folders.items() if key not in frame.columns}
        frame = frame.with_columns(pl.lit(value).alias(key) for key, value in added.items())
        frame = prepared(name, frame, columns, findings)
        frame = without(frame, {"propensity"} if self.without_propensity else set())
        guessed = self._guessed(frame)
        if columns.dates == "relative":
            frame = with_relative_dates(frame, columns.time, (), findings)
        filled = 0
        if columns.missing_cost is not None and "cost" in frame.columns:
            counted = Findings()
            frame = with_costs(frame, columns.missing_cost, counted)
            filled = sum(finding.count for finding in counted.sorted())
        whole = "user" in frame.columns and ids_are_whole(frame["user"])
        return Read(_placed(frame, part), whole, filled, guessed, _present(frame), self._episodes(frame))

    def _guessed(self, frame: pl.DataFrame) -> tuple[str, ...]:
        """Columns of text that reading a whole table would take for something else, by their first rows."""
        first = frame.head(_LOOKED_AT)
        looked = mended(Table(first.with_columns(pl.lit(0).alias(FILE)), ("",)), ColumnMap(), Findings()).frame
        # What was named is looked at by its own rules.
        said = {self.columns.time, self.columns.episode, *self.columns.costs}
        text = [name for name, dtype in first.schema.items() if dtype == pl.String and name not in said]
        return tuple(name for name in text if not column(first, name).equals(column(looked, name), null_equal=True))

    def _episodes(self, frame: pl.DataFrame) -> tuple[str, ...]:
        name = self.columns.episode
        if name is None or name not in frame.columns:
            return ()
        values = column(frame, name).drop_nulls().unique().cast(pl.String).sort()
        if len(values) > _MOST_EPISODES:
            raise UsageError(f"column {name!r} has more than {_MOST_EPISODES:,} values: it tells no waves apart")
        return tuple(values)


@dataclass(frozen=True)
class TableReader:
    """Reads some columns of a table, under other names."""

    renames: Mapping[str, str]
    """The table's own names -> others."""
    wanted: tuple[str, ...]
    """By their names then; those that a file lacks are lacking."""

    @property
    def record(self) -> dict[str, Any]:
        """See Reader."""
        return {"of": "table", "renames": dict(self.renames), "wanted": sorted(self.wanted)}

    def read(self, part: Slice, findings: Findings) -> Read | None:
        """See Reader."""
        if part.input.rows is None:
            frame = raw_rows(part, frozenset(), findings)
            if frame is None:
                return None
        else:
            place = part.input.place
            scan = pl.scan_parquet(place) if is_address(place) else scan_file(Path(place))
            with read_failures(Path(place)):
                names = [name for name in scan.collect_schema() if self.renames.get(name, name) in self.wanted]
                frame = taken_lazily(scan, names).slice(part.first, part.most).collect()
            frame = _numbered(frame, part)
        names = [name for name in frame.columns if self.renames.get(name, name) in (*self.wanted, ROW)]
        taken_names = [name for name in names if name in self.renames or name not in self.renames.values()]
        frame = frame.select(taken_names).rename({name: self.renames[name] for name in names if name in self.renames})
        if ELIGIBLE in frame.columns and is_listed(frame.schema[ELIGIBLE]):
            frame = put_back(frame, {ELIGIBLE: as_text(column(frame, ELIGIBLE))})
        return Read(_placed(frame, part), present=tuple(frame.columns))


def raw_rows(part: Slice, ignored: frozenset[str], findings: Findings) -> pl.DataFrame | None:
    """The rows as they are stored, numbered from 1."""
    place, name = part.input.place, part.input.name
    if is_address(place):
        scan = pl.scan_parquet(place)
        kept = [key for key in scan.collect_schema() if key not in ignored and not is_unnamed(key)]
        return _numbered(taken_lazily(scan, kept).slice(part.first, part.most).collect(), part)
    path = Path(place)
    if part.input.rows is not None:
        return read_parquet(path, name, ignored, findings, part.first, part.most)
    return read_workbook(path, findings, name) if is_workbook(path) else read_delimited(path, findings, name)


def _numbered(frame: pl.DataFrame, part: Slice) -> pl.DataFrame:
    """The rows with their numbers, of which an address may have more than 32 bits count."""
    return frame.with_columns(pl.int_range(part.first + 1, part.first + len(frame) + 1, dtype=pl.UInt64).alias(ROW))


def _placed(frame: pl.DataFrame, part: Slice) -> pl.DataFrame:
    return frame.with_columns(pl.lit(part.file, dtype=pl.UInt32).alias(FILE), pl.col(ROW).cast(pl.UInt64))


def _present(frame: pl.DataFrame) -> tuple[str, ...]:
    return tuple(name for name in frame.columns if frame.get_column(name).null_count() < len(frame))

"""Reading a log: the one pipeline from parts of complete users to a `Log`, or to every reason why it is refused.

A part is all rows of some users. A table in memory is one part; a lake is many (see `lake/reading.py`). Ids, steps and
columns of each part are typed; the sums of all parts determine the schema; parts are read against the schema; and
propensities that were not logged are estimated. Nothing that depends on all rows is decided within a part, so any
number of parts gives the same log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.files import is_address
from redenvelope.log.cleaning.repair import repaired
from redenvelope.log.columns import ROLES, ColumnMap, is_unnamed, without
from redenvelope.log.findings import IN_MEMORY, Finding, Findings, require_usable
from redenvelope.log.formats.csv import read_delimited
from redenvelope.log.formats.dataframes import to_polars
from redenvelope.log.formats.discovery import (
    files_of,
    is_named_parquet,
    partition_columns,
    report_passed_over,
    with_folders,
)
from redenvelope.log.formats.excel import is_workbook, read_workbook
from redenvelope.log.formats.parquet import read_parquet
from redenvelope.log.formats.sql import place_name
from redenvelope.log.formats.stores import read_address
from redenvelope.log.log import Log
from redenvelope.log.propensity import AssignmentModel, estimate_propensities
from redenvelope.log.schema.infer import assemble, finish
from redenvelope.log.schema.keys import KeySums, settle_keys
from redenvelope.log.schema.rows import Rows, typed_rows
from redenvelope.log.schema.schema import Schema, SchemaSums, schema_sums
from redenvelope.log.tables import ROW, Table, joined, report_not_there, without_held_out
from redenvelope.merging import FieldwiseSums, merged

Part = TypeVar("Part")


@dataclass(frozen=True)
class Inspection:
    """A log (None if it was refused) and all findings, errors first."""

    log: Log | None
    findings: tuple[Finding, ...]


Columns = ColumnMap | Mapping[str, Any] | None
"""How a table names its columns: see `ColumnMap.of`."""


def as_log(source: Any, columns: Columns = None, *, estimate_propensity: bool = False) -> Log:
    """The log at a path or in a dataframe; a `Log` is returned as it is."""
    if isinstance(source, Log):
        if columns is not None or estimate_propensity:
            raise UsageError("the log has been read already: say how to read it to read_log or log_from_frame")
        return source
    read = read_log if isinstance(source, str | Path) else log_from_frame
    return read(source, columns, estimate_propensity=estimate_propensity)


def read_log(source: str | Path, columns: Columns = None, *, estimate_propensity: bool = False) -> Log:
    """Read a log from parquet, CSV or TSV (one file, a folder or a glob), an object store or a database.

    Databases are named by URLs such as `postgresql://me@host/shop?table=offers`; passwords come from the environment.

    `columns` maps roles to the table's own names, such as {"user": "customer_id"}; see `ColumnMap.of`.

    Raises `LogError` with every violation if the log cannot be used; warnings and repairs are in `log.findings`.
    """
    return _log_or_raise(_inspect(source, columns, estimate_propensity))


def log_from_frame(frame: Any, columns: Columns = None, *, estimate_propensity: bool = False) -> Log:
    """The log of a table in memory, checked by the same rules as a file.

    `frame` is any dataframe (polars, pandas, pyarrow, duckdb, …) or any object that supports Arrow's stream protocol or
    the dataframe interchange protocol.
    """
    return _log_or_raise(_inspect(to_polars(frame, "the log"), columns, estimate_propensity))


def inspect_log(source: str | Path, columns: Columns = None, *, estimate_propensity: bool = False) -> Inspection:
    """Read a log and report what is wrong with it, without raising for violations of the rules."""
    return _inspect(source, columns, estimate_propensity)


def _log_or_raise(inspection: Inspection) -> Log:
    require_usable(inspection.findings)
    assert inspection.log is not None  # None implies an error among the findings
    return inspection.log


def _inspect(source: str | Path | pl.DataFrame, given: Columns, estimate_propensity: bool) -> Inspection:
    """Read a log as one part, whose rows are typed once for both the schema and the log."""
    findings, columns = Findings(), ColumnMap.of(given)
    table = table_of(source, columns, findings, estimate_propensity=estimate_propensity)
    if table is None:
        return Inspection(None, findings.sorted())
    table = replace(table, frame=without_held_out(table.frame, columns, findings))
    if table.frame.is_empty():
        findings.add("file_no_rows")
        return Inspection(None, findings.sorted())
    keyed, keys = settle_keys(table, columns)
    files = table.files
    del table  # so that a large table is not in memory twice
    rows = typed_rows(keyed)
    del keyed
    read = read_parts(
        [rows], lambda part: (part, keys), files, columns, findings, estimate_propensity=estimate_propensity
    )
    return Inspection(None if read.schema.refused else read.log(rows), read.schema.findings)


# The pipeline: parts -> schema -> logs.


@dataclass(frozen=True, eq=False)
class PartSums(FieldwiseSums):
    """What a part contributes to the schema."""

    schema: SchemaSums
    keys: KeySums


@dataclass(frozen=True, eq=False)
class LogParts(Generic[Part]):
    """A log in parts of complete users, each read against the schema of the whole log."""

    parts: tuple[Part, ...]
    rows_of: Callable[[Part], tuple[Rows, KeySums]]
    """The sorted and typed rows of a part, and the findings about their ids and steps."""
    schema: Schema
    """If it is refused, no part can be read."""
    columns: ColumnMap
    assignment: AssignmentModel | None = None
    """The model that estimates propensities, if none were logged."""

    def log(self, part: Part) -> Log:
        """The log of a part's users."""
        log = replace(assemble(self.rows_of(part)[0], self.schema), columns=self.columns)
        return log if self.assignment is None else self.assignment.applied(log)

    def __iter__(self) -> Iterator[Log]:
        """The log of each part."""
        return map(self.log, self.parts)


def read_parts(
    parts: Sequence[Part],
    rows_of: Callable[[Part], tuple[Rows, KeySums]],
    files: tuple[str, ...],
    columns: ColumnMap,
    findings: Findings,
    *,
    estimate_propensity: bool = False,
    run: Callable[[Callable[[Part], PartSums], Sequence[Part]], Iterable[PartSums]] = map,
) -> LogParts[Part]:
    """A log in parts with at least one row each; `findings` are those of the files, and the log's are added to them.

    `run` maps work over parts in order, for example an engine's `map`.
    """
    sums = merged(run(partial(_part_sums, rows_of), parts))
    schema = finish(sums.schema, sums.keys, files, findings, columns.costs)
    read = LogParts(tuple(parts), rows_of, schema, columns)
    if schema.refused or not estimate_propensity:
        return read
    model = estimate_propensities(read, schema.rows, schema.users, findings)
    return replace(read, schema=replace(schema, findings=findings.sorted()), assignment=model)


def _part_sums(rows_of: Callable[[Part], tuple[Rows, KeySums]], part: Part) -> PartSums:
    rows, keys = rows_of(part)
    return PartSums(schema_sums(rows), keys)


# From a source to one table: files, or a frame in memory.


def table_of(
    source: str | Path | pl.DataFrame,
    columns: ColumnMap,
    findings: Findings,
    *,
    estimate_propensity: bool,
    required: frozenset[str] = frozenset(ROLES),
) -> Table | None:
    """The rows of a source with columns named by role; None if there are none. Everything wrong is reported.

    Propensities that are to be estimated are not read. `required` are the roles that the source must have.
    """
    frames = (
        _frames_in_memory(source, columns, findings)
        if isinstance(source, pl.DataFrame) or is_address(source)
        else _frames_of_files(source, columns, findings)
    )
    if not frames:
        return None
    table = joined(frames, columns, required & required_roles(columns, estimate_propensity), findings)
    frames.clear()  # the frames of the files are no longer needed
    folders = () if isinstance(source, pl.DataFrame) or is_address(source) else _folders(source, table.frame)
    frame = without(table.frame, {"propensity"} if estimate_propensity else ())
    return repaired(Table(frame, table.files, folders), columns, findings)


def required_roles(columns: ColumnMap, estimate_propensity: bool) -> frozenset[str]:
    """The roles that need columns: no step if steps are numbered by time, no propensity if it is estimated."""
    unread = {"propensity"} if estimate_propensity else set()
    return frozenset(ROLES) - unread - ({"step"} if columns.time is not None else set())


def report_folders(source: str | Path, columns: ColumnMap, findings: Findings) -> None:
    """Report files that are not read, and columns that come from folder names."""
    files = files_of(source)  # first, because it refuses a source that names no file
    report_passed_over(source, findings)
    for name, count in partition_columns(files).items():
        if name not in columns.ignored:
            findings.add("column_from_folders", column=name, count=count)


def _folders(source: str | Path, frame: pl.DataFrame) -> tuple[str, ...]:
    """The columns of the table that come from folder names."""
    return tuple(name for name in partition_columns(files_of(source)) if name in frame.columns)


def _frames_in_memory(
    source: str | Path | pl.DataFrame, columns: ColumnMap, findings: Findings
) -> list[tuple[str, pl.DataFrame]]:
    """A dataframe, or the table in a database or an object store."""
    if isinstance(source, pl.DataFrame):
        frame, name = source, IN_MEMORY
    else:
        frame, name = read_address(str(source)), place_name(source)
        report_not_there(frame.columns, columns.ignored, name, findings)
    if frame.is_empty():
        findings.add("file_no_rows", file=name)
        return []
    unnamed = [key for key in frame.columns if is_unnamed(key)]
    if unnamed:
        findings.add("column_unnamed", file=name, count=len(unnamed))
    return [(name, without(frame, unnamed).with_row_index(ROW, offset=1))]


def _frames_of_files(source: str | Path, columns: ColumnMap, findings: Findings) -> list[tuple[str, pl.DataFrame]]:
    report_folders(source, columns, findings)
    frames = []
    for file in files_of(source):
        frame = read_file(file.path, file.name, columns.ignored - file.partition.keys(), findings)
        if frame is not None:
            frames.append((file.name, with_folders(frame, file.partition)))
    return frames


def read_file(
    path: Path, name: str, ignored: frozenset[str], findings: Findings, first: int = 0, most: int | None = None
) -> pl.DataFrame | None:
    """The rows of a file as stored, numbered from 1; None with a finding if it cannot be read.

    Of a parquet file: at most `most` rows from the `first` on, without the ignored columns.
    """
    if is_named_parquet(path):
        return read_parquet(path, name, ignored, findings, first, most)
    frame = read_workbook(path, findings, name) if is_workbook(path) else read_delimited(path, findings, name)
    if frame is not None:
        report_not_there(frame.columns, ignored, name, findings)
    return frame

"""Files to a trusted log: read, check, sort, and either hand over a `Log` or every reason why not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from redenvelope.errors import LogError
from redenvelope.log.cleaning.repair import mended
from redenvelope.log.columns import ROLES, ColumnMap, is_unnamed, without
from redenvelope.log.findings import IN_MEMORY, Finding, Findings
from redenvelope.log.formats.csv import read_delimited
from redenvelope.log.formats.dataframes import to_polars
from redenvelope.log.formats.discovery import files_of, partition_columns, report_passed_over
from redenvelope.log.formats.excel import is_workbook, read_workbook
from redenvelope.log.formats.parquet import read_parquet
from redenvelope.log.log import Log
from redenvelope.log.propensity import learn_assignment, report_estimates
from redenvelope.log.schema.coerce import TINY_PROPENSITY
from redenvelope.log.schema.infer import assemble, finish
from redenvelope.log.schema.keys import settle_keys
from redenvelope.log.schema.rows import typed_rows
from redenvelope.log.schema.schema import merge_schemas, schema_sums
from redenvelope.log.tables import ROW, Table, joined, report_not_there


@dataclass(frozen=True)
class Inspection:
    """A log, or None if it was refused, and everything that was found, errors first."""

    log: Log | None
    findings: tuple[Finding, ...]


def read_log(source: str | Path, columns: ColumnMap | None = None, *, estimate_propensity: bool = False) -> Log:
    """Read a log from parquet, CSV or TSV: one file, a folder or a glob.

    Raises `LogError` with every violation if the log cannot be used; warnings and repairs are in
    `log.findings`.
    """
    return _log_or_raise(inspect_log(source, columns, estimate_propensity=estimate_propensity))


def log_from_frame(frame: Any, columns: ColumnMap | None = None, *, estimate_propensity: bool = False) -> Log:
    """The log of a table already in memory, held to the same rules as a file.

    Any dataframe: polars, pandas, pyarrow, duckdb, …, or what speaks Arrow's stream or the dataframe interchange
    protocol.
    """
    return _log_or_raise(_inspect(to_polars(frame, "the log"), columns, estimate_propensity))


def inspect_log(
    source: str | Path, columns: ColumnMap | None = None, *, estimate_propensity: bool = False
) -> Inspection:
    """Read a log and report what is wrong with it, without raising for the log's own mistakes."""
    return _inspect(source, columns, estimate_propensity)


def _log_or_raise(inspection: Inspection) -> Log:
    if inspection.log is None:
        raise LogError([finding for finding in inspection.findings if finding.severity == "error"])
    return inspection.log


def _inspect(source: str | Path | pl.DataFrame, columns: ColumnMap | None, estimate_propensity: bool) -> Inspection:
    """The whole log as one part: its rows are typed once, for the schema and for the log."""
    findings = Findings()
    table = table_of(source, columns or ColumnMap(), findings, estimate_propensity=estimate_propensity)
    if table is None:
        return Inspection(None, findings.sorted())
    keyed, keys = settle_keys(table, columns)
    files = table.files
    del table
    rows = typed_rows(keyed)
    del keyed
    costs = () if columns is None else columns.costs
    schema = finish(merge_schemas([schema_sums(rows)]), keys, files, findings, costs)
    if schema.refused:
        return Inspection(None, schema.findings)
    log = replace(assemble(rows, schema), columns=columns or ColumnMap())
    if not estimate_propensity:
        return Inspection(log, log.findings)
    model = learn_assignment([log], len(log))
    if model is None:
        findings.add("propensity_not_estimable", column="propensity", count=len(log.users))
        return Inspection(None, findings.sorted())
    log = model.applied(log)
    report_estimates(len(log), int((log.propensity < TINY_PROPENSITY).sum()), findings)
    return Inspection(replace(log, findings=findings.sorted()), findings.sorted())


# From a source to one table: files, or a frame that is in memory already.


def table_of(
    source: str | Path | pl.DataFrame,
    columns: ColumnMap,
    findings: Findings,
    *,
    estimate_propensity: bool,
    required: frozenset[str] = frozenset(ROLES),
) -> Table | None:
    """The rows of a source under the names of their roles; None when there are none. All that is wrong is reported.

    Propensities that are to be estimated are neither asked for nor looked at. `required` are the roles that must be
    there.
    """
    frames = (
        _frames_in_memory(source, findings)
        if isinstance(source, pl.DataFrame)
        else _frames_of_files(source, columns, findings)
    )
    if not frames:
        return None
    unread = frozenset({"propensity"} if estimate_propensity else ())
    numbered = frozenset({"step"} if columns.time is not None else ())
    table = joined(frames, columns, required - unread - numbered, findings)
    frames.clear()  # the files' own frames are not needed twice
    folders = () if isinstance(source, pl.DataFrame) else _folders(source, table.frame)
    return mended(Table(without(table.frame, unread), table.files, folders), columns, findings)


def _folders(source: str | Path, frame: pl.DataFrame) -> tuple[str, ...]:
    """The columns that folders gave to the table."""
    return tuple(name for name in partition_columns(files_of(source)) if name in frame.columns)


def _frames_in_memory(frame: pl.DataFrame, findings: Findings) -> list[tuple[str, pl.DataFrame]]:
    if frame.is_empty():
        findings.add("file_no_rows", file=IN_MEMORY)
        return []
    unnamed = [name for name in frame.columns if is_unnamed(name)]
    if unnamed:
        findings.add("column_unnamed", file=IN_MEMORY, count=len(unnamed))
    return [(IN_MEMORY, without(frame, unnamed).with_row_index(ROW, offset=1))]


def _frames_of_files(source: str | Path, columns: ColumnMap, findings: Findings) -> list[tuple[str, pl.DataFrame]]:
    files = files_of(source)
    report_passed_over(source, findings)
    frames = []
    for file in files:
        ignored = columns.ignored - file.partition.keys()
        if file.is_parquet:
            frame = read_parquet(file.path, file.name, ignored, findings)
        elif is_workbook(file.path):
            frame = read_workbook(file.path, findings, file.name)
        else:
            frame = read_delimited(file.path, findings, file.name)
        if frame is not None:
            frames.append((file.name, file.with_partition(frame)))
            if not file.is_parquet:
                report_not_there(frame.columns, ignored, file.name, findings)
    for name, count in partition_columns(files).items():
        if name not in columns.ignored:
            findings.add("column_from_folders", column=name, count=count)
    return frames

"""From a source to one table: files, or a frame that is in memory already."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from redenvelope.log.columnar import read_parquet
from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.delimited import read_delimited
from redenvelope.log.findings import IN_MEMORY, Findings
from redenvelope.log.mend import mended
from redenvelope.log.named import is_unnamed, without
from redenvelope.log.sources import files_of, partition_columns, report_passed_over
from redenvelope.log.tables import ROW, Table, joined, report_not_there
from redenvelope.log.workbook import is_workbook, read_workbook

__all__ = ["table_of"]


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

"""Reading workbooks (.xlsx and similar): the first sheet, with an optional engine."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import polars as pl

from redenvelope.log.columns import is_unnamed, without
from redenvelope.log.findings import Findings
from redenvelope.log.formats.discovery import has_room
from redenvelope.log.limits import MOST_COLUMNS
from redenvelope.log.tables import ROW

_SUFFIXES = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
_MEMORY = 8  # bytes per unpacked byte of a sheet: its text, its cells, and the table


def is_workbook(path: Path) -> bool:
    """Whether a file has the suffix of a workbook."""
    return path.suffix.lower() in _SUFFIXES


def read_workbook(path: Path, findings: Findings, name: str = "") -> pl.DataFrame | None:
    """The rows of the first sheet, whose first row names the columns; None with a finding if it cannot be read."""
    file = name or path.name
    if find_spec("fastexcel") is None:
        findings.add("workbook_engine", file=file)
        return None
    try:
        if not has_room(_unpacked(path) * _MEMORY, file, findings):
            return None
        sheets = pl.read_excel(path, sheet_id=0, engine="calamine", raise_if_empty=False, infer_schema_length=None)
    except (OSError, ValueError, zipfile.BadZipFile, pl.exceptions.PolarsError, _engine_error()) as error:
        findings.add("file_truncated", file=file, reason=str(error).splitlines()[0])
        return None
    sheet, frame = next(iter(sheets.items()))
    if len(sheets) > 1:
        findings.add("workbook_sheets", file=file, count=len(sheets), sheet=sheet, examples=list(sheets)[1:])
    if frame.is_empty():
        findings.add("file_no_rows", file=file)
        return None
    if len(frame.columns) > MOST_COLUMNS:
        findings.add("columns_too_many", file=file, count=len(frame.columns), limit=MOST_COLUMNS)
        return None
    unnamed = [column for column in frame.columns if is_unnamed(column) or column.startswith("__UNNAMED__")]
    if unnamed:
        findings.add("column_unnamed", file=file, count=len(unnamed))
    return without(frame, unnamed).with_row_index(ROW, offset=1)


def _unpacked(path: Path) -> int:
    """The unpacked size of a workbook in bytes; old formats are not packed."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(part.file_size for part in archive.infolist())


def _engine_error() -> type[Exception]:
    from fastexcel import FastExcelError  # type: ignore[import-not-found,unused-ignore]

    return FastExcelError  # type: ignore[no-any-return,unused-ignore]

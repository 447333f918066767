"""Parquet into a frame: only its own errors are handled here; what the values mean comes later."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from redenvelope.log.findings import Findings
from redenvelope.log.tables import ROW, report_not_there

__all__ = ["read_parquet"]

_MAGIC = b"PAR1"


def read_parquet(path: Path, name: str, ignored: frozenset[str], findings: Findings) -> pl.DataFrame | None:
    """The table as stored, less the ignored columns; None when the file cannot be used at all.

    `name` is what findings call the file.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(size - 4, 0))
            tail = file.read(4)
    except OSError as error:
        findings.add("file_unreadable", file=name, reason=error.strerror or error)
        return None
    if size == 0:
        findings.add("file_empty", file=name)
        return None
    if head != _MAGIC or tail != _MAGIC or size < 12:
        findings.add("file_truncated", file=name, reason="a parquet file begins and ends with PAR1")
        return None
    try:
        # A file of this very name: brackets in it are no pattern.
        scan = pl.scan_parquet(path, row_index_name=ROW, row_index_offset=1, glob=False)
        names = list(scan.collect_schema())
        frame = scan.drop([column for column in names if column in ignored]).collect()
    # The decoder panics on some damaged files; a panic is no Exception, but it is a damaged file all the same.
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        OSError,
        ValueError,
        OverflowError,
    ) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        findings.add("file_truncated", file=name, reason=reason)
        return None
    report_not_there(names, ignored, name, findings)
    if frame.is_empty():
        findings.add("file_no_rows", file=name)
        return None
    return frame

"""Parquet into a frame: only its own errors are handled here; what the values mean comes later."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.log.findings import Findings
from redenvelope.log.named import is_unnamed, taken_lazily
from redenvelope.log.tables import ROW, report_not_there

__all__ = ["read_failures", "read_parquet", "scan_file"]

_MAGIC = b"PAR1"
# The decoder panics on some damaged files; a panic is no Exception, but it is a damaged file all the same.
_FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, OverflowError)


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
        scan = scan_file(path)
        names = list(scan.collect_schema())
        usable = [column for column in names if not is_unnamed(column)]
        frame = taken_lazily(scan, [column for column in usable if column not in ignored]).collect()
    except _FAILURES as error:
        findings.add("file_truncated", file=name, reason=_first_line(error))
        return None
    report_not_there(names, ignored, name, findings)
    if len(usable) < len(names):
        findings.add("column_unnamed", file=name, count=len(names) - len(usable))
    if frame.is_empty():
        findings.add("file_no_rows", file=name)
        return None
    return frame.with_row_index(ROW, offset=1)


@contextmanager
def read_failures(path: Path) -> Iterator[None]:
    """Failures of reading a parquet file in words."""
    try:
        yield
    except _FAILURES as error:
        raise UsageError(f"{path}: the file is damaged ({_first_line(error)})") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown"])[0]


def scan_file(path: Path) -> pl.LazyFrame:
    """A scan of this very file: no part of its name is a pattern, a home folder or a column."""
    whole = path.absolute()
    try:
        str(whole).encode()
    except UnicodeEncodeError:  # a name that the table library cannot spell
        return pl.scan_parquet(io.BytesIO(whole.read_bytes()))
    return pl.scan_parquet(whole, glob=False, hive_partitioning=False)

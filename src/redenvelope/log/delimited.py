"""CSV and TSV into a frame of text, with every defect of the file named by its row."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path

import numpy as np
import polars as pl

from redenvelope.log.findings import EXAMPLES, Findings
from redenvelope.log.numbers import is_number
from redenvelope.log.tables import ROW

__all__ = ["read_delimited"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_LARGEST_FIELD = 10_000_000


def read_delimited(path: Path, findings: Findings) -> pl.DataFrame | None:
    """Every value as text, an empty field as null; None when the file cannot be used at all."""
    content = _content(path, findings)
    if content is None:
        return None
    header_end = content.find(b"\n")
    header_line = content if header_end < 0 else content[:header_end]
    delimiter = _delimiter(header_line.decode("utf-8"))
    if delimiter != ",":
        findings.add("delimiter", file=path.name, delimiter=_DELIMITERS[delimiter])
    header = next(csv.reader([header_line.decode("utf-8").rstrip("\r")], delimiter=delimiter), [])
    names = _column_names(header, path, findings)
    if names is None or not _is_rectangular(content, len(header), delimiter, path, findings):
        return None
    frame = _parse(content, names, delimiter, path, findings)
    if frame is not None and frame.is_empty():
        findings.add("file_no_rows", file=path.name)
        return None
    return frame


def _content(path: Path, findings: Findings) -> bytes | None:
    """The text of the file as UTF-8 with plain line ends, or None with a finding."""
    try:
        content = path.read_bytes()
    except OSError as error:
        findings.add("file_unreadable", file=path.name, reason=error.strerror or error)
        return None
    if content[:2] == b"\x1f\x8b" or path.name.lower().endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            findings.add("file_truncated", file=path.name, reason=error)
            return None
    if content.startswith(_BYTE_ORDER_MARK):
        findings.add("byte_order_mark", file=path.name)
        content = content[len(_BYTE_ORDER_MARK) :]
    if not content.strip():
        findings.add("file_empty", file=path.name)
        return None
    if not _is_text(content):
        findings.add("file_undecodable", file=path.name)
        return None
    if b"\r" in content:
        findings.add("carriage_returns", file=path.name)
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content


def _is_text(content: bytes) -> bool:
    if b"\0" in content:  # UTF-16, or no text at all
        return False
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _delimiter(header: str) -> str:
    """The delimiter that occurs most often in the header; a comma when none does."""
    return max(_DELIMITERS, key=header.count)


def _column_names(header: list[str], path: Path, findings: Findings) -> list[str] | None:
    names = [name.strip() for name in header]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    for name in twice:
        findings.add("column_duplicated", file=path.name, column=name, count=names.count(name))
    return None if twice else names


def _is_rectangular(content: bytes, width: int, delimiter: str, path: Path, findings: Findings) -> bool:
    """Whether every row has as many fields as the header; parsers fill short rows silently, so we count."""
    if b'"' in content:
        return _quoted_is_rectangular(content, width, delimiter, path, findings)
    bytes_ = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(bytes_ == ord("\n"))
    if not len(ends) or ends[-1] != len(bytes_) - 1:
        ends = np.append(ends, len(bytes_))
    delimiters = np.flatnonzero(bytes_ == ord(delimiter))
    fields = np.diff(np.searchsorted(delimiters, ends), prepend=0) + 1
    blank = np.diff(ends, prepend=-1) == 1
    bad = np.flatnonzero((fields != width) & ~blank)
    if len(bad):
        _report_ragged(bad.tolist(), width, path, findings)
    return not len(bad)


def _quoted_is_rectangular(content: bytes, width: int, delimiter: str, path: Path, findings: Findings) -> bool:
    # A quoted field may hold delimiters and line ends: only a real parser can count.
    limit = csv.field_size_limit(_LARGEST_FIELD)
    reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), delimiter=delimiter, strict=True)
    bad: list[int] = []
    row = 0
    try:
        for row, fields in enumerate(reader):
            if len(fields) != width and fields:
                bad.append(row)
    except csv.Error:
        findings.add("csv_unclosed_quote", file=path.name, rows=[row + 1])
        return False
    finally:
        csv.field_size_limit(limit)
    if bad:
        _report_ragged(bad, width, path, findings)
    return not bad


def _report_ragged(bad: list[int], width: int, path: Path, findings: Findings) -> None:
    findings.add("csv_ragged_row", file=path.name, count=len(bad), rows=bad[:EXAMPLES], width=width)


def _parse(content: bytes, names: list[str], delimiter: str, path: Path, findings: Findings) -> pl.DataFrame | None:
    try:
        frame = pl.read_csv(
            content,
            separator=delimiter,
            has_header=False,
            skip_rows=1,
            new_columns=[name or f"\0{place}" for place, name in enumerate(names)],
            infer_schema=False,
            raise_if_empty=False,
        )
    except pl.exceptions.PolarsError as error:
        findings.add("file_truncated", file=path.name, reason=str(error).splitlines()[0])
        return None
    unnamed = [name for name in frame.columns if name.startswith("\0")]
    if unnamed:
        findings.add("column_unnamed", file=path.name, count=len(unnamed))
    text = pl.all().str.strip_chars()
    frame = frame.drop(unnamed).with_columns(pl.when(text != "").then(text).name.keep())
    if delimiter != ",":
        frame = _with_decimal_points(frame, path, findings)
    # Rows are numbered before blank lines go, so that a finding names the row a person would count to.
    return frame.with_row_index(ROW, offset=1).filter(~pl.all_horizontal(pl.exclude(ROW).is_null()))


def _with_decimal_points(frame: pl.DataFrame, path: Path, findings: Findings) -> pl.DataFrame:
    """Where commas do not separate fields they may separate decimals, as spreadsheets write in much of Europe."""
    for name in frame.columns:
        values = frame[name]
        with_comma = values.str.contains(r"^[+-]?\d+,\d+$")
        if not with_comma.any():
            continue
        pointed = values.str.replace(",", ".", literal=True)
        if is_number(pointed).all():
            findings.add("decimal_comma", file=path.name, column=name, count=int(with_comma.sum()))
            frame = frame.with_columns(pointed)
    return frame

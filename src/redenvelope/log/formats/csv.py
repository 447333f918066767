"""Reading CSV and TSV as text, with every defect of a file reported by its row."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from redenvelope.log.columns import without
from redenvelope.log.findings import EXAMPLES, Findings
from redenvelope.log.formats.discovery import text_bytes
from redenvelope.log.limits import LONGEST_TEXT, MOST_COLUMNS
from redenvelope.log.tables import ROW

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def read_delimited(path: Path, findings: Findings, name: str = "") -> pl.DataFrame | None:
    """The table with every value as text and empty fields as null; None if the file cannot be used at all.

    `name` is the file's name in findings, by default its own.
    """
    file = name or path.name
    content = _content(path, file, findings)
    if content is None:
        return None
    header_end = content.find(b"\n")
    header_line = content if header_end < 0 else content[:header_end]
    delimiter = _delimiter(header_line.decode("utf-8"))
    if delimiter != ",":
        findings.add("delimiter", file=file, delimiter=_DELIMITERS[delimiter])
    width = header_line.count(delimiter.encode()) + 1
    if width > MOST_COLUMNS:
        findings.add("columns_too_many", file=file, count=width, limit=MOST_COLUMNS)
        return None
    try:
        header = next(csv.reader([header_line.decode("utf-8")], delimiter=delimiter), [])
    except csv.Error as error:  # a name of implausible length, so this is not a table
        findings.add("file_truncated", file=file, reason=error)
        return None
    names = _column_names(header, file, findings)
    # A quote only quotes at the start of a field; in 5" it is an ordinary character.
    quoted = re.search(f'(^|[\n{delimiter}])"'.encode(), content) is not None
    count_rows = _count_quoted_rows if quoted else _count_rows
    if names is None or (rows := count_rows(content, len(header), delimiter, file, findings)) is None:
        return None
    frame = _parse(content, names, delimiter, quoted, rows)
    if frame is None:
        findings.add("csv_unclosed_quote", file=file)
        return None
    unnamed = [name for name in frame.columns if name.startswith("\0") and name != ROW]
    if unnamed:
        findings.add("column_unnamed", file=file, count=len(unnamed))
        frame = without(frame, unnamed)
    frame = frame.filter(~pl.all_horizontal(pl.exclude(ROW).is_null()))
    if frame.is_empty():
        findings.add("file_no_rows", file=file)
        return None
    return frame


def _content(path: Path, file: str, findings: Findings) -> bytes | None:
    """The file's text as UTF-8 with plain line ends; None with a finding if there is none."""
    content = text_bytes(path, file, findings)
    if content is None:
        return None
    if content.startswith(_BYTE_ORDER_MARK):
        findings.add("byte_order_mark", file=file)
        content = content[len(_BYTE_ORDER_MARK) :]
    if not content.strip():
        findings.add("file_empty", file=file)
        return None
    undecodable = _undecodable(content)
    if undecodable >= 0:
        row = content.count(b"\n", 0, undecodable)
        findings.add(
            "file_undecodable", file=file, rows=[row] if row else [], examples=[content[undecodable : undecodable + 10]]
        )
        return None
    if b"\r" in content:
        findings.add("carriage_returns", file=file)
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content.strip(b"\n")


def _undecodable(content: bytes) -> int:
    """Position of the first byte that is not UTF-8 text, or −1."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return content.find(b"\0")  # UTF-16, or not text at all


def _delimiter(header: str) -> str:
    """The delimiter that occurs most often in the header; a comma if none occurs."""
    return max(_DELIMITERS, key=header.count)


def _column_names(header: list[str], file: str, findings: Findings) -> list[str] | None:
    names = [name.strip() for name in header]
    counts = Counter(names)
    twice = sorted(name for name, count in counts.items() if name and count > 1)
    for name in twice:
        findings.add("column_duplicated", file=file, column=name, count=counts[name])
    return None if twice else names


def _count_rows(content: bytes, width: int, delimiter: str, file: str, findings: Findings) -> int | None:
    """Rows below the header; None if any has another number of fields, which parsers would fill in silently."""
    bytes_ = np.frombuffer(content, dtype=np.uint8)
    ends = np.append(np.flatnonzero(bytes_ == ord("\n")), len(bytes_))
    delimiters = np.flatnonzero(bytes_ == ord(delimiter))
    fields = np.diff(np.searchsorted(delimiters, ends), prepend=0) + 1
    blank = np.diff(ends, prepend=-1) == 1
    bad = np.flatnonzero((fields != width) & ~blank)
    if len(bad):
        _report_ragged(bad.tolist(), width, file, findings)
        return None
    return len(ends) - 1


def _count_quoted_rows(content: bytes, width: int, delimiter: str, file: str, findings: Findings) -> int | None:
    """Like `_count_rows`, if quoted fields may hold delimiters and line ends, which takes a real parser."""
    limit = csv.field_size_limit(10 * LONGEST_TEXT)  # a too long field is reported later, unless a quote is missing
    reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), delimiter=delimiter, strict=True)
    bad: list[int] = []
    row = -1
    try:
        for row, fields in enumerate(reader):
            if len(fields) != width and fields:
                bad.append(row)
    except csv.Error:
        findings.add("csv_unclosed_quote", file=file, rows=[row + 1])
        return None
    finally:
        csv.field_size_limit(limit)
    if bad:
        _report_ragged(bad, width, file, findings)
        return None
    return row


def _report_ragged(bad: list[int], width: int, file: str, findings: Findings) -> None:
    findings.add("csv_ragged_row", file=file, count=len(bad), rows=bad[:EXAMPLES], width=width)


def _parse(content: bytes, names: list[str], delimiter: str, quoted: bool, rows: int) -> pl.DataFrame | None:
    """Every row as text with its number, empty fields as null; None if the parser gets lost in the quotes."""
    # Blank lines count as rows, but the parser would take the first line it meets for the width of all.
    line_ends = re.compile(rb"\n+").search(content)
    before = len(line_ends[0]) if line_ends else 1
    body = content[line_ends.start() if line_ends else len(content) :]  # a header may look like a packed file: x^
    try:
        frame = pl.read_csv(
            body,
            separator=delimiter,
            quote_char='"' if quoted else None,
            has_header=False,
            skip_rows=before,
            schema={name or f"\0{place}": pl.String for place, name in enumerate(names)},
            raise_if_empty=False,
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    if len(frame) != max(rows + 1 - before, 0):
        return None
    text = pl.all().str.strip_chars()
    return frame.with_columns(pl.when(text != "").then(text).name.keep()).with_row_index(ROW, offset=before)

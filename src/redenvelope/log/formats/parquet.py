"""Reading parquet: files are checked, damage is reported, and sizes are known before anything is read."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.log.columns import is_unnamed, taken, taken_lazily
from redenvelope.log.eligibility import ELIGIBLE, is_listed
from redenvelope.log.findings import Findings
from redenvelope.log.formats.discovery import has_room, held_kind
from redenvelope.log.limits import MOST_COLUMNS, PARQUET_MEMORY
from redenvelope.log.tables import ROW, kind_of, report_not_there

_MAGIC = b"PAR1"
_WIDTHS = {pl.Boolean: 1, pl.Int8: 1, pl.UInt8: 1, pl.Int16: 2, pl.UInt16: 2}
_WIDTHS |= dict.fromkeys((pl.Int32, pl.UInt32, pl.Float32, pl.Date), 4)
_WIDTHS |= dict.fromkeys((pl.Int64, pl.UInt64, pl.Float64, pl.Datetime, pl.Duration, pl.Time), 8)
# The decoder panics on some damaged files, and a panic is not an Exception.
_FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, OverflowError)


def read_parquet(
    path: Path, name: str, ignored: frozenset[str], findings: Findings, first: int = 0, most: int | None = None
) -> pl.DataFrame | None:
    """The table as stored, without the ignored columns; None if the file cannot be used at all.

    `name` is the file's name in findings. With `most`, only so many rows are read, from the `first` on.
    """
    if not is_parquet(path, name, findings):
        return None
    try:
        scan = scan_file(path)
        schema = scan.collect_schema()
        rows = int(scan.select(pl.len()).collect().item())
        usable = [column for column in schema if not is_unnamed(column)]
        kept = {column: schema[column] for column in usable if column not in ignored}
        if most is not None:
            scan, rows = scan.slice(first, most), max(min(most, rows - first), 0)
        elif not _fits(path, rows, kept, name, findings):
            return None
        # Values of nested columns are never needed and may be large, so only their names and types are kept.
        flat = [column for column, dtype in kept.items() if _is_read(column, dtype)]
        frame = taken_lazily(scan, flat).collect() if flat else pl.DataFrame({ROW: range(rows)})
        frame = _with_nested(frame, kept)
    except _FAILURES as error:
        findings.add("file_truncated", file=name, reason=_first_line(error))
        return None
    report_not_there(list(schema), ignored, name, findings)
    if len(usable) < len(schema):
        findings.add("column_unnamed", file=name, count=len(schema) - len(usable))
    if frame.is_empty():
        findings.add("file_no_rows", file=name)
        return None
    return frame.with_row_index(ROW, offset=first + 1)


def is_parquet(path: Path, name: str, findings: Findings) -> bool:
    """Whether a file begins and ends as parquet does; if not, what it seems to be is reported."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(size - 4, 0))
            tail = file.read(4)
    except OSError as error:
        findings.add("file_unreadable", file=name, reason=error.strerror or error)
        return False
    if size == 0:
        findings.add("file_empty", file=name)
        return False
    if head != _MAGIC or tail != _MAGIC or size < 12:
        kind = held_kind(head) or ("text" if _is_text(path) else None)
        if kind in (None, "parquet"):
            findings.add("file_truncated", file=name, reason="a parquet file begins and ends with PAR1")
        else:
            findings.add("file_kind", file=name, held=kind, expected="parquet")
        return False
    return True


def _with_nested(frame: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The frame with the given columns; nested columns are all null."""
    empty = [name for name in columns if name not in frame.columns]
    return taken(frame.with_columns(pl.lit(None, dtype=columns[name]).alias(name) for name in empty), columns)


def _is_read(column: str, dtype: pl.DataType) -> bool:
    """Whether the values of a column are needed."""
    return kind_of(dtype) != "nested" or (column == ELIGIBLE and is_listed(dtype))


def _fits(path: Path, rows: int, columns: Mapping[str, pl.DataType], file: str, findings: Findings) -> bool:
    """Whether a table is within the limits, judged by its metadata before its rows are read."""
    if len(columns) > MOST_COLUMNS:
        findings.add("columns_too_many", file=file, count=len(columns), limit=MOST_COLUMNS)
        return False
    flat = {column: dtype for column, dtype in columns.items() if _is_read(column, dtype)}
    needed = rows * sum(_WIDTHS.get(dtype.base_type(), 16) for dtype in flat.values())
    # Add the bytes of text, from the footer; if the footer does not tell, assume at least the size of the file.
    stored = stored_bytes(path)
    needed += sum(stored.get(column, 0) for column, dtype in flat.items() if kind_of(dtype) in ("text", "nested"))
    needed = needed if stored else max(needed, path.stat().st_size)
    return has_room(needed * PARQUET_MEMORY, file, findings)


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(1_000)
    try:
        head[:-4].decode()  # without the last character, which may be cut
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


@contextmanager
def read_failures(path: Path) -> Iterator[None]:
    """Within the block, failures of reading a parquet file become UsageErrors."""
    try:
        yield
    except _FAILURES as error:
        raise UsageError(f"{path}: the file is damaged ({_first_line(error)}); copy or export it again") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown"])[0]


def scan_file(path: Path) -> pl.LazyFrame:
    """A scan of exactly this file, whose name is not interpreted as a pattern, a home folder or a column."""
    whole = path.absolute()
    try:
        str(whole).encode()
    except UnicodeEncodeError:  # a name that polars cannot handle
        return pl.scan_parquet(io.BytesIO(whole.read_bytes()))
    return pl.scan_parquet(whole, glob=False, hive_partitioning=False)


# Uncompressed sizes of the columns, from the footer of a parquet file.
#
# polars does not expose them, so the needed part of the footer is parsed here (Thrift's compact protocol).


_LARGEST_FOOTER = 1 << 22  # a longer footer takes too long to parse, and its file is large anyway
_ROW_GROUPS, _COLUMNS, _DESCRIBED, _PATH, _BYTES = 4, 1, 3, 3, 6  # field numbers, from the outside in
_DEEPEST = 20
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def stored_bytes(path: Path) -> dict[str, int]:
    """Column -> uncompressed bytes of its values; empty if the footer cannot be parsed."""
    try:
        with path.open("rb") as file:
            file.seek(-8, 2)
            length = int.from_bytes(file.read(4), "little")
            if not 0 < length <= _LARGEST_FOOTER:
                return {}
            file.seek(-8 - length, 2)
            return _Reader(file.read(length)).column_bytes()
    except (OSError, ValueError, IndexError, RecursionError):
        return {}


class _Reader:
    """Parses a footer, value by value."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def column_bytes(self) -> dict[str, int]:
        """Uncompressed bytes of each column over all row groups, by the first part of its path."""
        total: dict[str, int] = {}
        for _ in self._structs(_ROW_GROUPS):
            for _ in self._structs(_COLUMNS):
                for field, kind in self._fields():
                    if field == _DESCRIBED and kind == _STRUCT:
                        name, size = self._column()
                        total[name] = total.get(name, 0) + size
                    else:
                        self._skip(kind, 0)
        return total

    def _structs(self, wanted: int) -> Iterator[None]:
        """Iterate over the structs of a list field; each must be read before the next."""
        for field, kind in self._fields():
            if field == wanted and kind in _LISTS:
                count, _ = self._list_header()
                for _ in range(count):
                    yield
            else:
                self._skip(kind, 0)

    def _column(self) -> tuple[str, int]:
        name, size = "", 0
        for field, kind in self._fields():
            if field == _PATH and kind in _LISTS:
                count, _ = self._list_header()
                parts = [self._text() for _ in range(count)]
                name = parts[0]
            elif field == _BYTES and kind in _INTEGERS:
                size = max(self._integer(), 0)
            else:
                self._skip(kind, 0)
        return name, size

    def _text(self) -> str:
        length = self._varint()
        self._place += length
        return self._content[self._place - length : self._place].decode("utf-8", "replace")

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct; its value must be read or skipped before the next."""
        field = 0
        while (head := self._byte()) != 0:
            kind = head & 0x0F
            field = field + (head >> 4) if head >> 4 else self._integer()
            yield field, kind

    def _byte(self) -> int:
        self._place += 1
        return self._content[self._place - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number without an end")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _list_header(self) -> tuple[int, int]:
        head = self._byte()
        return (self._varint() if head >> 4 == 15 else head >> 4), head & 0x0F

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in _BOOLEANS:
            return
        if kind == _BYTE:
            self._place += 1
        elif kind in _INTEGERS:
            self._varint()
        elif kind == _DOUBLE:
            self._place += 8
        elif kind == _BINARY:
            length = self._varint()
            self._place += length
        elif kind in _LISTS:
            count, held = self._list_header()
            for _ in range(count):
                # In a list, a boolean takes a byte of its own.
                self._skip(_BYTE if held in _BOOLEANS else held, depth + 1)
        elif kind == _STRUCT:
            for _, held in self._fields():
                self._skip(held, depth + 1)
        else:
            raise ValueError("a kind that no description holds")

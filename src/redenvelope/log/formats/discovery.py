"""The files behind a path (a file, a folder with subfolders named column=value, or a glob), and their bytes."""

from __future__ import annotations

import glob
import gzip
import io
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.log.findings import Findings
from redenvelope.log.limits import MOST_UNPACKED, TEXT_MEMORY, UNPACKED_AT_EASE, amount_of_memory, memory_lacks
from redenvelope.wording import counted

_SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_OTHER_TABLES = (
    *(".zst", ".bz2", ".xz", ".zip", ".7z", ".tar", ".gz", ".json", ".jsonl", ".ndjson", ".xlsx", ".xls", ".ods"),
    *(".arrow", ".feather", ".ipc", ".orc", ".avro", ".sqlite", ".db", ".dat"),
)
_MISSING_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class SourceFile:
    """A file of a log, its name for messages, and the column values that its folders' names give to all its rows."""

    path: Path
    name: str
    """Relative to the given folder, so that files with the same name can be distinguished."""
    partition: Mapping[str, str | date | None] = field(default_factory=dict)
    """Column -> value, from folders named column=value."""


def is_named_parquet(path: Path) -> bool:
    """Whether a file has the suffix of a parquet file."""
    return path.suffix.lower() in (".parquet", ".pq")


def with_folders(frame: pl.DataFrame, folders: Mapping[str, str | date | None]) -> pl.DataFrame:
    """A file's rows with the columns of its folders (column -> value), unless the file has such a column itself."""
    added = {name: value for name, value in folders.items() if name not in frame.columns}
    return frame.with_columns(pl.lit(value).alias(name) for name, value in added.items())


def files_of(source: str | Path) -> list[SourceFile]:
    """The files of a source (at least one), in a fixed order; an existing path is never taken for a pattern."""
    place = _place(source)
    if place == "file":
        return [SourceFile(Path(source), Path(source).name)]
    if place == "folder":
        found = _below(Path(source))
        if not found.tables:
            raise UsageError(
                f"{source}: no tables in this folder; expected visible files ending in {', '.join(_SUFFIXES)}"
            )
        return _named(found.tables, Path(source))
    found = _matches(str(source))
    if not found.tables:
        besides = f", except {counted(len(found.hidden), 'hidden file')}" if found.hidden else ""
        raise UsageError(f"{source}: no file matches this pattern{besides}")
    return _named(found.tables, Path(os.path.commonpath([file.parent for file in found.tables])))


def require_file(path: Path) -> None:
    """Refuse a path that is not a regular file; a pipe might never end."""
    place = _place(path, patterns=False)
    if place != "file":
        raise UsageError(f"{path}: is a folder; pass a file in it")


def report_passed_over(source: str | Path, findings: Findings) -> None:
    """Report files in a folder, or matches of a pattern, that are not read."""
    path = Path(source)
    if path.is_file():
        return
    found = _below(path) if path.is_dir() else _matches(str(source))
    if found.hidden:
        findings.add("files_hidden", count=len(found.hidden), examples=found.hidden)
    if found.others:
        findings.add("files_no_tables", count=len(found.others), examples=found.others)


class _Found(NamedTuple):
    """The files in a folder, or the matches of a pattern."""

    tables: list[Path]
    hidden: list[str]
    """Tables that writers and editors left next to the parts."""
    others: list[str]
    """Tables in formats that are not read here."""


def _place(source: str | Path, patterns: bool = True) -> Literal["file", "folder", "pattern"]:
    """The kind of a source."""
    try:
        mode = Path(source).stat().st_mode
    except (OSError, ValueError) as error:
        if patterns and glob.has_magic(str(source)):
            return "pattern"
        unknown = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = "no such file or folder" if patterns else "no such file"
        raise UsageError(f"{source}: {why if unknown else getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISREG(mode):
        return "file"
    raise UsageError(f"{source}: is a pipe, a socket or a device; write the table to a file, and pass that")


def _below(folder: Path) -> _Found:
    tables, hidden, others = [], [], []
    try:
        files = sorted(file for file in folder.rglob("*") if file.is_file())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read completely ({error.filename}: {error.strerror})") from None
    for file in files:
        parts = file.relative_to(folder).parts
        unseen = any(map(_is_hidden, parts))
        if file.name.lower().endswith(_SUFFIXES):
            if unseen:
                hidden.append("/".join(parts))
            else:
                tables.append(file)
        elif not unseen and file.name.lower().endswith(_OTHER_TABLES):
            others.append("/".join(parts))
    return _Found(tables, hidden, others)


def _matches(pattern: str) -> _Found:
    """The files that match a pattern; hidden ones only if the pattern names them."""
    tables: list[Path] = []
    hidden: list[Path] = []
    asked = {part[:1] for part in Path(pattern).parts if _is_hidden(part)}
    fixed = next((place for place, part in enumerate(Path(pattern).parts) if glob.has_magic(part)), 0)
    for match in sorted(map(Path, glob.glob(pattern, recursive=True))):  # noqa: PTH207 - the pattern may be absolute
        if match.is_file():
            unseen = any(_is_hidden(part) and part[:1] not in asked for part in match.parts[fixed:])
            (hidden if unseen else tables).append(match)
    return _Found(tables, [str(file) for file in hidden], [])


def _is_hidden(name: str) -> bool:
    # Writers leave markers (_SUCCESS), temporary files (_temporary) and copies (.ipynb_checkpoints, ._part.csv) next to
    # the parts; in a folder named _column=value, the underscore belongs to the column's name.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def partition_columns(files: list[SourceFile]) -> dict[str, int]:
    """Columns that come from folder names, with the number of files that have each."""
    names = [name for file in files for name in file.partition]
    return {name: names.count(name) for name in names}


def _named(files: list[Path], root: Path) -> list[SourceFile]:
    found = []
    for file in files:
        inside = file.relative_to(root)
        pairs = (part.partition("=") for part in inside.parts[:-1])
        values = {unquote(name): _value(value) for name, equals, value in pairs if name and equals}
        found.append(SourceFile(file, inside.as_posix(), values))
    return _with_dates(found)


def _value(text: str) -> str | None:
    return None if text in ("", _MISSING_PARTITION) else unquote(text)


def _with_dates(files: list[SourceFile]) -> list[SourceFile]:
    """Convert a folder column to dates if all of its values are dates; otherwise files would clash."""
    known = {name: [file.partition.get(name) for file in files] for name in partition_columns(files)}
    dated = {name for name, values in known.items() if all(_day(value) for value in values if value is not None)}
    return [
        replace(
            file, partition={name: _day(value) if name in dated else value for name, value in file.partition.items()}
        )
        for file in files
    ]


def _day(text: str | date | None) -> date | None:
    """The date of a text like 2024-01-31, else None."""
    try:
        return date.fromisoformat(text) if isinstance(text, str) and len(text) == 10 else None
    except ValueError:
        return None


# The bytes of a text file: the format is judged by the first bytes, and decompression is limited by memory.


_CHUNK = 1 << 22
_GZIP = b"\x1f\x8b"
_BEGINNINGS = {
    b"PAR1": "parquet",
    b"\x28\xb5\x2f\xfd": "a file packed by zstd",
    b"BZh91AY&SY": "a file packed by bzip2",
    b"\xfd7zXZ": "a file packed by xz",
    b"PK\x03\x04": "a zip archive or a workbook",
    b"7z\xbc\xaf": "a 7z archive",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "a database",
    b"\xd0\xcf\x11\xe0": "a workbook in an old format",
    b'{"': "JSON",
    b"[{": "JSON",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}


def held_kind(head: bytes) -> str | None:
    """The kind of a file with these first bytes, if it is not a text format that is read here."""
    return next((kind for begin, kind in _BEGINNINGS.items() if head.startswith(begin)), None)


def has_room(needed: int, file: str, findings: Findings) -> bool:
    """Whether there is enough memory; a file that does not fit is reported before it is read."""
    left = memory_lacks(needed)
    if left is not None:
        findings.add("file_too_large", file=file, needed=amount_of_memory(needed), left=amount_of_memory(left))
    return left is None


def text_bytes(path: Path, file: str, findings: Findings) -> bytes | None:
    """The content of a text file, decompressed if it is gzip; None with a finding if it cannot be read."""
    try:
        size = path.stat().st_size
        if not has_room(size * TEXT_MEMORY, file, findings):
            return None
        content = path.read_bytes()
    except OSError as error:
        findings.add("file_unreadable", file=file, reason=error.strerror or error)
        return None
    if content.startswith(_GZIP) or (content and path.name.lower().endswith(".gz")):
        unpacked = _unpacked(content, file, findings)
        if unpacked is None:
            return None
        content = unpacked
    kind = held_kind(content[:16])
    if kind is not None:
        findings.add("file_kind", file=file, held=kind, expected="text in UTF-8")
        return None
    return content


def _unpacked(packed: bytes, file: str, findings: Findings) -> bytes | None:
    parts, size, checked = [], 0, UNPACKED_AT_EASE
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            while part := stream.read(_CHUNK):
                parts.append(part)
                size += len(part)
                if size <= checked:
                    continue
                if size > MOST_UNPACKED * len(packed):
                    findings.add("file_unpacks", file=file, packed=amount_of_memory(len(packed)), times=MOST_UNPACKED)
                    return None
                if not has_room(size * TEXT_MEMORY, file, findings):
                    return None
                checked = size + UNPACKED_AT_EASE
    except (OSError, EOFError, zlib.error) as error:
        findings.add("file_truncated", file=file, reason=error)
        return None
    return b"".join(parts) if has_room(size * TEXT_MEMORY, file, findings) else None

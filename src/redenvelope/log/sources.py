"""From a path to the files behind it: one file, a folder (its subfolders may be named column=value), or a glob."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from urllib.parse import unquote

import polars as pl

from redenvelope.errors import UsageError

__all__ = ["SourceFile", "files_of", "partition_columns"]

_SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_MISSING_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class SourceFile:
    """A file of a log, what to call it, and what the names of its folders say about every row in it."""

    path: Path
    name: str
    """Relative to the folder that was asked for, so that two parts of the same name can be told apart."""
    partition: Mapping[str, str | date | None] = field(default_factory=dict)
    """Column -> value, from folders named column=value."""

    @property
    def is_parquet(self) -> bool:
        """Whether the name says parquet; all else is taken for text."""
        return self.path.suffix.lower() in (".parquet", ".pq")

    def with_partition(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The file's rows with the columns of its folders; where the file holds the column itself, it stays."""
        added = {name: value for name, value in self.partition.items() if name not in frame.columns}
        return frame.with_columns(pl.lit(value).alias(name) for name, value in added.items())


def files_of(source: str | Path) -> list[SourceFile]:
    """The files a source names, in a fixed order; at least one."""
    path = Path(source)
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_table(file)]
        if not files:
            raise UsageError(f"{source}: no table in this folder; expected files ending in {', '.join(_SUFFIXES)}")
        return _named(files, path)
    if path.is_file():
        return [SourceFile(path, path.name)]
    if glob.has_magic(str(source)):
        files = sorted(Path(match) for match in glob.glob(str(source), recursive=True))  # noqa: PTH207 - the pattern may be absolute
        files = [file for file in files if file.is_file()]
        if not files:
            raise UsageError(f"{source}: no file matches")
        return _named(files, Path(os.path.commonpath([file.parent for file in files])))
    raise UsageError(f"{source}: no such file or folder")


def partition_columns(files: list[SourceFile]) -> dict[str, int]:
    """Columns that the names of folders add, and how many files each is added to."""
    names = [name for file in files for name in file.partition]
    return {name: names.count(name) for name in names}


def _is_table(file: Path) -> bool:
    # Writers leave hidden and underscored marker files (_SUCCESS, .part.crc) beside the parts.
    return file.name.lower().endswith(_SUFFIXES) and not file.name.startswith((".", "_"))


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
    """Values of a column as dates where all of them are: one that is not would make the files clash."""
    known = {name: [file.partition.get(name) for file in files] for name in partition_columns(files)}
    dated = {name for name, values in known.items() if all(_day(value) for value in values if value is not None)}
    return [
        replace(
            file,
            partition={name: _day(value) if name in dated else value for name, value in file.partition.items()},
        )
        for file in files
    ]


def _day(text: str | date | None) -> date | None:
    """2024-01-31 as a date; nothing else is one."""
    try:
        return date.fromisoformat(text) if isinstance(text, str) and len(text) == 10 else None
    except ValueError:
        return None

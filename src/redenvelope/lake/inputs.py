"""Inputs of a lake: files or object-store addresses, read in slices that fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.files import is_address
from redenvelope.log.cleaning.dates import with_relative_dates
from redenvelope.log.cleaning.repair import repaired, with_costs
from redenvelope.log.columns import ColumnMap, column, is_unnamed, put_back, taken_lazily, without
from redenvelope.log.eligibility import ELIGIBLE, as_text, is_listed
from redenvelope.log.findings import Findings, require_usable
from redenvelope.log.formats.discovery import files_of, is_named_parquet, with_folders
from redenvelope.log.formats.parquet import is_parquet, read_failures, scan_file
from redenvelope.log.formats.sql import is_database, place_name
from redenvelope.log.formats.stores import scan_address, store_failures
from redenvelope.log.read import read_file
from redenvelope.log.schema.coerce import ids_are_whole
from redenvelope.log.tables import FILE, ROW, Table, prepared, without_held_out
from redenvelope.serialization import to_plain

ROWS_AT_ONCE = 1_000_000
"""Rows of a slice, for inputs that can be read in slices."""
_ROW_BYTES = 40  # of compressed tables, roughly, because an address does not tell its size


@dataclass(frozen=True)
class Input:
    """One file, or one address with everything it stands for; size and time tell whether it has changed."""

    place: str
    name: str
    """The name in findings."""
    size: int
    """Bytes; for an address, estimated from its rows."""
    modified: int
    """Nanoseconds since 1970; 0 for an address."""
    rows: int | None
    """None for text, whose rows are counted when it is read."""
    folders: Mapping[str, str | date | None] = field(default_factory=dict)
    """Column -> value, from folder names of the form column=value."""

    @property
    def record(self) -> dict[str, str | int]:
        """The entry in a manifest."""
        place = self.name if is_address(self.place) else self.place  # an address may hold a signature
        return {"place": place, "bytes": self.size, "modified": self.modified}


@dataclass(frozen=True)
class Slice:
    """A range of rows of an input."""

    number: int
    """The number among all slices of a lake."""
    file: int
    """The number of the input."""
    input: Input
    first: int = 0
    most: int | None = None
    """None: all rows."""


def inputs_of(source: str | Path) -> tuple[Input, ...]:
    """The inputs that a source names, in a fixed order; reads only their headers."""
    if is_address(source):
        return (_address(str(source)),)
    found, findings = [], Findings()
    for file in files_of(source):
        rows = None
        if is_named_parquet(file.path) and is_parquet(file.path, file.name, findings):
            with read_failures(file.path):
                rows = int(scan_file(file.path).select(pl.len()).collect().item())
        facts = file.path.stat()
        place = str(file.path.absolute())
        found.append(Input(place, file.name, facts.st_size, facts.st_mtime_ns, rows, file.partition))
    require_usable(findings.sorted())
    return tuple(found)


def slices_of(inputs: tuple[Input, ...], rows_at_once: int = ROWS_AT_ONCE) -> tuple[Slice, ...]:
    """Slices that cover all rows of all inputs, in order; a text file is one slice."""
    found: list[Slice] = []
    for file, each in enumerate(inputs):
        if each.rows is None:
            found.append(Slice(len(found), file, each))
            continue
        for first in range(0, max(each.rows, 1), rows_at_once):
            found.append(Slice(len(found), file, each, first, rows_at_once))
    return tuple(found)


def _address(address: str) -> Input:
    if is_database(address):
        raise UsageError(
            f"{place_name(address)}: what is divided by user is read in slices, which a database has none of; leave "
            "out --work, --engine and --parts, or write the table to Parquet"
        )
    with store_failures(address):
        rows = int(scan_address(address).select(pl.len()).collect().item())
    return Input(address, place_name(address), rows * _ROW_BYTES, 0, rows)


# Readers of slices: the user column is named `user`, and every row has the number of its file and its own.


_LOOKED_AT = 10_000  # rows of a slice that show whether a column would need guessing
_MOST_EPISODES = 10_000


class Read(NamedTuple):
    """The rows of a slice, and what to record about them."""

    frame: pl.DataFrame
    whole_ids: bool = False
    filled: int = 0
    guessed: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    episodes: tuple[str, ...] = ()


class Reader(Protocol):
    """Reads slices of the inputs of a lake."""

    def read(self, part: Slice, findings: Findings) -> Read | None:
        """The rows of a slice; None if they cannot be read, with the reason among the findings."""
        ...

    @property
    def record(self) -> dict[str, Any]:
        """The entry in a manifest; slices read with another entry belong to other parts."""
        ...

    @property
    def cluster(self) -> str | None:
        """The column of clusters, if rows are divided by cluster; None to divide by user."""
        ...


@dataclass(frozen=True)
class LogReader:
    """Reads slices of a log; whatever depends on all rows is decided later."""

    columns: ColumnMap
    without_propensity: bool = False
    """Whether propensities are to be estimated, so that those in the table are ignored."""

    @property
    def cluster(self) -> str | None:
        """See Reader."""
        return self.columns.cluster

    @property
    def record(self) -> dict[str, Any]:
        """See Reader."""
        said = to_plain(self.columns) | {"ignored": sorted(self.columns.ignored)}
        return {"of": "log", "columns": said, "without_propensity": self.without_propensity}

    def read(self, part: Slice, findings: Findings) -> Read | None:
        """See Reader."""
        columns = self.columns
        frame = raw_rows(part, columns.ignored - part.input.folders.keys(), findings)
        if frame is None:
            return None
        frame = prepared(part.input.name, with_folders(frame, part.input.folders), columns, findings)
        frame = without_held_out(frame, columns, findings, strict=True)  # strict, or slices might be read differently
        frame = without(frame, {"propensity"} if self.without_propensity else set())
        guessed = self._guessed(frame)
        if columns.dates == "relative":
            frame = with_relative_dates(frame, columns.time, (), findings)
        filled = 0
        if columns.missing_cost is not None and "cost" in frame.columns:
            counted = Findings()
            frame = with_costs(frame, columns.missing_cost, counted)
            filled = sum(finding.count for finding in counted.sorted())
        whole = "user" in frame.columns and ids_are_whole(frame["user"])
        return Read(_placed(frame, part), whole, filled, guessed, _present(frame), self._episodes(frame))

    def _guessed(self, frame: pl.DataFrame) -> tuple[str, ...]:
        """Text columns that reading a whole table would convert, judged by their first rows."""
        first = frame.head(_LOOKED_AT)
        looked = repaired(Table(first.with_columns(pl.lit(0).alias(FILE)), ("",)), ColumnMap(), Findings()).frame
        # Columns named by the user are checked by their own rules.
        said = {self.columns.time, self.columns.episode, self.columns.cluster, *self.columns.costs}
        text = [name for name, dtype in first.schema.items() if dtype == pl.String and name not in said]
        return tuple(name for name in text if not column(first, name).equals(column(looked, name), null_equal=True))

    def _episodes(self, frame: pl.DataFrame) -> tuple[str, ...]:
        name = self.columns.episode
        if name is None or name not in frame.columns:
            return ()
        values = column(frame, name).drop_nulls().unique().cast(pl.String).sort()
        if len(values) > _MOST_EPISODES:
            raise UsageError(
                f"column {name!r} has more than {_MOST_EPISODES:,} values, too many for waves of a campaign"
            )
        return tuple(values)


@dataclass(frozen=True)
class TableReader:
    """Reads some columns of a table, and renames them."""

    renames: Mapping[str, str]
    """The table's names -> new names."""
    wanted: tuple[str, ...]
    """New names of the columns to read; columns that a file lacks are left out."""
    cluster: None = None

    @property
    def record(self) -> dict[str, Any]:
        """See Reader."""
        return {"of": "table", "renames": dict(self.renames), "wanted": sorted(self.wanted)}

    def read(self, part: Slice, findings: Findings) -> Read | None:
        """See Reader."""
        if part.input.rows is None:
            frame = raw_rows(part, frozenset(), findings)
            if frame is None:
                return None
        else:
            place, remote = part.input.place, is_address(part.input.place)
            scan = scan_address(place) if remote else scan_file(Path(place))
            with store_failures(place) if remote else read_failures(Path(place)):
                names = [name for name in scan.collect_schema() if self.renames.get(name, name) in self.wanted]
                frame = taken_lazily(scan, names).slice(part.first, part.most).collect()
            frame = _numbered(frame, part)
        names = [name for name in frame.columns if self.renames.get(name, name) in (*self.wanted, ROW)]
        taken_names = [name for name in names if name in self.renames or name not in self.renames.values()]
        frame = frame.select(taken_names).rename({name: self.renames[name] for name in names if name in self.renames})
        if ELIGIBLE in frame.columns and is_listed(frame.schema[ELIGIBLE]):
            frame = put_back(frame, {ELIGIBLE: as_text(column(frame, ELIGIBLE))})
        return Read(_placed(frame, part), present=tuple(frame.columns))


def raw_rows(part: Slice, ignored: frozenset[str], findings: Findings) -> pl.DataFrame | None:
    """The rows as stored, numbered from 1."""
    place = part.input.place
    if is_address(place):
        with store_failures(place):
            scan = scan_address(place)
            kept = [key for key in scan.collect_schema() if key not in ignored and not is_unnamed(key)]
            return _numbered(taken_lazily(scan, kept).slice(part.first, part.most).collect(), part)
    return read_file(Path(place), part.input.name, ignored, findings, part.first, part.most)


def _numbered(frame: pl.DataFrame, part: Slice) -> pl.DataFrame:
    """The rows with their numbers, in 64 bits, because an address may hold more rows than 32 bits count."""
    return frame.with_columns(pl.int_range(part.first + 1, part.first + len(frame) + 1, dtype=pl.UInt64).alias(ROW))


def _placed(frame: pl.DataFrame, part: Slice) -> pl.DataFrame:
    return frame.with_columns(pl.lit(part.file, dtype=pl.UInt32).alias(FILE), pl.col(ROW).cast(pl.UInt64))


def _present(frame: pl.DataFrame) -> tuple[str, ...]:
    return tuple(name for name in frame.columns if frame.get_column(name).null_count() < len(frame))

"""A lake as a log: its parts are read by the same pipeline as a table in memory (`log/read.py`).

`open_lake` partitions a source and settles one schema for all parts; `LakeLog` yields the log of each bucket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from redenvelope.engine.engine import Engine, Opened
from redenvelope.errors import UsageError
from redenvelope.files import is_address
from redenvelope.lake.inputs import ROWS_AT_ONCE, LogReader, inputs_of, raw_rows, slices_of
from redenvelope.lake.lake import Lake, LakePart, paced
from redenvelope.lake.partition import key_buckets, partition
from redenvelope.log.cleaning.number_formats import PLAIN_INTEGER
from redenvelope.log.columns import ColumnMap, column, put_back
from redenvelope.log.findings import Findings, require_usable
from redenvelope.log.log import Log
from redenvelope.log.read import LogParts, PartSums, read_parts, report_folders, required_roles
from redenvelope.log.schema.keys import KeySums, settle_keys
from redenvelope.log.schema.rows import Rows, typed_rows
from redenvelope.log.schema.schema import Schema
from redenvelope.log.tables import Table, report_roles
from redenvelope.progress import Stages

_FIRST_ROWS = 1_000  # for guesses at what a missing column may be called


@dataclass(frozen=True)
class LakeLog:
    """A log too large for memory, in parts that an engine works on."""

    lake: Lake
    read: LogParts[LakePart]

    @property
    def parts(self) -> tuple[LakePart, ...]:
        """The parts that contain users."""
        return self.read.parts

    @property
    def schema(self) -> Schema:
        """The schema of the whole log."""
        return self.read.schema

    def logs(self, part: LakePart) -> Iterator[Log]:
        """The logs of a part's buckets, in order."""
        log = self.read.log(part)
        return log.grouped(key_buckets(log.keys, self.lake.notes.buckets))

    def opened(self, engine: Engine) -> Opened:
        """An engine whose work receives the log of every bucket instead of a part."""
        return Opened(engine, self.logs)


def open_lake(
    source: str | Path,
    columns: ColumnMap,
    work: Path,
    engine: Engine,
    *,
    parts: int | None = None,
    stages: Stages | None = None,
    estimate_propensity: bool = False,
    rows_at_once: int = ROWS_AT_ONCE,
) -> LakeLog:
    """Open a log of any size, divided by user in a work folder; raises `LogError` with every violation if unusable.

    A folder that was divided before is reused.
    """
    stages, findings = stages or Stages(), Findings()
    if columns.dates == "relative" and columns.time is None:
        raise UsageError("a lake's dates can only be made relative to the time of each decision; name it with --time")
    if not is_address(source):
        report_folders(source, columns, findings)
    _report_first(source, columns, findings, estimate_propensity)
    require_usable(findings.sorted())
    reader = LogReader(columns, estimate_propensity)
    lake = partition(source, reader, work, engine, parts=parts, stages=stages, rows_at_once=rows_at_once)
    notes, findings = lake.notes, Findings((*lake.notes.findings, *findings.sorted()))
    if notes.filled:
        findings.add("cost_filled", column="cost", count=notes.filled, value=f"{columns.missing_cost:g}")
    stages.begin("schema")

    def run(sums: Callable[[LakePart], PartSums], parts: Sequence[LakePart]) -> Iterator[PartSums]:
        return paced(stages, "schema", engine.map(sums, parts), len(parts), lambda part: part.schema.rows)

    tables = _Tables(columns, notes.files, notes.whole_ids, _in_order(notes.episodes))
    filled = [part for part in lake.parts if part.rows]
    read = read_parts(
        filled, tables.rows, notes.files, columns, findings, estimate_propensity=estimate_propensity, run=run
    )
    require_usable(read.schema.findings)
    stages.finish("schema", f"{read.schema.users:,} users, {read.schema.rows:,} rows")
    return LakeLog(lake, read)


def _report_first(source: str | Path, columns: ColumnMap, findings: Findings, estimate_propensity: bool) -> None:
    """Report roles that the first file lacks, before the rest is read."""
    first = slices_of(inputs_of(source), _FIRST_ROWS)[0]
    raw = raw_rows(first, frozenset(), Findings())
    if raw is not None:  # otherwise the reason is reported when the file is read
        report_roles(first.input.name, raw, columns, required_roles(columns, estimate_propensity), findings)


@dataclass(frozen=True)
class _Tables:
    """Reads the rows of parts, in the types of the whole lake."""

    columns: ColumnMap
    files: tuple[str, ...]
    whole_ids: bool
    episodes: tuple[str, ...]
    """In numeric order if all are integers, else in the order of text."""

    def rows(self, part: LakePart) -> tuple[Rows, KeySums]:
        """The rows of a part, sorted and typed, and the findings about their ids and steps."""
        frame = part.frame()
        name = self.columns.episode
        if name is not None and name in frame.columns:
            # Numbered among all episodes of the lake, because a part may lack some.
            places = dict(zip(self.episodes, range(len(self.episodes)), strict=True))
            numbered = column(frame, name).cast(pl.String).replace_strict(places, default=None, return_dtype=pl.Int32)
            frame = put_back(frame, {name: numbered})
        keyed, keys = settle_keys(Table(frame, self.files), self.columns, self.whole_ids)
        # The order of rows in a part comes from the partition and says nothing about the files.
        found = {key: places for key, places in keys.found.items() if key[0] != "rows_unordered"}
        episodes = None if keys.episodes is None else replace(keys.episodes, count=len(self.episodes))
        return typed_rows(keyed), replace(keys, found=found, episodes=episodes)


def _in_order(episodes: tuple[str, ...]) -> tuple[str, ...]:
    """Episodes in numeric order if all are integers (9 before 10), else in the order of text."""
    whole = all(re.fullmatch(PLAIN_INTEGER, value) for value in episodes)
    return tuple(sorted(episodes, key=int) if whole else sorted(episodes))

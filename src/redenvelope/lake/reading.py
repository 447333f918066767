"""A divided lake as a log: the schema of all of it, and each bucket as a `Log` that is read against the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from redenvelope.engine.engine import Engine, Opened
from redenvelope.errors import LogError, UsageError
from redenvelope.lake.inputs import ROWS_AT_ONCE, LogReader, inputs_of, is_address, raw_rows, slices_of
from redenvelope.lake.lake import Lake, LakePart, paced
from redenvelope.lake.partition import buckets_of, partition
from redenvelope.log.cleaning.number_formats import PLAIN_INTEGER
from redenvelope.log.columns import ROLES, ColumnMap, column, put_back
from redenvelope.log.findings import Finding, Findings, Severity, merge
from redenvelope.log.formats.discovery import files_of, partition_columns, report_passed_over
from redenvelope.log.log import Log
from redenvelope.log.propensity import AssignmentModel, learn_assignment, report_estimates
from redenvelope.log.schema.coerce import TINY_PROPENSITY
from redenvelope.log.schema.infer import assemble, finish
from redenvelope.log.schema.keys import KeySums, merge_keys, settle_keys
from redenvelope.log.schema.rows import Rows, typed_rows
from redenvelope.log.schema.schema import Schema, SchemaSums, merge_schemas, schema_sums
from redenvelope.log.tables import Table, report_roles
from redenvelope.progress import Stages

_FIRST_ROWS = 1_000  # that are looked at to see what columns may mean


class _Sums(NamedTuple):
    """What a part says of the schema."""

    schema: SchemaSums
    keys: KeySums


@dataclass(frozen=True)
class _Tables:
    """The tables of parts, in the types of the lake."""

    columns: ColumnMap
    files: tuple[str, ...]
    whole_ids: bool
    buckets: int
    episodes: tuple[str, ...]
    """In their order."""

    def rows(self, part: LakePart) -> tuple[Rows, KeySums]:
        """The rows of a part, in order and in their types."""
        frame = part.frame()
        name = self.columns.episode
        if name is not None and name in frame.columns:
            # Numbered among all of the lake: a part may lack some.
            places = dict(zip(self.episodes, range(len(self.episodes)), strict=True))
            numbered = column(frame, name).cast(pl.String).replace_strict(places, default=None, return_dtype=pl.Int32)
            frame = put_back(frame, {name: numbered})
        keyed, keys = settle_keys(Table(frame, self.files), self.columns, self.whole_ids)
        return typed_rows(keyed), keys

    def sums(self, part: LakePart) -> _Sums:
        """What a part says of the schema."""
        rows, keys = self.rows(part)
        return _Sums(schema_sums(rows), keys)


@dataclass(frozen=True)
class LakeLog:
    """A log that no memory holds: parts to be worked on by an engine."""

    lake: Lake
    tables: _Tables
    schema: Schema
    columns: ColumnMap
    assignment: AssignmentModel | None = None

    @property
    def parts(self) -> tuple[LakePart, ...]:
        """The parts that have any users, by name."""
        return tuple(part for part in self.lake.parts if part.rows)

    def opened(self, engine: Engine) -> Opened:
        """An engine that is asked for work on parts, and does it on every bucket's log."""
        return Opened(engine, self.logs)

    @property
    def logs(self) -> _Logs:
        """What opens a part."""
        return _Logs(self.tables, self.schema, self.columns, self.assignment)


@dataclass(frozen=True)
class _Logs:
    """The logs of a part's buckets."""

    tables: _Tables
    schema: Schema
    columns: ColumnMap
    assignment: AssignmentModel | None

    def __call__(self, part: LakePart) -> Iterator[Log]:
        """In the order of the buckets."""
        rows, _ = self.tables.rows(part)
        log = replace(assemble(rows, self.schema), columns=self.columns)
        log = log if self.assignment is None else self.assignment.applied(log)
        yield from log.grouped(buckets_of(log.users, self.tables.buckets))


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
    """A log of any size, divided by user in a work folder; raises `LogError` with every violation if it cannot be used.

    What was divided before is not divided again.
    """
    stages, findings = stages or Stages(), Findings()
    if columns.dates == "relative" and columns.time is None:
        raise UsageError("of a lake, dates are made relative to the column that --time names; name it")
    reader = LogReader(columns, estimate_propensity)
    if not is_address(source):
        report_passed_over(source, findings)
        for name, count in partition_columns(files_of(source)).items():
            if name not in columns.ignored:
                findings.add("column_from_folders", column=name, count=count)
    _report_first(source, columns, findings, estimate_propensity)
    if findings.refused:
        raise _refusal(findings.sorted())
    lake = partition(source, reader, work, engine, parts=parts, stages=stages, rows_at_once=rows_at_once)
    read = _read(lake, columns, engine, stages, findings)
    return _with_estimates(read, findings) if estimate_propensity else read


def _report_first(source: str | Path, columns: ColumnMap, findings: Findings, estimate_propensity: bool) -> None:
    """Report the roles that the first of the files lacks, before the others are read."""
    first = slices_of(inputs_of(source), _FIRST_ROWS)[0]
    raw = raw_rows(first, frozenset(), Findings())
    if raw is None:
        return  # said where it is read
    unread = {"propensity"} if estimate_propensity else set()
    numbered = {"step"} if columns.time is not None else set()
    report_roles(first.input.name, raw, columns, frozenset(ROLES) - unread - numbered, findings)


def _read(lake: Lake, columns: ColumnMap, engine: Engine, stages: Stages, findings: Findings) -> LakeLog:
    notes = lake.notes
    if notes.filled:
        findings.add("cost_filled", column="cost", count=notes.filled, value=f"{columns.missing_cost:g}")
    tables = _Tables(columns, notes.files, notes.whole_ids, notes.buckets, _in_order(notes.episodes))
    stages.begin("schema")
    filled = [part for part in lake.parts if part.rows]
    results = engine.map(tables.sums, filled)
    found = list(paced(stages, "schema", results, len(filled), lambda sums: sums.schema.rows))
    keys = merge_keys([sums.keys for sums in found])
    if keys.episodes is not None:
        keys = replace(keys, episodes=replace(keys.episodes, count=len(notes.episodes)))
    schema = finish(merge_schemas([sums.schema for sums in found]), keys, notes.files, findings, columns.costs)
    schema = replace(schema, findings=merge(notes.findings, schema.findings))
    if schema.refused:
        raise _refusal(schema.findings)
    stages.finish("schema", f"{schema.users:,} users, {schema.rows:,} rows")
    return LakeLog(lake, tables, schema, columns)


def _in_order(episodes: tuple[str, ...]) -> tuple[str, ...]:
    """Week 10 comes after week 9."""
    whole = all(re.fullmatch(PLAIN_INTEGER, value) for value in episodes)
    return tuple(sorted(episodes, key=int) if whole else sorted(episodes))


def _refusal(findings: tuple[Finding, ...]) -> LogError:
    return LogError([finding for finding in findings if finding.severity is Severity.ERROR])


def _with_estimates(read: LakeLog, findings: Findings) -> LakeLog:
    """The log with propensities that are learned from it, part after part."""

    model = learn_assignment(_all(read), read.schema.rows)
    if model is None:
        findings.add("propensity_not_estimable", column="propensity", count=read.schema.users)
        raise _refusal(findings.sorted())
    tiny = sum(int((model.propensities(log) < TINY_PROPENSITY).sum()) for log in _all(read))
    report_estimates(read.schema.rows, tiny, findings)
    together = merge(read.lake.notes.findings, findings.sorted())
    return replace(read, schema=replace(read.schema, findings=together), assignment=model)


def _all(read: LakeLog) -> Iterator[Log]:
    return (log for part in read.parts for log in read.logs(part))

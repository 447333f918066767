"""A log in parts: each of whole users, chosen by their ids, and read against the schema of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import LogError, UsageError
from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Findings, Severity
from redenvelope.log.log import Log
from redenvelope.log.propensity import AssignmentModel, learn_assignment, report_estimates
from redenvelope.log.read import table_of
from redenvelope.log.schema.coerce import TINY_PROPENSITY
from redenvelope.log.schema.infer import assemble, finish
from redenvelope.log.schema.keys import settle_keys, with_keys
from redenvelope.log.schema.rows import typed_rows
from redenvelope.log.schema.schema import Schema, merge_schemas, schema_sums
from redenvelope.log.tables import Table
from redenvelope.randomness import fraction, user_keys

__all__ = ["Partitions", "partition_log", "read_partitions"]


@dataclass(frozen=True, eq=False)
class Partitions:
    """The parts of a table as logs, one at a time, as often as they are asked for; parts without users are left out."""

    table: Table
    """Its ids and steps have their types."""
    part: NDArray[np.int64]
    """Which part each row is in, [rows]."""
    schema: Schema
    assignment: AssignmentModel | None = None
    """What propensities are estimated with, where none were logged."""

    def __len__(self) -> int:
        """Number of parts."""
        return len(np.unique(self.part))

    def __iter__(self) -> Iterator[Log]:
        """The log of each part."""
        for table in _tables(self.table, self.part):
            log = partition_log(table, self.schema)
            yield log if self.assignment is None else self.assignment.applied(log)


def read_partitions(
    source: str | Path | pl.DataFrame,
    columns: ColumnMap | None = None,
    *,
    parts: int,
    estimate_propensity: bool = False,
) -> tuple[Schema, Partitions]:
    """Read a log in parts of whole users: the schema of all, and the parts, each a `Log` with the schema's findings.

    Raises `LogError` with every violation if the log cannot be used.
    """
    if parts < 1:
        raise UsageError(f"a log is read in one part or more, not {parts}")
    findings = Findings()
    table = table_of(source, columns or ColumnMap(), findings, estimate_propensity=estimate_propensity)
    if table is None:
        raise _refusal(findings)
    keyed, keys = settle_keys(table, columns)
    part = _part_of_rows(keyed.frame, parts)
    sums = [schema_sums(typed_rows(rows)) for rows in _tables(keyed, part)]
    schema = finish(merge_schemas(sums), keys, table.files, findings)
    if schema.refused:
        raise _refusal(findings)
    read = Partitions(keyed, part, schema)
    return (schema, read) if not estimate_propensity else _with_estimates(read, findings)


def partition_log(table: Table, schema: Schema) -> Log:
    """The log of all rows of some users, read against the schema of the whole log, which is not refused."""
    return assemble(typed_rows(with_keys(table, schema.whole_ids, {})), schema)


def _with_estimates(read: Partitions, findings: Findings) -> tuple[Schema, Partitions]:
    model = learn_assignment(read, read.schema.rows)
    if model is None:
        findings.add("propensity_not_estimable", column="propensity", count=read.schema.users)
        raise _refusal(findings)
    tiny = sum(int((model.propensities(log) < TINY_PROPENSITY).sum()) for log in read)
    report_estimates(read.schema.rows, tiny, findings)
    schema = replace(read.schema, findings=findings.sorted())
    return schema, replace(read, schema=schema, assignment=model)


def _refusal(findings: Findings) -> LogError:
    return LogError([finding for finding in findings.sorted() if finding.severity is Severity.ERROR])


def _part_of_rows(frame: pl.DataFrame, parts: int) -> NDArray[np.int64]:
    """Which part each row's user is in, [rows]; rows without a user are in the first."""
    if parts == 1 or "user" not in frame.columns:
        return np.zeros(len(frame), dtype=np.int64)
    users = frame["user"].drop_nulls().unique()
    place = (fraction(user_keys(users), "partition", 0) * parts).astype(np.int64)
    return frame["user"].replace_strict(users, place, default=0, return_dtype=pl.Int64).to_numpy()


def _tables(table: Table, part: NDArray[np.int64]) -> Iterator[Table]:
    """The rows of each part that has any, in the order of the parts."""
    for number in np.unique(part):
        yield replace(table, frame=table.frame.filter(pl.Series(part == number)))

"""A log in parts: each of whole users, chosen by their ids, and read against the schema of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.chance import fraction, user_keys
from redenvelope.errors import LogError, UsageError
from redenvelope.log.assemble import assemble
from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Findings, Severity
from redenvelope.log.finish import finish
from redenvelope.log.keys import with_keys
from redenvelope.log.log import Log
from redenvelope.log.rows import typed_rows
from redenvelope.log.schema import Schema, merge_schemas, schema_sums
from redenvelope.log.tables import Table
from redenvelope.log.tabulate import table_of

__all__ = ["Partitions", "partition_of_rows", "read_partitions"]


@dataclass(frozen=True, eq=False)
class Partitions:
    """The parts of a table, as logs: as often as they are asked for, one at a time."""

    table: Table
    """Its ids and steps have their types."""
    part: NDArray[np.int64]
    """Which part each row is in, [rows]."""
    schema: Schema

    def __len__(self) -> int:
        """Number of parts that have users."""
        return len(np.unique(self.part))

    def __iter__(self) -> Iterator[Log]:
        """The log of each part that has users."""
        for rows in _parts(self.table, self.part):
            yield assemble(typed_rows(rows), self.schema)


def read_partitions(
    source: str | Path | pl.DataFrame, columns: ColumnMap | None = None, *, parts: int
) -> tuple[Schema, Partitions]:
    """Read a log in parts of whole users: the schema of all, and the parts, each a `Log` with the schema's findings.

    Parts without users are left out. Raises `LogError` with every violation if the log cannot be used.
    """
    if parts < 1:
        raise UsageError(f"a log is read in one part or more, not {parts}")
    findings = Findings()
    table = table_of(source, columns or ColumnMap(), findings)
    if table is None:
        raise LogError([finding for finding in findings.sorted() if finding.severity is Severity.ERROR])
    keyed, keys = with_keys(table)
    part = partition_of_rows(keyed.frame, parts)
    sums = [schema_sums(typed_rows(rows)) for rows in _parts(keyed, part)]
    schema = finish(merge_schemas(sums), keys, table.files, findings)
    if schema.refused:
        raise LogError([finding for finding in schema.findings if finding.severity is Severity.ERROR])
    return schema, Partitions(keyed, part, schema)


def partition_of_rows(frame: pl.DataFrame, parts: int) -> NDArray[np.int64]:
    """Which part each row's user is in, [rows]; rows without a user are in the first."""
    if parts == 1 or "user" not in frame.columns:
        return np.zeros(len(frame), dtype=np.int64)
    users = frame["user"].drop_nulls().unique()
    place = (fraction(user_keys(users), "partition", 0) * parts).astype(np.int64)
    return frame["user"].replace_strict(users, place, default=0, return_dtype=pl.Int64).to_numpy()


def _parts(table: Table, part: NDArray[np.int64]) -> Iterator[Table]:
    for number in np.unique(part):
        yield Table(table.frame.filter(pl.Series(part == number)), table.files)

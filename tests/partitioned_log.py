"""A table in memory as a log in parts: complete users, assigned to parts by their ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope import ColumnMap, Log, UsageError
from redenvelope.log.findings import Findings, require_usable
from redenvelope.log.read import LogParts, read_parts, table_of
from redenvelope.log.schema.infer import assemble
from redenvelope.log.schema.keys import KeySums, settle_keys, with_keys
from redenvelope.log.schema.rows import Rows, typed_rows
from redenvelope.log.schema.schema import Schema
from redenvelope.log.tables import Table
from redenvelope.randomness import fraction, user_keys


def read_partitions(
    source: str | Path | pl.DataFrame,
    columns: ColumnMap | None = None,
    *,
    parts: int,
    estimate_propensity: bool = False,
) -> tuple[Schema, LogParts[Table]]:
    """Read a log in parts of complete users: the schema of the whole log, and the parts.

    Raises `LogError` with every violation if the log cannot be used.
    """
    if parts < 1:
        raise UsageError(f"a log is read in one part or more, not {parts}")
    findings, columns = Findings(), columns or ColumnMap()
    table = table_of(source, columns, findings, estimate_propensity=estimate_propensity)
    if table is None:
        require_usable(findings.sorted())
    assert table is not None
    keyed, keys = settle_keys(table, columns)
    tables = list(_tables(keyed, _part_of_rows(keyed.frame, parts)))
    no_keys = replace(keys, rows=0, found={})

    def rows_of(part: Table) -> tuple[Rows, KeySums]:
        return typed_rows(part), keys if part is tables[0] else no_keys  # the keys of all parts were settled together

    read = read_parts(tables, rows_of, table.files, columns, findings, estimate_propensity=estimate_propensity)
    require_usable(read.schema.findings)
    return read.schema, read


def partition_log(table: Table, schema: Schema) -> Log:
    """The log of all rows of some users, read against the schema of the whole log, which is not refused."""
    return assemble(typed_rows(with_keys(table, schema.whole_ids, {})), schema)


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

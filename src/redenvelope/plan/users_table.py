"""A table of users from a file, so many rows at a time, with the names that decisions need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.chance import user_keys
from redenvelope.errors import ModelError, UsageError
from redenvelope.log.columnar import is_parquet, read_failures, scan_file
from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.delimited import read_delimited
from redenvelope.log.encoding import Encoder
from redenvelope.log.findings import Findings, Severity
from redenvelope.log.ids import id_refusal, read_ids
from redenvelope.log.limits import amount_of_memory, memory_lacks
from redenvelope.log.named import column, put_back, taken, taken_lazily, without
from redenvelope.log.numbers import PLAIN_INTEGER
from redenvelope.log.serving_frame import serving_steps
from redenvelope.log.sources import require_file
from redenvelope.log.tables import ROW
from redenvelope.log.workbook import is_workbook, read_workbook

__all__ = ["PAST_ROLES", "ROWS_AT_ONCE", "UsersTable", "check_users", "past_renames", "past_table", "serving_renames"]

ROWS_AT_ONCE = 200_000
PAST_ROLES = tuple(role for role in ROLES if role != "propensity")
"""What histories are made of."""
_CHECKED_BYTES = 48  # a row, while users are compared: a key, a step, and their order
_PAST_BYTES = 200  # a row of the past, in memory with its copies


@dataclass(frozen=True, eq=False)
class UsersTable:
    """A file of users; `remembered` are the names of the plan's log, which the table may have, and `asked` those that
    were given by hand, which it must have."""

    path: Path
    remembered: ColumnMap
    asked: ColumnMap | None

    def parts(self, wanted: frozenset[str]) -> Iterator[pl.DataFrame]:
        """The columns wanted, as far as the table has them, so many rows at a time."""
        renames = self._renames
        kept = [name for name in self._names if renames.get(name, name) in wanted and name not in renames.values()]
        for first in range(0, self._rows, ROWS_AT_ONCE):
            yield self._slice(kept, first).rename({name: role for name, role in renames.items() if name in kept})

    def require_room(self, row_bytes: int) -> None:
        """Refuse a table whose rows would need more memory than there is."""
        left = memory_lacks(self._rows * row_bytes)
        if left is not None:
            raise UsageError(
                f"{self.path}: {self._rows:,} rows need {amount_of_memory(self._rows * row_bytes)} of memory, and "
                f"{amount_of_memory(left)} are left; split the table by users"
            )

    def _slice(self, names: list[str], first: int) -> pl.DataFrame:
        if self._frame is not None:
            return taken(self._frame, names).slice(first, ROWS_AT_ONCE)
        with read_failures(self.path):
            return taken_lazily(scan_file(self.path), names).slice(first, ROWS_AT_ONCE).collect()

    @cached_property
    def _frame(self) -> pl.DataFrame | None:
        """The whole table, where it is text; None where it is parquet, which is read as it is needed."""
        require_file(self.path)
        findings, frame = Findings(), None
        if self.path.suffix.lower() in (".parquet", ".pq"):
            if is_parquet(self.path, self.path.name, findings):
                return None
        elif is_workbook(self.path):
            frame = read_workbook(self.path, findings)
        else:
            frame = read_delimited(self.path, findings)
        if frame is None:
            faults = [str(finding) for finding in findings.sorted() if finding.severity is Severity.ERROR]
            raise UsageError(f"{self.path}: cannot be read: {'; '.join(faults)}")
        return _with_whole_ids(without(frame, {ROW}), self.asked or self.remembered)

    @cached_property
    def _names(self) -> list[str]:
        if self._frame is not None:
            return self._frame.columns
        with read_failures(self.path):
            return list(scan_file(self.path).collect_schema())

    @cached_property
    def _rows(self) -> int:
        if self._frame is not None:
            return len(self._frame)
        with read_failures(self.path):
            return int(scan_file(self.path).select(pl.len()).collect().item())

    @cached_property
    def _renames(self) -> dict[str, str]:
        return serving_renames(self._names, self.remembered, self.asked)


def serving_renames(names: list[str], remembered: ColumnMap, asked: ColumnMap | None) -> dict[str, str]:
    """A table's own names that are to be changed -> user or step."""
    renames = {}
    for role in ("user", "step"):
        name = (asked or remembered).name_of(role)
        if asked is not None and name not in names:
            raise UsageError(
                f"there is no column {name!r} in the table of users, which was named for {role!r}; "
                f"the columns are {', '.join(names[:30])}"
            )
        if name != role and name in names and (asked is not None or role not in names):
            renames[name] = role
    return renames


def past_renames(names: list[str], remembered: ColumnMap) -> dict[str, str]:
    """The same of a table of earlier steps, for all that histories are made of."""
    roles = {remembered.name_of(role): role for role in PAST_ROLES}
    return {name: role for name, role in roles.items() if name != role and name in names and role not in names}


def _with_whole_ids(frame: pl.DataFrame, columns: ColumnMap) -> pl.DataFrame:
    """Ids of a text file as integers where they all are, as a log reads them."""
    for name in {columns.name_of("user"), "user"} & set(frame.columns):
        ids = read_ids(column(frame, name))
        if ids is not None and not ids.lost.any() and ids.values.str.contains(PLAIN_INTEGER).all():
            whole = ids.values.cast(pl.Int64, strict=False)
            if not whole.null_count():
                frame = put_back(frame, {name: whole})
    return frame


def check_users(table: UsersTable, encoder: Encoder) -> None:
    """Refuse a table with rows of nobody, of no step, or of one user twice at a step, wherever in the file they are."""
    table.require_room(_CHECKED_BYTES)
    keys: list[NDArray[np.uint64]] = []
    steps: list[NDArray[np.int32]] = []
    first, last_step = 0, encoder.first_step + encoder.campaign_steps - 1
    for part in table.parts(frozenset({"user", "step"})):
        if len(part.columns) < 2:
            return  # said when it is decided
        ids = read_ids(part["user"])
        if ids is None:
            return
        if why := id_refusal(ids, part["user"], first):
            raise ModelError(why)
        keys.append(user_keys(ids.values))
        steps.append(serving_steps(part, encoder.first_step, last_step, first))
        first += len(part)
    if not keys:
        return
    key, step = np.concatenate(keys), np.concatenate(steps)
    order = np.lexsort((step, key))
    again = np.flatnonzero((np.diff(key[order]) == 0) & (np.diff(step[order]) == 0))
    if len(again):
        row = int(order[again + 1].min())
        other = int(np.flatnonzero((key == key[row]) & (step == step[row]))[0])
        raise ModelError(
            f"rows {other + 1:,} and {row + 1:,} share a user and step ({len(again):,} row(s) repeat another); keep "
            "one row for each, or the user would be decided for twice"
        )


def past_table(history: Path, remembered: ColumnMap) -> pl.DataFrame:
    """The users' earlier steps, with the names that histories have: the table may have those of the plan's log."""
    table = UsersTable(history, ColumnMap(), None)
    table.require_room(_PAST_BYTES)
    names = {remembered.name_of(role): role for role in ROLES if role != "propensity"}
    parts = []
    for part in table.parts(frozenset(names) | frozenset(names.values())):
        renames = {name: role for name, role in names.items() if name in part.columns and role not in part.columns}
        named = part.rename(renames)
        parts.append(taken(named, [role for role in names.values() if role in named.columns]))
    return pl.concat(parts) if parts else pl.DataFrame()

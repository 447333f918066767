"""Allocation: decide for every row of a table of users, of any size, in bounded memory.

`allocate_file` reads a `UsersTable` in parts, has `plan/decide.py` decide for each, and writes all through a `Spool`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import polars as pl
import polars.selectors as cs

from redenvelope.arrays import KeyArray
from redenvelope.engine.engine import LocalEngine
from redenvelope.errors import ModelError, UsageError
from redenvelope.files import is_address, nameless, replacing, require_writable, same_file, writing
from redenvelope.log.cleaning.dates import dates_of
from redenvelope.log.cleaning.ids import find_repeats, marks_of, read_ids, repeated, serving_ids
from redenvelope.log.cleaning.number_formats import PLAIN_INTEGER
from redenvelope.log.columns import HOLDOUT, ROLES, ColumnMap, column, put_back, taken, taken_lazily, without
from redenvelope.log.eligibility import BETWEEN, ELIGIBLE
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.table import serving_steps
from redenvelope.log.findings import Finding, Findings, Severity
from redenvelope.log.formats.csv import read_delimited
from redenvelope.log.formats.discovery import require_file
from redenvelope.log.formats.excel import is_workbook, read_workbook
from redenvelope.log.formats.parquet import is_parquet, read_failures, scan_file
from redenvelope.log.formats.sql import is_database, place_name, read_database, require_table, write_database
from redenvelope.log.formats.stores import require_parquet, scan_address, sink_address, store_failures
from redenvelope.log.limits import amount_of_memory, memory_lacks
from redenvelope.log.tables import ROW
from redenvelope.plan.decide import decide_part, expected_column, require_users
from redenvelope.plan.plan import Plan


@dataclass(frozen=True)
class AllocationSummary:
    """A summary of the decisions of an allocation."""

    users: int
    expected_cost: float
    """Mean over decisions, for this step alone."""
    expected_reward: float
    actions: dict[str, int]
    """How often each action was drawn."""
    findings: tuple[Finding, ...]
    """What was wrong or unusual in the table; where several parts had the same finding, the first part's."""
    expected_costs: dict[str, float] = field(default_factory=dict)
    """With several budgets, by budget name; the first is `expected_cost`."""
    held_out: int | None = None
    """Number of users in the control group; None where the plan has none."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "decisions": self.users,
            "expected_cost": self.expected_cost,
            "expected_reward": self.expected_reward,
            **({"expected_costs": self.expected_costs} if self.expected_costs else {}),
            **({} if self.held_out is None else {"held_out": self.held_out}),
            "actions": self.actions,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def allocate_file(
    plan: Plan,
    users: str | Path,
    out: str | Path,
    seed: int,
    columns: ColumnMap | None = None,
    history: str | Path | None = None,
) -> AllocationSummary:
    """Decide for every row of a table. Memory grows only by a few bytes per row, used to detect repeated users.

    Tables are files, or addresses: `postgresql://…?table=users`, `s3://bucket/users.parquet`. Either all decisions are
    written or none.

    `columns` names the table's own columns for user and step; without it, they may have the names of the log. `history`
    is a table of the users' earlier steps, held in memory, for plans whose decisions depend on them.
    """
    for given in (users, history):
        if given is not None and (str(out) == str(given) or same_file(Path(out), Path(given))):
            raise UsageError(f"{place_name(out)}: is the table that is read; choose another name for the decisions")
    rows, cost, reward, held_out = 0, 0.0, 0.0, 0
    costs = dict.fromkeys(plan.policy.several_budgets, 0.0)
    counts: dict[str, int] = {}
    found: dict[tuple[str, str | None], Finding] = {}
    require_destination(out)
    past = None if history is None or not plan.needs_history else past_table(history, plan.columns)
    table = UsersTable(users, plan.columns, columns)
    check_users(table, plan.policy.encoder)
    with Spool(out) as spool:
        for decisions, findings in _in_parts(plan, table, seed, past):
            for finding in findings:
                inside = tuple(row + rows for row in finding.rows)
                found.setdefault((finding.rule, finding.column), replace(finding, rows=inside))
            rows += len(decisions)
            cost += float(decisions["expected_cost"].sum())
            for name in costs:
                costs[name] += float(decisions[expected_column(name)].sum())
            reward += float(decisions["expected_reward"].sum())
            held_out += 0 if HOLDOUT not in decisions.columns else int(decisions[HOLDOUT].sum())
            for label, count in decisions["action"].value_counts().iter_rows():
                counts[str(label)] = counts.get(str(label), 0) + count
            spool.add(plan.in_own_names(decisions, table.renames))
        if not rows:
            raise UsageError(f"{place_name(users)}: no users to decide for")
        spool.finish()
    means = {name: total / rows for name, total in costs.items()}
    shown = dict(sorted(counts.items()))
    control = held_out if plan.policy.holdout else None
    return AllocationSummary(rows, cost / rows, reward / rows, shown, tuple(found.values()), means, control)


def rows_of_users(
    plan: Plan,
    users: str | Path,
    wanted: Sequence[str],
    columns: ColumnMap | None = None,
    history: str | Path | None = None,
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The rows of the wanted users, each with the user's earlier steps, in the order of `wanted`."""
    table = UsersTable(users, plan.columns, columns)
    check_users(table, plan.policy.encoder)
    past = None if history is None or not plan.needs_history else past_table(history, plan.columns)
    found: dict[str, list[dict[str, Any]]] = {}
    for part in table.parts(needed_columns(plan)):
        require_users(part)
        ids = serving_ids(part["user"]).cast(pl.String)
        for row in part.with_columns(serving_ids(part["user"])).filter(ids.is_in(list(wanted))).iter_rows(named=True):
            found.setdefault(str(row["user"]), []).append(row)
    missing = [user for user in wanted if user not in found]
    if missing:
        shown = place_name(users)
        raise UsageError(f"{shown}: there is no user {missing[0]!r} ({len(missing)} of {len(wanted)} are missing)")
    earlier = {} if past is None else _earlier(past, wanted)
    return [
        (row, [one for one in earlier.get(user, []) if one["step"] < row["step"]])
        for user in wanted
        for row in found[user]
    ]


def _earlier(past: pl.DataFrame, wanted: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The earlier steps of the wanted users, by user id as text."""
    found: dict[str, list[dict[str, Any]]] = {}
    rows = past.filter(serving_ids(past["user"]).cast(pl.String).is_in(list(wanted)))
    for row in rows.sort("step").iter_rows(named=True):
        found.setdefault(str(row["user"]), []).append(row)
    return found


def _in_parts(
    plan: Plan, table: UsersTable, seed: int, past: pl.DataFrame | None
) -> Iterator[tuple[pl.DataFrame, tuple[Finding, ...]]]:
    """Yield the decisions and findings of each part, in table order. One part is read and encoded while another is
    decided and the one before is written."""
    parts = table.parts(needed_columns(plan))
    decide = partial(decide_part, plan, seed=seed, history=past)
    # The first part runs alone, so that only one thread compiles the programs that all parts use.
    yield from map(decide, islice(parts, 1))
    yield from LocalEngine().map(decide, parts)


def needed_columns(plan: Plan) -> frozenset[str]:
    """The columns that decisions depend on."""
    encoder = plan.policy.encoder
    features = [number.name for number in encoder.numbers] + [category.name for category in encoder.categories]
    dates = [name for feature in features for name in dates_of(feature)]
    return frozenset({"user", "step", ELIGIBLE, *features, *dates})


# Writing decisions: parts go to unnamed files on the destination's disk, then everything is written in one step.


PACKING = 1
"""The zstd level for decisions: a higher one takes twice as long and makes the files no smaller."""

# Every part is an open file, and a process may have about a thousand.
_MOST_PARTS = 256


def require_destination(out: str | Path) -> None:
    """Refuse a destination that decisions cannot be written to; call it before deciding."""
    if is_database(out):
        require_table(str(out))
    elif is_address(out):
        require_parquet(str(out))
    elif Path(out).suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(
            f"{out}: decisions are written as .parquet or .csv, or to a table such as duckdb:///FILE?table=NAME; "
            "choose one of these endings"
        )
    else:
        require_writable(Path(out))


class Spool:
    """Collects tables and writes them as one. Memory holds only the last; a killed process leaves no files behind."""

    def __init__(self, out: str | Path) -> None:
        self._out = out
        self._near = Path(tempfile.gettempdir(), "decisions") if is_address(out) else Path(out)
        self._parts: list[IO[bytes]] = []
        self._last: pl.DataFrame | None = None
        self._open = ExitStack()

    def __enter__(self) -> Spool:
        with writing(self._near):
            self._near.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, part: pl.DataFrame) -> None:
        """Add a table."""
        with writing(self._near):
            if len(self._parts) == _MOST_PARTS:
                self._gather()
            if self._last is not None:
                # Uncompressed: the part is read only once more, and compressing takes several times as long as writing.
                self._last.write_parquet(_path(self._new_part()), compression="uncompressed", statistics=False)
            self._last = part

    def finish(self) -> None:
        """Write all tables in order: to a database table, an object, or a Parquet or CSV file by its ending."""
        whole = pl.concat([*self._written(), *([] if self._last is None else [self._last.lazy()])])
        if is_database(self._out):
            write_database(str(self._out), whole)
        elif is_address(self._out):
            sink_address(whole, str(self._out), PACKING)
        else:
            with replacing(self._near) as handle:
                if self._near.suffix.lower() == ".parquet":
                    whole.sink_parquet(_path(handle), compression_level=PACKING)
                else:
                    # Text files have no lists.
                    whole.with_columns(cs.list().list.join(BETWEEN)).sink_csv(_path(handle))

    def _new_part(self) -> IO[bytes]:
        self._parts.append(self._open.enter_context(nameless(self._near)))
        return self._parts[-1]

    def _gather(self) -> None:
        """Merge all written parts into one."""
        (before,), opened = self._written(), self._open
        self._open, self._parts = ExitStack(), []
        before.sink_parquet(_path(self._new_part()), compression="uncompressed", statistics=False)
        opened.close()

    def _written(self) -> list[pl.LazyFrame]:
        """All parts but the last as one lazy table; empty where there are none."""
        return [pl.scan_parquet([_path(part) for part in self._parts], glob=False)] if self._parts else []


def _path(handle: IO[bytes]) -> str:
    """A path to an open file, whether or not it has a name."""
    return handle.name if isinstance(handle.name, str) else f"/proc/self/fd/{handle.fileno()}"


# Reading a table of users in slices, with its columns renamed to what decisions need.


ROWS_AT_ONCE = 100_000
PAST_ROLES = tuple(role for role in ROLES if role != "propensity")
"""The columns of a history."""
_CHECKED_BYTES = 9  # bytes per row while users are compared: a hash, and whether it equals the next
_PAST_BYTES = 200  # bytes per row of a history in memory, copies included


@dataclass(frozen=True, eq=False)
class UsersTable:
    """A table of users. Its columns may have the names of the plan's log (`remembered`); names given explicitly
    (`asked`) must be in the table."""

    place: str | Path
    remembered: ColumnMap
    asked: ColumnMap | None

    def parts(self, wanted: frozenset[str]) -> Iterator[pl.DataFrame]:
        """Yield the wanted columns that the table has, `ROWS_AT_ONCE` rows at a time."""
        renames = self.renames
        kept = [name for name in self._names if renames.get(name, name) in wanted and name not in renames.values()]
        for first in range(0, self.rows, ROWS_AT_ONCE):
            yield self._slice(kept, first).rename({name: role for name, role in renames.items() if name in kept})

    def require_room(self, row_bytes: int) -> None:
        """Refuse a table whose rows need more memory than is free."""
        needed = self.rows * row_bytes
        left = memory_lacks(needed)
        if left is not None:
            raise UsageError(
                f"{place_name(self.place)}: {self.rows:,} rows need {amount_of_memory(needed)} of memory, "
                f"and {amount_of_memory(left)} are left; split the table by users"
            )

    def _slice(self, names: list[str], first: int) -> pl.DataFrame:
        if self._frame is not None:
            return taken(self._frame, names).slice(first, ROWS_AT_ONCE)
        with self._failures():
            return taken_lazily(self._scan(), names).slice(first, ROWS_AT_ONCE).collect()

    def _scan(self) -> pl.LazyFrame:
        return scan_address(str(self.place)) if is_address(self.place) else scan_file(Path(self.place))

    def _failures(self) -> AbstractContextManager[None]:
        return store_failures(str(self.place)) if is_address(self.place) else read_failures(Path(self.place))

    @cached_property
    def _frame(self) -> pl.DataFrame | None:
        """The whole table, for text files and databases; None for Parquet, which is read in slices."""
        if is_database(self.place):
            return read_database(str(self.place))
        if is_address(self.place):
            return None
        path, findings, frame = Path(self.place), Findings(), None
        require_file(path)
        if path.suffix.lower() in (".parquet", ".pq"):
            if is_parquet(path, path.name, findings):
                return None
        elif is_workbook(path):
            frame = read_workbook(path, findings)
        else:
            frame = read_delimited(path, findings)
        if frame is None:
            faults = [str(finding) for finding in findings.sorted() if finding.severity is Severity.ERROR]
            raise UsageError(f"{path}: cannot be read: {'; '.join(faults)}")
        return _with_whole_ids(without(frame, {ROW}), self.asked or self.remembered)

    @cached_property
    def _names(self) -> list[str]:
        if self._frame is not None:
            return self._frame.columns
        with self._failures():
            return list(self._scan().collect_schema())

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        if self._frame is not None:
            return len(self._frame)
        with self._failures():
            return int(self._scan().select(pl.len()).collect().item())

    @cached_property
    def renames(self) -> dict[str, str]:
        """The table's column name -> role, for the columns to rename."""
        return serving_renames(self._names, self.remembered, self.asked)


def serving_renames(names: list[str], remembered: ColumnMap, asked: ColumnMap | None) -> dict[str, str]:
    """The table's column name -> user, step or eligible, for the columns to rename."""
    renames = {}
    for role in ("user", "step", ELIGIBLE):
        name = (asked or remembered).name_of(role)
        if asked is not None and name not in names and (role != ELIGIBLE or role in asked.names):
            raise UsageError(
                f"there is no column {name!r} in the table of users, which was named for {role!r}; "
                f"the columns are {', '.join(names[:30])}"
            )
        if name != role and name in names and (asked is not None or role not in names):
            renames[name] = role
    return renames


def past_renames(names: list[str], remembered: ColumnMap) -> dict[str, str]:
    """The column name -> role of a table of earlier steps, for the columns to rename."""
    roles = {remembered.name_of(role): role for role in PAST_ROLES}
    return {name: role for name, role in roles.items() if name != role and name in names and role not in names}


def _with_whole_ids(frame: pl.DataFrame, columns: ColumnMap) -> pl.DataFrame:
    """User ids of a text file as integers if all of them are integers, as a log reads them."""
    for name in {columns.name_of("user"), "user"} & set(frame.columns):
        ids = read_ids(column(frame, name))
        if ids is not None and not ids.lost.any() and ids.values.str.contains(PLAIN_INTEGER).all():
            whole = ids.values.cast(pl.Int64, strict=False)
            if not whole.null_count():
                frame = put_back(frame, {name: whole})
    return frame


def check_users(table: UsersTable, encoder: Encoder) -> None:
    """Refuse a table with missing users, missing steps, or the same user and step twice, anywhere in the file."""
    table.require_room(_CHECKED_BYTES)
    marks, first = np.empty(table.rows, np.uint64), 0
    for rows in _users_and_steps(table, encoder):
        marks[first : first + len(rows)] = marks_of(rows)
        first += len(rows)
    suspect = repeated(marks[:first])
    if len(suspect):
        _refuse_twice(table, encoder, suspect)


def _refuse_twice(table: UsersTable, encoder: Encoder, suspect: KeyArray) -> None:
    """Refuse rows that share a user and step; `suspect` has the hashes of all such rows, and maybe of others."""
    found = [rows.filter(pl.Series(np.isin(marks_of(rows), suspect))) for rows in _users_and_steps(table, encoder)]
    repeats = find_repeats(pl.concat(found))
    if repeats is not None:
        raise ModelError(
            f"rows {repeats.like + 1:,} and {repeats.row + 1:,} share a user and step ({repeats.total:,} row(s) repeat "
            "another); keep one row for each, or the user would be decided for twice"
        )


def _users_and_steps(table: UsersTable, encoder: Encoder) -> Iterator[pl.DataFrame]:
    """Yield user, step and row number (`row`) of every row, checked, `ROWS_AT_ONCE` rows at a time."""
    first, last_step = 0, encoder.first_step + encoder.campaign_steps - 1
    for part in table.parts(frozenset({"user", "step"})):
        if len(part.columns) < 2:
            return  # reported when decisions are made
        users = serving_ids(part["user"], first)
        steps = serving_steps(part, encoder.first_step, last_step, first)
        yield pl.DataFrame({"user": users, "step": steps}).with_row_index("row", first)
        first += len(part)


def past_table(history: str | Path, remembered: ColumnMap) -> pl.DataFrame:
    """The users' earlier steps, with columns renamed to their roles; the table may have the names of the plan's log."""
    table = UsersTable(history, ColumnMap(), None)
    table.require_room(_PAST_BYTES)
    names = {remembered.name_of(role): role for role in ROLES if role != "propensity"}
    parts = []
    for part in table.parts(frozenset(names) | frozenset(names.values())):
        renames = {name: role for name, role in names.items() if name in part.columns and role not in part.columns}
        named = part.rename(renames)
        parts.append(taken(named, [role for role in names.values() if role in named.columns]))
    return pl.concat(parts) if parts else pl.DataFrame()

"""Decisions for a table of any size: read, decided and written in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.files import require_writable, same_file
from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.delimited import read_delimited
from redenvelope.log.findings import Finding, Findings
from redenvelope.log.numbers import PLAIN_INTEGER
from redenvelope.log.tables import ROW
from redenvelope.plan.plan import Plan
from redenvelope.plan.spool import Spool

__all__ = ["AllocationSummary", "allocate_file"]

_ROWS_AT_ONCE = 200_000


@dataclass(frozen=True)
class AllocationSummary:
    """What was decided, all in all."""

    users: int
    expected_cost: float
    """Mean over decisions, of this step alone."""
    expected_reward: float
    actions: dict[str, int]
    """How often each action was drawn."""
    findings: tuple[Finding, ...]
    """What was odd about the table; the first part's, where several parts had the same."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "decisions": self.users,
            "expected_cost": self.expected_cost,
            "expected_reward": self.expected_reward,
            "actions": self.actions,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def allocate_file(
    plan: Plan,
    users: Path,
    out: Path,
    seed: int,
    columns: ColumnMap | None = None,
    history: Path | None = None,
) -> AllocationSummary:
    """Decide for every row of a table; memory does not grow with its length.

    `columns` names the table's own columns for user and step; without, they may have the names of the log. `history`
    is a table of the users' earlier steps, held in memory, where the plan decides by them.
    """
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"{out}: decisions are written as .parquet or .csv; choose one of the two endings")
    for given in (users, history):
        if given is not None and same_file(out, given):
            raise UsageError(f"{out}: is the table that is read; choose another name for the decisions")
    rows, cost, reward = 0, 0.0, 0.0
    counts: dict[str, int] = {}
    found: dict[tuple[str, str | None], Finding] = {}
    require_writable(out)
    past = None if history is None or not plan.needs_history else _past(history, plan.columns)
    with Spool(out) as spool:
        for part in _parts(users, plan.columns, columns):
            decisions, findings = plan.allocate(part, seed, past)
            for finding in findings:
                found.setdefault((finding.rule, finding.column), finding)
            rows += len(decisions)
            cost += float(decisions["expected_cost"].sum())
            reward += float(decisions["expected_reward"].sum())
            for label, count in decisions["action"].value_counts().iter_rows():
                counts[str(label)] = counts.get(str(label), 0) + count
            spool.add(decisions)
        if not rows:
            raise UsageError(f"{users}: no users to decide for")
        spool.finish()
    return AllocationSummary(rows, cost / rows, reward / rows, dict(sorted(counts.items())), tuple(found.values()))


def _parts(users: Path, remembered: ColumnMap, asked: ColumnMap | None) -> Iterator[pl.DataFrame]:
    """The table, so many rows at a time, with the names that decisions need."""
    if not users.is_file():
        raise UsageError(f"{users}: no such file")
    if users.suffix.lower() in (".parquet", ".pq"):
        try:
            table = pl.scan_parquet(users)
            rows = int(table.select(pl.len()).collect().item())
            for first in range(0, rows, _ROWS_AT_ONCE):
                yield _renamed(table.slice(first, _ROWS_AT_ONCE).collect(), remembered, asked)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise UsageError(f"{users}: the file is damaged ({str(error).splitlines()[0]})") from None
        return
    findings = Findings()
    frame = read_delimited(users, findings)
    if frame is None:
        raise UsageError(f"{users}: cannot be read: {findings.sorted()[0].message}")
    named = _renamed(frame.drop(ROW), remembered, asked)
    typed = named.with_columns(_typed(named["user"])) if "user" in named.columns else named
    for first in range(0, len(typed), _ROWS_AT_ONCE):
        yield typed.slice(first, _ROWS_AT_ONCE)


def _past(history: Path, remembered: ColumnMap) -> pl.DataFrame:
    """The users' earlier steps, with the names that histories have: the table may have those of the plan's log."""
    parts = []
    for part in _parts(history, ColumnMap(), None):
        names = {remembered.name_of(role): role for role in ROLES if role != "propensity"}
        renames = {name: role for name, role in names.items() if name in part.columns and role not in part.columns}
        named = part.rename(renames)
        kept = [role for role in names.values() if role in named.columns]
        parts.append(named.select(kept))
    past = pl.concat(parts) if parts else pl.DataFrame()
    if "user" in past.columns and past["user"].dtype == pl.String:
        past = past.with_columns(_typed(past["user"]))
    return past


def _renamed(part: pl.DataFrame, remembered: ColumnMap, asked: ColumnMap | None) -> pl.DataFrame:
    """The table with the names that decisions need; names that were asked for must be there."""
    renames = {}
    for role in ("user", "step"):
        name = (asked or remembered).name_of(role)
        if asked is not None and name not in part.columns:
            raise UsageError(
                f"there is no column {name!r} in the table of users, which was named for {role!r}; "
                f"the columns are {', '.join(part.columns)}"
            )
        if name != role and name in part.columns and (asked is not None or role not in part.columns):
            renames[name] = role
    kept = [column for column in part.columns if column not in renames.values()]
    return part.select(kept).rename(renames)


def _typed(users: pl.Series) -> pl.Series:
    """Ids of a text file as integers where they all are, so that they hash like those of a parquet file."""
    return users.cast(pl.Int64) if users.str.contains(PLAIN_INTEGER).all() else users

"""What became of the users of a test: tables that need no propensities, only who, what it earned and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from redenvelope.errors import LogError, UsageError
from redenvelope.log.columns import ColumnMap, column, nearest_name
from redenvelope.log.findings import Finding, Findings, Places, report_places
from redenvelope.log.read import table_of
from redenvelope.log.schema.coerce import coerce_outcome, coerce_step, coerce_user
from redenvelope.log.tables import FILE, ROW, Table

_ROLES = frozenset({"user", "reward", "cost"})
_CHARGE = "\0counts against "  # before the name of a budget: no column of a table is called so
_USUAL_NAMES = ("plan", "treatment", "treated", "test")
"""What the arm that followed a plan is called, if nobody says."""


@dataclass(frozen=True, eq=False)
class Arm:
    """The users of one arm, each with all that they earned and cost."""

    name: str
    users: frozenset[str]
    sums: NDArray[np.float64]
    """[outcomes, users]: reward, cost."""
    steps: int | None
    """How many different steps its rows have; None where the table does not tell."""
    findings: tuple[Finding, ...] = ()
    """Warnings and repairs met while reading."""
    notes: tuple[str, ...] = ()
    """What else to know, in words."""
    charged: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """What each user counted against budgets of a plan, by their names: [users]."""
    untold: Mapping[str, str] = field(default_factory=dict)
    """Budgets of which the table does not tell that, and why."""


Charges = Callable[[pl.DataFrame], Mapping[str, NDArray[np.float64] | str]]
"""What each row of a table counts against budgets, or why it does not tell."""


def read_arm(
    source: str | Path | pl.DataFrame,
    columns: ColumnMap | None = None,
    name: str | None = None,
    charges: Charges | None = None,
) -> Arm:
    """One arm, from a table of its own: any number of rows a user. Raises `LogError` with every violation."""
    shown = name or (Path(source).name if isinstance(source, str | Path) else "table in memory")
    rows, findings, untold = _rows(source, columns or ColumnMap(), charges=charges)
    return _arm(shown, rows, findings, untold)


def read_both_arms(
    source: str | Path | pl.DataFrame,
    arm: str,
    first: str | None = None,
    columns: ColumnMap | None = None,
    charges: Charges | None = None,
) -> tuple[Arm, Arm]:
    """Two arms from one table, told apart by a column; `first` is the value of the arm that followed the plan."""
    rows, findings, untold = _rows(source, columns or ColumnMap(), arm, charges)
    values = rows["arm"].drop_nulls().unique().sort().to_list()
    if rows["arm"].null_count():
        raise UsageError(
            f"{rows['arm'].null_count():,} row(s) have no {arm!r}; say for each of them which arm it belongs to"
        )
    if len(values) != 2:
        shown = ", ".join(repr(value) for value in values[:8])
        raise UsageError(f"the column {arm!r} holds {len(values)} values ({shown}); two arms are compared, keep two")
    ordered = _ordered(values, first, arm)
    both = rows.group_by("user").agg(pl.col("arm").n_unique()).filter(pl.col("arm") > 1)
    if len(both):
        raise UsageError(
            f"{len(both):,} user(s) are in both arms, such as {both['user'].sort()[0]!r}; a user belongs to one arm: "
            "leave these out, or correct the column"
        )
    one, other = (_arm(value, rows.filter(pl.col("arm") == value), findings, untold) for value in ordered)
    return one, other


def _ordered(values: Sequence[str], first: str | None, arm: str) -> tuple[str, str]:
    """The arm that followed the plan, and the other."""
    if first is None:
        usual = [value for value in values if value.casefold() in _USUAL_NAMES]
        if len(usual) != 1:
            raise UsageError(
                f"the column {arm!r} holds {values[0]!r} and {values[1]!r}; say which of them followed the plan: "
                f"--first {values[0]!r}"
            )
        first = usual[0]
    if first not in values:
        raise UsageError(f"the column {arm!r} holds no {first!r}; it holds {values[0]!r} and {values[1]!r}")
    return first, next(value for value in values if value != first)


def _rows(
    source: str | Path | pl.DataFrame, columns: ColumnMap, arm: str | None = None, charges: Charges | None = None
) -> tuple[pl.DataFrame, tuple[Finding, ...], Mapping[str, str]]:
    """user (text), reward, cost, where the table has them step and arm, and what counts against budgets; what was
    found; and the budgets of which the table does not tell."""
    findings = Findings()
    table = table_of(source, columns, findings, estimate_propensity=True, required=_ROLES)
    if table is None or findings.refused:
        raise LogError([finding for finding in findings.sorted() if finding.severity == "error"])
    found: dict[tuple[str, str], Places] = {}
    users = coerce_user(table, False, found)
    outcomes = {role: coerce_outcome(table, role, found) for role in ("reward", "cost")}
    kept = {"user": users, **{role: values for role, values in outcomes.items() if values is not None}}
    if "step" in table.frame.columns:
        kept["step"] = coerce_step(table, found)
    for (rule, name), places in found.items():
        report_places(findings, table.files, rule, name, places)
    if findings.refused or users is None:
        raise LogError([finding for finding in findings.sorted() if finding.severity == "error"])
    if arm is not None:
        kept["arm"] = _arm_column(table, arm)
    rows = pl.DataFrame({name: values for name, values in kept.items() if values is not None})
    told = {} if charges is None else charges(table.frame)
    rows = rows.with_columns(
        pl.Series(_CHARGE + name, each) for name, each in told.items() if not isinstance(each, str)
    )
    untold = {name: each for name, each in told.items() if isinstance(each, str)}
    return rows.with_columns(pl.col("user").cast(pl.String)), findings.sorted(), untold


def _arm_column(table: Table, arm: str) -> pl.Series:
    present = [name for name in table.frame.columns if name not in (ROW, FILE)]
    if arm not in present:
        nearest = nearest_name(arm, present)
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        raise UsageError(f"there is no column {arm!r} that tells the arms apart{hint} (there are {', '.join(present)})")
    return column(table.frame, arm).cast(pl.String)


def _arm(name: str, rows: pl.DataFrame, findings: tuple[Finding, ...], untold: Mapping[str, str]) -> Arm:
    charged = [each for each in rows.columns if each.startswith(_CHARGE)]
    summed = rows.group_by("user").agg(pl.col("reward").sum(), pl.col("cost").sum(), cs.by_name(charged).sum())
    summed = summed.sort("user")
    if len(summed) < 2:
        raise UsageError(f"{name}: {len(summed)} user(s); two arms are compared by their users, and need many of them")
    return Arm(
        name=name,
        users=frozenset(summed["user"].to_list()),
        sums=np.stack([summed[role].to_numpy() for role in ("reward", "cost")]),
        steps=rows["step"].n_unique() if "step" in rows.columns else None,
        findings=findings,
        notes=tuple(_repeated(name, rows)),
        charged={each.removeprefix(_CHARGE): summed.get_column(each).to_numpy() for each in charged},
        untold=untold,
    )


def _repeated(name: str, rows: pl.DataFrame) -> Iterator[str]:
    """Rows that may have been exported twice: their sums would count twice."""
    if "step" not in rows.columns:
        return
    again = len(rows) - rows.select("user", "step").n_unique()
    if again:
        yield f"{name}: {again:,} row(s) repeat a user and step, and are added up; if they are copies, remove them"

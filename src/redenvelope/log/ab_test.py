"""Reading the arms of an A/B test: tables with user, reward and cost, which need no propensities.

An arm is summed by user, because users are what was randomised. Budgets of a plan are charged as in its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.files import is_address
from redenvelope.log.columns import HOLDOUT, ColumnMap, column, nearest_name
from redenvelope.log.findings import Finding, Findings, Places, report_places, require_usable
from redenvelope.log.formats.dataframes import to_polars
from redenvelope.log.formats.sql import place_name
from redenvelope.log.read import table_of
from redenvelope.log.schema.coerce import coerce_outcome, coerce_user
from redenvelope.log.tables import FILE, ROW, Table, held_out_rows
from redenvelope.wording import counted

_ROLES = frozenset({"user", "reward", "cost"})
_CHARGE = "\0counts against "  # prefix of a budget's name; no column of a table can have it
_USUAL_NAMES = ("plan", "treatment", "treated", "test")
"""Usual names of the arm that followed the plan, used if none is given."""


@dataclass(frozen=True, eq=False)
class Arm:
    """The users of one arm, with the total reward and cost of each."""

    name: str
    users: frozenset[str]
    sums: NDArray[np.float64]
    """[outcomes, users]: reward, cost."""
    steps: int | None
    """Number of distinct steps in its rows; None if the table has no steps."""
    findings: tuple[Finding, ...] = ()
    """Warnings and repairs from reading."""
    notes: tuple[str, ...] = ()
    """Further warnings, as text."""
    charged: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Each user's charges against the budgets of a plan, by budget name: [users]."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Budgets whose charges the table does not show, and why."""
    held_out: bool = False
    """Whether it is the control group of a plan, whose users got the cheapest action."""


Charges = Callable[[pl.DataFrame], Mapping[str, NDArray[np.float64] | str]]
"""Table -> for each budget, the charges of the rows, or the reason why they are unknown."""


def read_arms(
    first: Any,
    second: Any = None,
    arm: str | None = None,
    followed: str | None = None,
    columns: ColumnMap | None = None,
    charges: Charges | None = None,
) -> tuple[Arm, Arm]:
    """The plan's arm and the other, from one or two tables, which are paths or dataframes; see `compare`."""
    first, second = (
        each if each is None or isinstance(each, str | Path) else to_polars(each, "an arm") for each in (first, second)
    )
    if second is None:
        if arm is None and followed is None:  # a log of a campaign with a control group
            return read_held_out(first, columns, charges)
        if arm is None:
            raise UsageError("--first is a value of the column that names the arm; also give --arm COLUMN")
        return read_both_arms(first, arm, followed, columns, charges)
    if arm is not None or followed is not None:
        raise UsageError("--arm and --first are for one table of both arms; of two tables, the first is the plan's arm")
    one, other = (read_arm(each, columns, charges=charges) for each in (first, second))
    shared = one.users & other.users
    if shared:
        raise UsageError(
            f"{counted(len(shared), 'user')} in both arms, such as {min(shared)!r}; a user belongs to one arm: leave "
            "these out, or correct the tables"
        )
    return one, other


def read_arm(
    source: str | Path | pl.DataFrame,
    columns: ColumnMap | None = None,
    name: str | None = None,
    charges: Charges | None = None,
) -> Arm:
    """One arm, from its own table with any number of rows per user; raises `LogError` with every violation."""
    shown = name or (_shown(source) if isinstance(source, str | Path) else "table in memory")
    rows, findings, unknown = _rows(source, columns or ColumnMap(), charges=charges)
    return _arm(shown, rows, findings, unknown)


def read_both_arms(
    source: str | Path | pl.DataFrame,
    arm: str,
    first: str | None = None,
    columns: ColumnMap | None = None,
    charges: Charges | None = None,
) -> tuple[Arm, Arm]:
    """Two arms from one table, by the values of the column `arm`; `first` is the value of the arm with the plan."""
    rows, findings, unknown = _rows(source, columns or ColumnMap(), arm, charges)
    values = rows["arm"].drop_nulls().unique().sort().to_list()
    if rows["arm"].null_count():
        raise UsageError(
            f"{counted(rows['arm'].null_count(), 'row')} without a value in the column {arm!r}; give each row its arm"
        )
    if len(values) != 2:
        shown = ", ".join(repr(value) for value in values[:8])
        raise UsageError(f"the column {arm!r} has {len(values)} values ({shown}); keep the two arms to compare")
    ordered = _ordered(values, first, arm)
    _refuse_in_both(rows)
    one, other = (_arm(value, rows.filter(pl.col("arm") == value), findings, unknown) for value in ordered)
    return one, other


def read_held_out(
    source: str | Path | pl.DataFrame, columns: ColumnMap | None = None, charges: Charges | None = None
) -> tuple[Arm, Arm]:
    """The users who followed a plan and its control group, from one table in which `holdout` marks the latter."""
    rows, findings, unknown = _rows(source, columns or ColumnMap(), HOLDOUT, charges)
    marks = held_out_rows(rows.rename({"arm": HOLDOUT}), strict=True)
    assert marks is not None
    if marks.all() or not marks.any():
        raise UsageError(f"the column {HOLDOUT!r} is the same in all rows; keep the plan's users and those held out")
    _refuse_in_both(rows.with_columns(marks.alias("arm")))
    control = _arm("held out", rows.filter(marks), findings, unknown)
    return _arm("plan", rows.filter(~marks), findings, unknown), replace(control, held_out=True)


def _refuse_in_both(rows: pl.DataFrame) -> None:
    both = rows.group_by("user").agg(pl.col("arm").n_unique()).filter(pl.col("arm") > 1)
    if len(both):
        raise UsageError(
            f"{counted(len(both), 'user')} in both arms, such as {both['user'].sort()[0]!r}; a user belongs to one "
            "arm: leave these users out, or correct the column"
        )


def _ordered(values: Sequence[str], first: str | None, arm: str) -> tuple[str, str]:
    """The arm that followed the plan, and the other."""
    if first is None:
        usual = [value for value in values if value.casefold() in _USUAL_NAMES]
        if len(usual) != 1:
            raise UsageError(
                f"the column {arm!r} has {values[0]!r} and {values[1]!r}; name the one that followed the plan, such as "
                f"--first {values[0]!r}"
            )
        first = usual[0]
    if first not in values:
        raise UsageError(f"the column {arm!r} has no {first!r}; it has {values[0]!r} and {values[1]!r}")
    return first, next(value for value in values if value != first)


def _rows(
    source: str | Path | pl.DataFrame, columns: ColumnMap, arm: str | None = None, charges: Charges | None = None
) -> tuple[pl.DataFrame, tuple[Finding, ...], Mapping[str, str]]:
    """The rows (user as text, reward, cost, charges, and step and arm if the table has them), the findings, and the
    budgets whose charges are unknown."""
    findings = Findings()
    table = table_of(source, columns, findings, estimate_propensity=True, required=_ROLES)
    require_usable(findings.sorted())
    assert table is not None  # otherwise a finding would be an error
    found: dict[tuple[str, str], Places] = {}
    users = coerce_user(table, False, found)
    outcomes = {role: coerce_outcome(table, role, found) for role in ("reward", "cost")}
    chosen = {"user": users, **{role: values for role, values in outcomes.items() if values is not None}}
    if "step" in table.frame.columns:
        chosen["step"] = column(table.frame, "step")  # only distinct values count, so times work as well as numbers
    for (rule, name), places in found.items():
        report_places(findings, table.files, rule, name, places)
    require_usable(findings.sorted())
    if arm is not None:
        chosen["arm"] = _arm_column(table, arm)
    rows = pl.DataFrame({name: values for name, values in chosen.items() if values is not None})
    charged = {} if charges is None else charges(table.frame)
    rows = rows.with_columns(
        pl.Series(_CHARGE + name, each) for name, each in charged.items() if not isinstance(each, str)
    )
    unknown = {name: each for name, each in charged.items() if isinstance(each, str)}
    return rows.with_columns(pl.col("user").cast(pl.String)), findings.sorted(), unknown


def _shown(source: str | Path) -> str:
    return place_name(source) if is_address(source) else Path(source).name


def _arm_column(table: Table, arm: str) -> pl.Series:
    present = [name for name in table.frame.columns if name not in (ROW, FILE)]
    if arm not in present and arm == HOLDOUT:
        raise UsageError(
            "give two tables, or one and the column that names the arm: --arm COLUMN (a control group is marked by the "
            f"column {HOLDOUT!r}, which this table does not have)"
        )
    if arm not in present:
        nearest = nearest_name(arm, present)
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        raise UsageError(f"there is no column {arm!r} for the arms{hint} (the table has {', '.join(present)})")
    return column(table.frame, arm).cast(pl.String)


def _arm(name: str, rows: pl.DataFrame, findings: tuple[Finding, ...], unknown: Mapping[str, str]) -> Arm:
    charged = [each for each in rows.columns if each.startswith(_CHARGE)]
    summed = rows.group_by("user").agg(pl.col("reward").sum(), pl.col("cost").sum(), cs.by_name(charged).sum())
    summed = summed.sort("user")
    if len(summed) < 2:
        raise UsageError(
            f"{name} has {len(summed)} user(s); an arm needs at least 2 users to be compared, and many to be precise"
        )
    return Arm(
        name=name,
        users=frozenset(summed["user"].to_list()),
        sums=np.stack([summed[role].to_numpy() for role in ("reward", "cost")]),
        steps=rows["step"].n_unique() if "step" in rows.columns else None,
        findings=findings,
        notes=tuple(_repeated(name, rows)),
        charged={each.removeprefix(_CHARGE): summed.get_column(each).to_numpy() for each in charged},
        unknown=unknown,
    )


def _repeated(name: str, rows: pl.DataFrame) -> Iterator[str]:
    """A note on rows with the same user and step, which may be duplicates and would be summed twice."""
    if "step" not in rows.columns:
        return
    again = len(rows) - rows.select("user", "step").n_unique()
    if again:
        repeated = f"{name}: {counted(again, 'row')} with the user and step of another, added up"
        yield f"{repeated}; remove them if they are duplicates"

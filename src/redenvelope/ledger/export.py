"""Export: the decisions of a campaign as a log, with propensities, prices and outcomes, for the next audit and fit.

The log is one row per decision, read at one moment, with amounts in units of currency; a campaign.toml next to it has
the plan's budgets and rules.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from redenvelope.errors import LedgerError
from redenvelope.files import replacing, writing
from redenvelope.ledger.ledger import PLAN_NOTES, Ledger
from redenvelope.ledger.records import COUNTED, Balance, Decided, Status
from redenvelope.ledger.transaction import Transaction, decision_states, decisions_where

_ROWS = 20_000
_PRICE_OF, _COST, _HOLDOUT, _ELIGIBLE, _PAST = "price of ", "cost", "holdout", "eligible", "past as decided"
_LABELS = "all labels"
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    rows: int
    users: int
    open_users: int
    """Users left out because one of their decisions has no outcome yet."""
    forgotten_users: int
    """Users left out because their features were erased."""
    expired: int
    """Rows whose hold expired without an outcome. Their cost is 0, and so is their reward, unless one was reported with
    an amount that was refused."""
    renamed: dict[str, str]
    """Features whose names clash with a column of the log, and their new names there."""
    campaign_file: Path | None
    """The file with the plan's budgets and rules and the columns that are not features; None if there was one
    already."""


def export_log(ledger: Ledger, out: Path, minor_units: int | None = None) -> Exported:
    """Write the log to a parquet file, and a campaign.toml next to it unless there is one."""
    found = log_frame(ledger, minor_units)
    frame = found.frame
    described = {"price", "plan", _PAST, *(name for name in frame.columns if name.startswith(_PRICE_OF))}
    ignored = [name for name in frame.columns if name in described]
    with replacing(out) as file:
        frame.write_parquet(file)
    campaign_file: Path | None = out.parent / "campaign.toml"
    assert campaign_file is not None
    with writing(campaign_file):
        try:
            with campaign_file.open("x", encoding="utf-8") as file:
                file.write("# what describes how a row was decided is no feature of the user\n")
                file.write(f"ignore = {json.dumps(ignored, ensure_ascii=False)}\n{_tables(found.campaign)}")
        except FileExistsError:
            campaign_file = None
    counts = (len(frame), frame["user"].n_unique(), found.open_users, found.forgotten_users, found.expired)
    return Exported(*counts, found.renamed, campaign_file)


class LogFrame(NamedTuple):
    """The log of a ledger."""

    frame: pl.DataFrame
    open_users: int
    forgotten_users: int
    expired: int
    renamed: dict[str, str]
    campaign: dict[str, list[dict[str, Any]]]
    """Budgets and rules of the latest plan."""


def log_frame(ledger: Ledger, minor_units: int | None = None) -> LogFrame:
    """The log at one moment.

    Amounts are in units of currency, with `minor_units` per unit or else as many as the budget states. Each column that
    a budget sums is in the log under its name; counts follow from the actions. Features are those of the deciding
    plans.

    Users with an open decision are left out with all their rows, because a trajectory without its last step would look
    like a user who left. Forgotten users are left out because without features their actions cannot be explained.
    """
    columns: dict[str, list[Any]] = defaultdict(list)
    features: dict[str, dict[int, Any]] = defaultdict(dict)
    rows, after = 0, 0
    with ledger.database.reading() as session:
        budgets = _budget_columns(Transaction.begin(ledger.database, session).balances(), minor_units)
        waiting, forgotten = (
            {row[0] for row in session.rows(f"SELECT DISTINCT user_id FROM decisions WHERE {condition}")}
            for condition in ("status = 'open'", "salt IS NULL")
        )
        left_out = waiting | forgotten
        notes = [json.loads(row[0]) for row in session.rows(PLAN_NOTES)]
        query = decisions_where("decision > ? ORDER BY decision LIMIT ?")
        while batch := decision_states(session, session.rows(query, [after, _ROWS])):
            after = batch[-1].record.decision
            for one in (state.record for state in batch if state.record.user not in left_out):
                for name, value in _row(one, budgets).items():
                    columns[name].append(value)
                for name, value in json.loads(one.features or "{}").items():
                    features[name][rows] = value
                rows += 1
    if not rows:
        raise LedgerError("no user in the ledger has outcomes for all decisions; there is nothing to export yet")
    kinds = {name: kind for note in notes for name, kind in note["features"].items()}
    renamed = _renamed([*kinds, *(name for name in features if name not in kinds)], columns)
    expired = sum(columns.pop("expired"))
    columns["user"] = _users(columns["user"])
    for name in (_HOLDOUT, _ELIGIBLE, _PAST):  # only if any row has a value
        if not any(columns[name]):
            del columns[name]
    if _ELIGIBLE in columns:
        columns[_ELIGIBLE] = [own or every for own, every in zip(columns[_ELIGIBLE], columns[_LABELS], strict=True)]
    del columns[_LABELS]
    series = [pl.Series(name, values) for name, values in columns.items()]
    series += [_feature(renamed[name], features.get(name, {}), rows, kinds.get(name)) for name in renamed]
    frame = pl.DataFrame(series).sort("user", "step")
    campaign = notes[-1]["campaign"] if notes else {}
    counts = (len(waiting - forgotten), len(forgotten), expired)
    return LogFrame(frame, *counts, {a: b for a, b in renamed.items() if a != b}, campaign)


def _renamed(names: Sequence[str], taken: Container[str]) -> dict[str, str]:
    """Names of features in the log, changed if they clash with a column or with the prefix of price columns."""
    found: dict[str, str] = {}
    for name in names:
        own = name
        while own in taken or own.startswith(_PRICE_OF) or (own != name and own in names):
            own = f"feature {own}"
        found[name] = own
    return found


def _tables(campaign: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Budgets and rules in the format of a campaign file."""
    lines = []
    for table, entries in campaign.items():
        for entry in entries:
            lines.append(f"\n[[{table}]]\n")
            given = ((name, value) for name, value in entry.items() if value is not None)
            lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in given]
    return "".join(lines).replace("\x7f", "\\u007f")  # which JSON does not escape, and TOML does not allow


class _BudgetColumn(NamedTuple):
    """A budget and the column of the log that it sums; None if it counts actions."""

    name: str
    column: str | None
    minor_units: int


def _budget_columns(balances: Sequence[Balance], minor_units: int | None) -> list[_BudgetColumn]:
    """Budgets with their columns. If none sums the cost, the first one without a stated measure does."""
    columns = [None if one.measure == COUNTED else one.measure for one in balances]
    if _COST not in columns:
        unstated = next((place for place, one in enumerate(balances) if one.measure == one.budget), None)
        columns = [_COST if place == unstated else column for place, column in enumerate(columns)]
    return [
        _BudgetColumn(one.budget, column, minor_units or one.minor_units)
        for one, column in zip(balances, columns, strict=True)
    ]


def _row(one: Decided, budgets: Sequence[_BudgetColumn]) -> dict[str, Any]:
    prices = json.loads(one.prices)
    row: dict[str, Any] = {
        "user": one.user,
        "step": one.step,
        "action": one.action,
        "propensity": one.propensity,
        "reward": 0.0 if one.reward is None else one.reward,
        "cost": 0.0,
    }
    for budget in budgets:
        if budget.column not in (None, "reward"):
            # Budgets that count in some rows only may share a column: the one that was charged has the amount.
            row[budget.column] = max(row.get(budget.column, 0.0), one.spent.get(budget.name, 0) / budget.minor_units)
    if all(budget.column != _COST for budget in budgets):  # a log needs a cost: take the first amount
        row[_COST] = next((row[budget.column] for budget in budgets if budget.column is not None), 0.0)
    row["price"] = prices[0] if prices else None
    for place, budget in enumerate(budgets[1:], start=1):
        row[f"{_PRICE_OF}{budget.name}"] = prices[place] if place < len(prices) else None
    row["plan"] = one.plan
    row[_HOLDOUT] = one.holdout
    row[_ELIGIBLE] = json.loads(one.eligible) if one.eligible else None
    row[_LABELS] = list(json.loads(one.probabilities))
    row[_PAST] = one.state or None
    row["expired"] = one.status is Status.EXPIRED
    return row


def _users(users: list[str]) -> list[Any]:
    """Ids as integers if all are, so that they sort as numbers."""
    return [int(user) for user in users] if all(_INTEGER.fullmatch(user) for user in users) else users


def _feature(name: str, values: dict[int, Any], rows: int, kind: str | None) -> pl.Series:
    """A column of the type that the plan states, else of its values' common type: boolean, integer, float or text."""
    column = [values.get(row) for row in range(rows)]
    if kind == "number":
        column = [value if isinstance(value, int | float) else None for value in column]
    kinds = {type(value) for value in column if value is not None}
    if kinds == {bool} or (not kinds and kind is None):
        return pl.Series(name, column, dtype=pl.Boolean)
    if kind == "number" or (kinds and kinds <= {int, float}):
        integer = kinds <= {int, bool} and all(-(2**63) <= value < 2**63 for value in column if value is not None)
        numbers = [value if value is None else int(value) if integer else float(value) for value in column]
        return pl.Series(name, numbers, dtype=pl.Int64 if integer and kinds else pl.Float64)
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in column]
    return pl.Series(name, texts, dtype=pl.String)

"""Export: the decisions of a campaign as a log, with propensities, prices and outcomes, for the next audit and fit."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from redenvelope.errors import LedgerError
from redenvelope.files import replacing, writing
from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import COUNTED, Balance, Decided, Status

_ROWS = 20_000
_PRICE_OF, _COST, _HOLDOUT = "price of ", "cost", "holdout"
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    rows: int
    users: int
    open_users: int
    """Users who were left out because a decision of theirs has no outcome yet."""
    expired: int
    """Rows whose hold expired without an outcome: reward and cost are 0."""
    campaign_file: Path | None
    """Lists the columns that are not features; None where a campaign.toml was there already."""


def export_log(ledger: Ledger, out: Path, minor_units: int | None = None) -> Exported:
    """Write the log to a parquet file, and a campaign.toml next to it where there is none."""
    frame, open_users, expired = log_frame(ledger, minor_units)
    ignored = ["price", "plan", *(name for name in frame.columns if name.startswith(_PRICE_OF))]
    with replacing(out) as file:
        frame.write_parquet(file)
    campaign_file = out.parent / "campaign.toml"
    with writing(campaign_file):
        try:
            with campaign_file.open("x", encoding="utf-8") as file:
                file.write("# price and plan describe how a row was decided; they are not features of the user\n")
                file.write(f"ignore = {json.dumps(ignored, ensure_ascii=False)}\n")
        except FileExistsError:
            return Exported(len(frame), frame["user"].n_unique(), open_users, expired, None)
    return Exported(len(frame), frame["user"].n_unique(), open_users, expired, campaign_file)


def log_frame(ledger: Ledger, minor_units: int | None = None) -> tuple[pl.DataFrame, int, int]:
    """The log, the number of users that were left out, and the number of rows that expired.

    Amounts are in units of currency, each of as many minor units as its budget has unless `minor_units` is given. A
    column that a budget sums is in the log by its name; what a budget counts follows from the actions.

    Users with an open decision are left out with all their rows: a trajectory without its last step would look as if
    its user had left.
    """
    waiting = ledger.open_users()
    budgets = _budget_columns(ledger.balances(), minor_units)
    columns: dict[str, list[Any]] = defaultdict(list)
    features: dict[str, dict[int, Any]] = defaultdict(dict)
    rows, after = 0, 0
    while batch := ledger.decided(after, _ROWS):
        after = batch[-1].decision
        for one in batch:
            if one.user in waiting:
                continue
            for name, value in _row(one, budgets).items():
                columns[name].append(value)
            for name, value in json.loads(one.features).items():
                features[name][rows] = value
            rows += 1
    if not rows:
        raise LedgerError("no user in the ledger has outcomes for all decisions; there is nothing to export yet")
    clash = set(features) & (set(columns) if any(columns[_HOLDOUT]) else set(columns) - {_HOLDOUT})
    if clash:
        raise LedgerError(f"feature {min(clash)!r} has the name of a column of the log; rename the feature")
    columns["user"] = _users(columns["user"])
    unwritten = {"expired"} if any(columns[_HOLDOUT]) else {"expired", _HOLDOUT}
    series = [pl.Series(name, values) for name, values in columns.items() if name not in unwritten]
    series += [_feature(name, values, rows) for name, values in features.items()]
    return pl.DataFrame(series).sort("user", "step"), len(waiting), sum(columns["expired"])


class _BudgetColumn(NamedTuple):
    """A budget and the column of the log that it sums; None where it counts actions."""

    name: str
    column: str | None
    minor_units: int


def _budget_columns(balances: Sequence[Balance], minor_units: int | None) -> list[_BudgetColumn]:
    """Budgets with their columns. Where none sums the cost, the first without a stated measure does."""
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
        if budget.column is not None:
            # Budgets that count in some rows only may share a column; whichever was charged has the amount.
            row[budget.column] = max(row.get(budget.column, 0.0), one.spent.get(budget.name, 0) / budget.minor_units)
    if all(budget.column != _COST for budget in budgets):  # a log needs a cost: the first amount stands for it
        row[_COST] = next((row[budget.column] for budget in budgets if budget.column is not None), 0.0)
    row["price"] = prices[0] if prices else None
    for place, budget in enumerate(budgets[1:], start=1):
        row[f"{_PRICE_OF}{budget.name}"] = prices[place] if place < len(prices) else None
    row["plan"] = one.plan
    row[_HOLDOUT] = not prices  # users of the control group follow no price
    row["expired"] = one.status is Status.EXPIRED
    return row


def _users(users: list[str]) -> list[Any]:
    """Integers where all ids are, so that they sort as numbers."""
    return [int(user) for user in users] if all(_INTEGER.fullmatch(user) for user in users) else users


def _feature(name: str, values: dict[int, Any], rows: int) -> pl.Series:
    """A column of the type that its values have in common: boolean, integer, float, or else text."""
    column = [values.get(row) for row in range(rows)]
    kinds = {type(value) for value in column if value is not None}
    if kinds <= {bool}:
        return pl.Series(name, column, dtype=pl.Boolean)
    if kinds <= {int, float}:
        integer = kinds == {int} and all(-(2**63) <= value < 2**63 for value in column if value is not None)
        return pl.Series(name, column, dtype=pl.Int64 if integer else pl.Float64, strict=False)
    return pl.Series(
        name, [value if value is None or isinstance(value, str) else json.dumps(value) for value in column]
    )

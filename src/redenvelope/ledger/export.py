"""The decisions of a campaign as a log: what was decided, how probably, at what price, and what came of it."""

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
_PRICE_OF, _COST = "price of ", "cost"
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Exported:
    """What was written."""

    rows: int
    users: int
    open_users: int
    """Left out: a decision of theirs has no outcome yet."""
    expired: int
    """Rows without an outcome: nothing was earned and nothing spent."""
    campaign_file: Path | None
    """Says beside the log which columns are no features; None where another one was there."""


def export_log(ledger: Ledger, out: Path, minor_units: int | None = None) -> Exported:
    """Write the log to a parquet file, and beside it a campaign.toml where there is none."""
    frame, open_users, expired = log_frame(ledger, minor_units)
    ignored = ["price", "plan", *(name for name in frame.columns if name.startswith(_PRICE_OF))]
    with replacing(out) as file:
        frame.write_parquet(file)
    beside = out.parent / "campaign.toml"
    with writing(beside):
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.write("# price and plan say how a row was decided; they are no features of the user\n")
                file.write(f"ignore = {json.dumps(ignored, ensure_ascii=False)}\n")
        except FileExistsError:
            return Exported(len(frame), frame["user"].n_unique(), open_users, expired, None)
    return Exported(len(frame), frame["user"].n_unique(), open_users, expired, beside)


def log_frame(ledger: Ledger, minor_units: int | None = None) -> tuple[pl.DataFrame, int, int]:
    """The log, the number of users that were left out, and that of rows that expired.

    Amounts are in units, of which budgets know what they are unless `minor_units` says otherwise. What budgets sum are
    columns by its name; what they count follows from the actions.

    A user of whom a decision is still open is left out whole: without its last step a trajectory would look as if its
    user had left.
    """
    waiting = {row[0] for row in ledger.query("SELECT DISTINCT user_id FROM decisions WHERE status = 'open'")}
    budgets = _measured(ledger.balances(), minor_units)
    columns: dict[str, list[Any]] = defaultdict(list)
    features: dict[str, dict[int, Any]] = defaultdict(dict)
    rows, after = 0, 0
    while batch := ledger.decided(after, _ROWS):
        after = batch[-1].decision
        for one in batch:
            if one.user in waiting:
                continue
            for name, value in _own(one, budgets).items():
                columns[name].append(value)
            for name, value in json.loads(one.features).items():
                features[name][rows] = value
            rows += 1
    if not rows:
        raise LedgerError("the ledger holds no user whose decisions all have outcomes; nothing to export yet")
    clash = set(features) & set(columns)
    if clash:
        raise LedgerError(f"a feature is called {min(clash)!r}, as a column of the log is; rename it")
    columns["user"] = _users(columns["user"])
    series = [pl.Series(name, values) for name, values in columns.items() if name != "expired"]
    series += [_feature(name, values, rows) for name, values in features.items()]
    return pl.DataFrame(series).sort("user", "step"), len(waiting), sum(columns["expired"])


class _Summed(NamedTuple):
    """A budget, and the column of the log that it sums; None where it counts actions."""

    name: str
    column: str | None
    minor_units: int


def _measured(balances: Sequence[Balance], minor_units: int | None) -> list[_Summed]:
    """Budgets with their columns. The cost is a budget's that sums it; else the first's of which nobody said what it
    sums."""
    columns = [None if one.measure == COUNTED else one.measure for one in balances]
    if _COST not in columns:
        unsaid = next((place for place, one in enumerate(balances) if one.measure == one.budget), None)
        columns = [_COST if place == unsaid else column for place, column in enumerate(columns)]
    return [
        _Summed(one.budget, column, minor_units or one.minor_units)
        for one, column in zip(balances, columns, strict=True)
    ]


def _own(one: Decided, budgets: Sequence[_Summed]) -> dict[str, Any]:
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
            # Budgets of some rows only may share a column: whichever was charged has its amount.
            row[budget.column] = max(row.get(budget.column, 0.0), one.spent.get(budget.name, 0) / budget.minor_units)
    if all(budget.column != _COST for budget in budgets):  # a log has one: what is paid first stands for it
        row[_COST] = next((row[budget.column] for budget in budgets if budget.column is not None), 0.0)
    row["price"] = prices[0] if prices else None
    for place, budget in enumerate(budgets[1:], start=1):
        row[f"{_PRICE_OF}{budget.name}"] = prices[place] if place < len(prices) else None
    row["plan"] = one.plan
    row["expired"] = one.status is Status.EXPIRED
    return row


def _users(users: list[str]) -> list[Any]:
    """As integers where all are: so they were, most probably, and so they are in order."""
    return [int(user) for user in users] if all(_INTEGER.fullmatch(user) for user in users) else users


def _feature(name: str, values: dict[int, Any], rows: int) -> pl.Series:
    """A column with the type that its values have in common: truths, numbers, or else text."""
    column = [values.get(row) for row in range(rows)]
    kinds = {type(value) for value in column if value is not None}
    if kinds <= {bool}:
        return pl.Series(name, column, dtype=pl.Boolean)
    if kinds <= {int, float}:
        whole = kinds == {int} and all(-(2**63) <= value < 2**63 for value in column if value is not None)
        return pl.Series(name, column, dtype=pl.Int64 if whole else pl.Float64, strict=False)
    return pl.Series(
        name, [value if value is None or isinstance(value, str) else json.dumps(value) for value in column]
    )

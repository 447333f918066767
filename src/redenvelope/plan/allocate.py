"""Decisions for a table of any size: read, decided and written in parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redenvelope.errors import UsageError
from redenvelope.files import require_writable, same_file
from redenvelope.log.columns import ColumnMap
from redenvelope.log.eligible import ELIGIBLE
from redenvelope.log.findings import Finding
from redenvelope.log.relative import dates_of
from redenvelope.plan.decisions import expected_column
from redenvelope.plan.plan import Plan
from redenvelope.plan.spool import Spool
from redenvelope.plan.users_table import UsersTable, check_users, past_table

__all__ = ["AllocationSummary", "allocate_file", "needed_columns"]


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
    expected_costs: dict[str, float] = field(default_factory=dict)
    """Of several budgets, by their names; the first is `expected_cost`."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "decisions": self.users,
            "expected_cost": self.expected_cost,
            "expected_reward": self.expected_reward,
            **({"expected_costs": self.expected_costs} if self.expected_costs else {}),
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
    """Decide for every row of a table; memory grows with its length by a few bytes a row, which tell users apart.

    `columns` names the table's own columns for user and step; without, they may have the names of the log. `history`
    is a table of the users' earlier steps, held in memory, where the plan decides by them.
    """
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"{out}: decisions are written as .parquet or .csv; choose one of the two endings")
    for given in (users, history):
        if given is not None and same_file(out, given):
            raise UsageError(f"{out}: is the table that is read; choose another name for the decisions")
    rows, cost, reward = 0, 0.0, 0.0
    costs = dict.fromkeys(plan.policy.several_budgets, 0.0)
    counts: dict[str, int] = {}
    found: dict[tuple[str, str | None], Finding] = {}
    require_writable(out)
    past = None if history is None or not plan.needs_history else past_table(history, plan.columns)
    table = UsersTable(users, plan.columns, columns)
    check_users(table, plan.policy.encoder)
    with Spool(out) as spool:
        for part in table.parts(needed_columns(plan)):
            decisions, findings = plan.allocate(part, seed, past)
            for finding in findings:
                inside = tuple(row + rows for row in finding.rows)
                found.setdefault((finding.rule, finding.column), replace(finding, rows=inside))
            rows += len(decisions)
            cost += float(decisions["expected_cost"].sum())
            for name in costs:
                costs[name] += float(decisions[expected_column(name)].sum())
            reward += float(decisions["expected_reward"].sum())
            for label, count in decisions["action"].value_counts().iter_rows():
                counts[str(label)] = counts.get(str(label), 0) + count
            spool.add(decisions)
        if not rows:
            raise UsageError(f"{users}: no users to decide for")
        spool.finish()
    means = {name: total / rows for name, total in costs.items()}
    shown = dict(sorted(counts.items()))
    return AllocationSummary(rows, cost / rows, reward / rows, shown, tuple(found.values()), means)


def needed_columns(plan: Plan) -> frozenset[str]:
    """The columns that decisions are made from."""
    encoder = plan.policy.encoder
    features = [number.name for number in encoder.numbers] + [category.name for category in encoder.categories]
    dates = [name for feature in features for name in dates_of(feature)]
    return frozenset({"user", "step", ELIGIBLE, *features, *dates})

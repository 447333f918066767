"""A plan: the policy, its price, the frontier around it, the ladder behind it, and the certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from redenvelope.campaign.costs import cost_columns
from redenvelope.errors import UsageError
from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.findings import Finding
from redenvelope.log.formats.dataframes import to_polars
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.plan.certificate import BudgetFigure, Certificate
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.money import Money, Totals, totals
from redenvelope.plan.record import FitRecord, Source
from redenvelope.wording import counted, html_block, number

if TYPE_CHECKING:
    from redenvelope.plan.decide import Explanation
    from redenvelope.plan.policy import DeployedPolicy


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The result of `fit`, and the content of a plan folder."""

    policy: DeployedPolicy
    certificate: Certificate
    frontier: pl.DataFrame
    """For each `budget` by name, with the others held: dual, cost and reward with bounds (off-policy), and the model's
    own cost and reward, by rising dual."""
    ladder: Ladder
    """Moments of the check users at every price, from which another budget can be certified."""
    record: FitRecord
    """How the plan was made."""

    @property
    def catalogue(self) -> ActionCatalogue:
        """The actions by name, sorted by mean logged cost."""
        return self.policy.catalogue

    @property
    def dual(self) -> float:
        """Shadow price of the first budget: the reward that one more unit buys."""
        return self.certificate.dual

    def __repr__(self) -> str:
        return "\n".join(plan_lines(self))

    def _repr_html_(self) -> str:
        return plan_table(self)

    def allocate(self, users: Any, seed: int = 0, history: Any = None) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
        """Decide for a table of users at their steps (`user`, `step` and the features), in any dataframe.

        Columns may have the names of the plan's log. A user's decision depends only on the user, the step and the seed,
        not on who else is in the table. A plan that `needs_history` takes the users' earlier steps in `history`:
        `user`, `step`, `action`, `reward`, `cost`.
        """
        from redenvelope.plan.decide import decide_frame

        past = None if history is None else self._named(to_polars(history, "the history"), tuple(ROLES))
        table = to_polars(users, "the table of users")
        named = self._named(table, ("user", "step", "eligible"))
        decisions, findings = decide_frame(self, named, seed, past)
        return self.in_own_names(decisions, dict(zip(table.columns, named.columns, strict=True))), findings

    def in_own_names(self, decisions: pl.DataFrame, renamed: Mapping[str, str]) -> pl.DataFrame:
        """Decisions with the column names of the table of users (`renamed` maps these to roles), and with the log's
        names for the action and its propensity."""
        names = {role: self.columns.name_of(role) for role in ("action", "propensity")}
        names |= {role: name for name, role in renamed.items()}
        there = set(decisions.columns)
        return decisions.rename({role: name for role, name in names.items() if role in there and name not in there})

    def _named(self, table: pl.DataFrame, roles: tuple[str, ...]) -> pl.DataFrame:
        """A table with the columns that have the names of the plan's log renamed to their roles."""
        names = {self.columns.name_of(role): role for role in roles}
        renames = {name: role for name, role in names.items() if name in table.columns and role not in table.columns}
        return table.rename(renames)

    def evaluate(self, log: Any, confidence: float = 0.95, all_users: bool = False) -> dict[str, Any]:
        """Whether a log contradicts the certificate, and estimates by every estimator; see `redenvelope.evaluate_plan`.

        `log` is a `Log`, a path or any dataframe, read as the plan's own log was.
        """
        if not isinstance(log, Log):
            from redenvelope.log.read import as_log

            log = as_log(log, self.columns)
        content: dict[str, Any] = door("evaluate_plan")(self, log, confidence, all_users)
        return content

    def reprice(
        self,
        *,
        budget: float | Mapping[str, float] | None = None,
        target_reward: float | None = None,
        audience: int | None = None,
        confidence: float | None = None,
        for_all_prices: bool = False,
    ) -> Plan:
        """The plan for another budget or target, in seconds and without the log, with its own certificate.

        With several budgets, `budget` maps names to numbers; budgets not named stay as they are. With `for_all_prices`
        the bounds hold simultaneously for all budgets, so you may choose among budgets by their certificates.
        """
        from redenvelope.plan.reprice import reprice

        return reprice(
            self.with_money(self.record.money.told(None, audience, None)),
            budget=budget,
            target_reward=target_reward,
            audience=audience,
            confidence=confidence,
            for_all_prices=for_all_prices,
        )

    def profit_budget(self, value_per_reward: float) -> float:
        """The budget per user at which the last unit of money spent earns one unit of money; pass it to `reprice`."""
        from redenvelope.plan.reprice import profit_budget

        return profit_budget(self, value_per_reward)

    def explain(self, row: Mapping[str, Any], history: Any = None, seed: int = 0) -> Explanation:
        """Why a user gets what they get: `row` has `user`, `step` and the features, as in `Decider.decide`.

        Print the result, or take its `as_dict()`.
        """
        from redenvelope.plan.decide import Decider, require_row

        require_row(row)
        own = {self.columns.name_of(role): role for role in ("user", "step", "eligible")}
        named = {own.get(name, name) if own.get(name) not in row else name: value for name, value in row.items()}
        return Decider(self, seed).explain(named, history=history)

    def power(self, **choices: Any) -> dict[str, Any]:
        """The number of users that an A/B test of the plan needs; keywords are `share`, `confidence`, `power`, `gain`
        and `users_per_week`."""
        from redenvelope.plan.rollout_check import users_for_test

        return users_for_test(self, **choices)

    def compare(
        self,
        outcomes: Any,
        others: Any = None,
        *,
        arm: str | None = None,
        first: str | None = None,
        columns: Mapping[str, Any] | ColumnMap | None = None,
        share: float | None = None,
        confidence: float = 0.95,
        value_per_reward: float | None = None,
    ) -> dict[str, Any]:
        """Compare the outcomes of the plan's users with those of others, and with what the plan promised.

        Give two tables (paths or dataframes with user, reward and cost), or one with both arms: `arm` names the column
        that tells them apart and `first` its value for the plan's; without, the column `holdout` marks the control
        group.
        """
        from redenvelope.plan.rollout_check import compare_outcomes

        value = self.record.money.told(None, None, value_per_reward).value_per_reward
        named = None if columns is None else ColumnMap.of(columns)
        return compare_outcomes(self, (outcomes, others), arm, first, named, confidence, share, value)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the report: one self-contained page that needs no network."""
        written: Path = door("write_report")(self, Path(path))
        return written

    def plot_frontier(self) -> Any:
        """The frontier as an altair chart."""
        return door("plot_frontier")(self)

    def along(self, budget: str) -> pl.DataFrame:
        """The frontier along one of the budgets, the others held, by rising price."""
        return self.frontier.filter(pl.col("budget") == budget).drop("budget")

    def of(self, budget: BudgetFigure) -> Plan:
        """The plan restricted to one of its budgets, for charts and tables of that budget."""
        own = self.frontier.filter(pl.col("budget") == budget.name)
        return replace(self, certificate=self.certificate.of(budget), frontier=own)

    @property
    def needs_history(self) -> bool:
        """Whether decisions depend on the user's earlier steps."""
        constraint = self.policy.constraint
        return self.policy.encoder.history is not None or (constraint is not None and constraint.counts)

    def recoded(self, log: Log) -> Log:
        """A log with its actions numbered as in this plan; other mean costs may have given them another order."""
        if log.catalogue.labels == self.catalogue.labels:
            return log
        places = {label: place for place, label in enumerate(self.catalogue.labels)}
        lookup = np.array([places[label] for label in log.catalogue.labels], dtype=np.int32)
        eligible = None
        if log.eligible is not None:  # the log has no eligibility lists for actions that it never contains
            eligible = np.ones((len(log), len(self.catalogue)), dtype=bool)
            eligible[:, lookup] = log.eligible
        return replace(log, action=lookup[log.action], catalogue=self.catalogue, eligible=eligible)

    def with_source(self, log: str, columns: ColumnMap, date: str) -> Plan:
        """The plan with a record of its log: the name, the column names, and the date."""
        return replace(self, record=replace(self.record, source=Source.of(log, date, columns)))

    def with_money(self, asked: Money) -> Plan:
        """The plan with another currency, audience and value of reward."""
        return replace(self, record=replace(self.record, money=asked))

    @property
    def totals(self) -> Totals | None:
        """Expected cost and reward over all users who follow the plan; None if their number is unknown."""
        return totals(self.certificate, self.money)

    @property
    def money(self) -> Money:
        """Currency, value of reward, and the number of users who follow the plan: the control group is not counted."""
        own = self.record.money
        if own.audience is None or not self.policy.holdout:
            return own
        return replace(own, audience=max(1, round(own.audience * (1 - self.policy.holdout))))

    @property
    def columns(self) -> ColumnMap:
        """The column names of the plan's log, as far as known; other tables of the same users may have them too."""
        own = self.record.source.column_map() if self.record.source is not None else ColumnMap()
        return replace(own, costs=cost_columns(self.record.budgets))

    def save(self, folder: str | Path, extra: dict[str, bytes] | None = None) -> Path:
        """Write the plan to a folder with its report, or with `extra` files in place of the report."""
        from redenvelope.plan.storage import save_plan

        if extra is not None:
            return save_plan(self, Path(folder), extra)
        door("save_with_report")(self, Path(folder))
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Plan:
        """Open a plan folder; no code in it is run."""
        from redenvelope.plan.storage import load_plan

        if not isinstance(folder, str | PathLike):
            raise UsageError(f"a plan is opened by the path of its folder, not by {folder!r:.60}")
        return load_plan(Path(folder))


# Opening a plan and deciding by it must load no training or drawing code. Evaluation and drawing import the plan, not
# the other way round, so they are imported by name here when needed.
_PROVIDERS = {
    "evaluate_plan": "redenvelope.fitting.evaluate",
    "save_with_report": "redenvelope.report.page",
    "write_report": "redenvelope.report.page",
    "plot_frontier": "redenvelope.report.drawing",
}


def door(name: str) -> Callable[..., Any]:
    """Import the function of this name."""
    found: Callable[..., Any] = getattr(import_module(_PROVIDERS[name]), name)
    return found


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """A summary in a few lines: budget, status, cost, reward, price, and what the plan was made from."""
    rows = _rows(plan)
    width = max(len(name) for name, _ in rows)
    first = f"Plan ({plan.certificate.status}) {_wanted(plan)}"
    return (first, *(f"  {name:<{width}}  {value}" for name, value in rows))


def plan_table(plan: Plan) -> str:
    """The same summary as a fragment of HTML."""
    title = f"Plan ({plan.certificate.status}) {_wanted(plan)}"
    return html_block(title, [plan.certificate.sentence()], _rows(plan))


def _wanted(plan: Plan) -> str:
    given = plan.certificate
    if given.target_reward is not None:
        return f"for a reward of {number(given.target_reward)} per user"
    if len(given.budgets) > 1:
        named = ", ".join(f"{each.name} {number(each.budget)}" for each in given.budgets)
        return f"for budgets per user of {named}"
    return f"for a budget of {number(given.budget)} per user"


def _rows(plan: Plan) -> tuple[tuple[str, str], ...]:
    given, encoder = plan.certificate, plan.policy.encoder
    features = len(encoder.numbers) + len(encoder.categories)
    source = plan.record.source
    origin = f", from {source.log}" if source is not None and source.log else ""
    sure = f"{given.confidence:.0%} sure"
    several = len(given.budgets) > 1
    costs = [
        (
            f"costs, {each.name}" if several else "costs",
            f"{number(each.cost.estimate)} per user, at most {number(each.cost.upper)} ({sure}); as logged "
            f"{number(each.logged)}",
        )
        for each in given.budgets
    ]
    prices = ", ".join(number(each.dual) + (f" ({each.name})" if several else "") for each in given.budgets)
    return (
        *costs,
        (
            "earns",
            f"{number(given.reward.estimate)} per user, at least {number(given.reward.lower)} ({sure}); as logged "
            f"{number(given.logged['reward'])}",
        ),
        ("price", f"{prices} of reward for one more unit of budget; {given.method}"),
        (
            "knows",
            f"{len(plan.catalogue)} actions, {counted(plan.policy.specification.steps, 'step')}, "
            f"{counted(features, 'feature')}; checked on {given.users:,} users{origin}",
        ),
    )

"""A campaign: its columns, budgets, rules and exploration, from Python or from a campaign.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from redenvelope.campaign.mistakes import Mistake, refuse
from redenvelope.campaign.records import Budget, Rule, budget_mistakes, rule_mistakes
from redenvelope.errors import UsageError
from redenvelope.log.columns import ColumnMap, campaign_content

if TYPE_CHECKING:
    from redenvelope.log.log import Log

__all__ = ["MOST_BUDGETS", "MOST_RULES", "MOST_STEPS_BACK", "Campaign", "steps_back"]

MOST_BUDGETS = 8
"""Each is a cost that models predict and trees carry."""

MOST_RULES = 100

MOST_STEPS_BACK = 256
"""That all rules together look back: each is carried along every branch of a tree."""

Record = TypeVar("Record", Budget, Rule)


@dataclass(frozen=True)
class Campaign:
    """All that is said of a campaign beside its log.

    For example:

        Campaign(
            budgets=(Budget("coupons", per_user=4.0),),
            rules=(
                Rule(("10 € coupon",), only_where="tenure_days >= 30"),
                Rule(("5 % off", "10 € coupon"), at_most=2),
            ),
            explore=0.02,
        )
    """

    columns: ColumnMap = field(default_factory=ColumnMap)
    budgets: tuple[Budget, ...] = ()
    rules: tuple[Rule, ...] = ()
    explore: float | None = None
    """Share of decisions that are drawn evenly among what is eligible; None is the usual one."""
    audience: int | None = None
    """Users that the campaign is for; totals are divided by it."""

    def __post_init__(self) -> None:
        refuse([*_explore_mistakes(self.explore), *_audience_mistakes(self.audience), *self._contradictions()])

    @property
    def limits(self) -> tuple[float, ...]:
        """The mean a user that each budget allows, [budgets]."""
        return tuple(budget.limit(self.audience) for budget in self.budgets)

    @classmethod
    def from_toml(cls, path: str | Path) -> Campaign:
        """Read a campaign file; all of its mistakes are said at once."""
        content = campaign_content(path)
        mistakes: list[Mistake] = []
        columns = ColumnMap()
        try:
            columns = ColumnMap.from_content(content)
        except UsageError as error:
            mistakes.append(Mistake("", str(error)))
        budgets = _tables(content, "budget", budget_mistakes, Budget, mistakes)
        rules = _tables(content, "rule", rule_mistakes, Rule, mistakes)
        explore, audience = _explore(content.get("explore"), mistakes), content.get("audience")
        mistakes += _audience_mistakes(audience)
        if mistakes:  # what is left is held against each other as far as it can be read
            mistakes += _twice(budgets)
        refuse(mistakes, str(path))
        try:
            return cls(columns, budgets, rules, explore, audience)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def check(self, log: Log) -> None:
        """Hold the campaign against a log; all mistakes are said at once."""
        from redenvelope.campaign.check import mistakes_in

        refuse(mistakes_in(self, log))

    def _contradictions(self) -> list[Mistake]:
        found = _twice(self.budgets)
        if len(self.budgets) > MOST_BUDGETS:
            message = f"{len(self.budgets)} budgets are more than {MOST_BUDGETS}; join some of them"
            found.append(Mistake(f"[[budget]] {MOST_BUDGETS + 1}", message))
        if len(self.rules) > MOST_RULES:
            message = f"{len(self.rules)} rules are more than {MOST_RULES}; join some of them"
            found.append(Mistake(f"[[rule]] {MOST_RULES + 1}", message))
        if steps_back(self.rules) > MOST_STEPS_BACK:
            message = f"the rules look back {steps_back(self.rules)} steps in all, at most {MOST_STEPS_BACK} can be"
            found.append(Mistake("[[rule]]", f"{message}; shorten within and cooldown"))
        for number, budget in enumerate(self.budgets, start=1):
            if budget.total is not None and (budget.audience or self.audience) is None:
                message = "a total needs the number of users it is for; add audience = 50000, or give per_user"
                found.append(Mistake(f"[[budget]] {number}, total", message))
        return found


def steps_back(rules: tuple[Rule, ...]) -> int:
    """How many steps rules look back, all together."""
    return sum(rule.window - 1 for rule in rules if rule.window is not None)


def _twice(budgets: tuple[Budget, ...]) -> list[Mistake]:
    """Budgets with one name, and budgets of one and the same cost."""
    found, names, costs = [], dict[str, int](), dict[Any, int]()
    for number, budget in enumerate(budgets, start=1):
        first = names.setdefault(budget.name, number)
        if first != number:
            message = f"{budget.name!r} is the name of [[budget]] {first} as well; every budget needs its own"
            found.append(Mistake(f"[[budget]] {number}, name", message))
        counted = None if budget.count is None else frozenset(budget.count)
        when = None if budget.steps is None else frozenset(budget.steps)
        first = costs.setdefault((budget.summed, counted, when, budget.where), number)
        if first != number:
            message = f"limits the same cost as [[budget]] {first}: the smaller one alone would count; keep that one"
            found.append(Mistake(f"[[budget]] {number}", message))
    return found


def _tables(
    content: Mapping[str, Any],
    name: str,
    mistaken: Callable[[Mapping[str, Any]], list[Mistake]],
    record: type[Record],
    mistakes: list[Mistake],
) -> tuple[Record, ...]:
    """The records of `[[name]]`, those that make sense."""
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.append(Mistake(name, f"must be tables; write [[{name}]] above the entries of each"))
        return ()
    records = []
    for number, table in enumerate(tables, start=1):
        found = mistaken(table)
        mistakes += [mistake.inside(f"[[{name}]] {number}") for mistake in found]
        if not found:
            records.append(record(**table))
    return tuple(records)


def _explore(table: Any, mistakes: list[Mistake]) -> float | None:
    if table is None:
        return None
    if not isinstance(table, dict) or set(table) - {"share"} or "share" not in table:
        mistakes.append(Mistake("[explore]", "has one entry, share; write share = 0.02"))
        return None
    found = [mistake.inside("[explore]") for mistake in _explore_mistakes(table["share"])]
    mistakes += found
    return None if found else float(table["share"])


def _explore_mistakes(share: Any) -> list[Mistake]:
    if share is None or (isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1):
        return []
    return [Mistake("share", f"is a share from 0 to 1, such as 0.02, not {share!r}")]


def _audience_mistakes(audience: Any) -> list[Mistake]:
    if audience is None or (isinstance(audience, int) and not isinstance(audience, bool) and audience >= 1):
        return []
    return [Mistake("audience", f"is a whole number of users, at least 1, not {audience!r}")]

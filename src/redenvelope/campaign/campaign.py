"""A campaign: its columns, budgets, rules, exploration and control group, from Python or from a campaign.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.campaign.conditions import Condition, column_uses, holds
from redenvelope.campaign.costs import cost_columns
from redenvelope.campaign.items import Catalogue
from redenvelope.campaign.records import (
    Budget,
    Mistake,
    NewAction,
    Rule,
    budget_mistakes,
    new_mistakes,
    refuse,
    rule_mistakes,
)
from redenvelope.campaign.rows import STEP, TableRows, places_of
from redenvelope.errors import LogError, UsageError
from redenvelope.log.cleaning.number_formats import is_number
from redenvelope.log.columns import HOLDOUT, ColumnMap, campaign_content, nearest_name, unknown_entries
from redenvelope.log.log import Log

MOST_BUDGETS = 8
"""Each budget is one more cost that models predict and trees carry."""

MOST_RULES = 100

MOST_STEPS_BACK = 256
"""Limit for all rules together, because each step back is carried along every branch of a tree."""

Record = TypeVar("Record", Budget, Rule, NewAction)


@dataclass(frozen=True)
class Campaign:
    """The specification of a campaign, besides its log.

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
    """Share of decisions drawn uniformly from the eligible actions; None is the default."""
    audience: int | None = None
    """Number of users in the campaign, by which totals are divided."""
    items: Catalogue | None = None
    """Attributes of the actions."""
    holdout: float = 0.0
    """Share of users, by the hash of their ids, in the control group, which gets the cheapest eligible action."""
    new: tuple[NewAction, ...] = ()
    """Actions to introduce: the plan gives them to a small share at random, until the log has them."""

    def __post_init__(self) -> None:
        for name, record in (("budgets", Budget), ("rules", Rule)):
            given = getattr(self, name)
            if not isinstance(given, list | tuple) or not all(isinstance(each, record) for each in given):
                raise UsageError(f"{name} must be a list of {record.__name__}, not {given!r:.60}")
            object.__setattr__(self, name, tuple(given))
        own = (*_explore_mistakes(self.explore), *_holdout_mistakes(self.holdout), *_audience_mistakes(self.audience))
        refuse([*own, *self._contradictions()])

    @property
    def limits(self) -> tuple[float, ...]:
        """Mean cost per user that each budget allows, [budgets]."""
        return tuple(budget.limit(self.audience) for budget in self.budgets)

    @classmethod
    def of(cls, given: Campaign | str | Path | Mapping[str, Any] | None) -> Campaign:
        """From a campaign, the path of a campaign file, or a mapping with the entries of such a file."""
        if given is None or isinstance(given, Campaign):
            return given or cls()
        if not isinstance(given, str | Path | Mapping):
            raise UsageError(
                f"the campaign must be a Campaign, the path of a campaign.toml or a dict of its entries, not {given!r}"
            )
        return cls.from_toml(given)

    @classmethod
    def from_toml(cls, source: str | Path | Mapping[str, Any]) -> Campaign:
        """Read a campaign file, or the same entries from a mapping; all mistakes are reported at once."""
        content = campaign_content(source)
        path = "campaign" if isinstance(source, Mapping) else str(source)
        mistakes = [Mistake("", unknown) for unknown in unknown_entries(content)]
        columns = ColumnMap()
        try:
            columns = ColumnMap.from_content(content)
        except UsageError as error:
            mistakes.append(Mistake("", str(error)))
        budgets = _tables(content, "budget", budget_mistakes, Budget, mistakes)
        rules = _tables(content, "rule", rule_mistakes, Rule, mistakes)
        new = _tables(content, "new", new_mistakes, NewAction, mistakes)
        explore, audience = _explore(content.get("explore"), mistakes), content.get("audience")
        holdout = content.get("holdout", 0.0)
        mistakes += [*_holdout_mistakes(holdout), *_audience_mistakes(audience)]
        items = _items(content.get("items"), Path(path).parent, mistakes)
        if mistakes:  # report contradictions too, as far as the entries can be read
            mistakes += _twice(budgets)
        refuse(mistakes, path)
        try:
            return cls(columns, budgets, rules, explore, audience, items, float(holdout), new)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def reading(self, given: ColumnMap) -> Campaign:
        """The campaign with further column names and reading options; budgets may name the cost as the table does."""
        names = given.names or self.columns.names
        own = names.get("cost", "cost")
        budgets = tuple(replace(each, column="cost") if each.column == own else each for each in self.budgets)
        mapping = replace(
            self.columns, names=names, ignored=self.columns.ignored | given.ignored, costs=cost_columns(budgets)
        )
        dates = None if given.dates == ColumnMap().dates else given.dates
        mapping = mapping.reading(given.time, given.episode, given.missing_cost, dates, given.cluster)
        return replace(self, columns=mapping, budgets=budgets)

    def check(self, log: Log) -> None:
        """Check the campaign against a log; all mistakes are reported at once."""

        refuse(mistakes_in(self, log))

    def _contradictions(self) -> list[Mistake]:
        found = _twice(self.budgets)
        if len(self.budgets) > MOST_BUDGETS:
            message = f"{len(self.budgets)} budgets; at most {MOST_BUDGETS} are allowed, merge some of them"
            found.append(Mistake(f"[[budget]] {MOST_BUDGETS + 1}", message))
        if len(self.rules) > MOST_RULES:
            message = f"{len(self.rules)} rules; at most {MOST_RULES} are allowed, merge some of them"
            found.append(Mistake(f"[[rule]] {MOST_RULES + 1}", message))
        if steps_back(self.rules) > MOST_STEPS_BACK:
            message = (
                f"the rules look back {steps_back(self.rules)} steps in all; at most {MOST_STEPS_BACK} are allowed"
            )
            found.append(Mistake("[[rule]]", f"{message}, shorten within and cooldown"))
        labels = [each.action for each in self.new]
        if len(set(labels)) < len(labels):
            found.append(Mistake("[[new]]", "introduces an action twice; name each once"))
        for number, budget in enumerate(self.budgets, start=1):
            if budget.total is not None and (budget.audience or self.audience) is None:
                message = "a total also needs the number of users; add audience = 50000, or use per_user"
                found.append(Mistake(f"[[budget]] {number}, total", message))
        return found


def steps_back(rules: tuple[Rule, ...]) -> int:
    """Number of steps that all rules together look back."""
    return sum(rule.window - 1 for rule in rules if rule.window is not None)


def _twice(budgets: tuple[Budget, ...]) -> list[Mistake]:
    """Find budgets with the same name, and budgets of the same cost."""
    found, names, costs = [], dict[str, int](), dict[Any, int]()
    for number, budget in enumerate(budgets, start=1):
        first = names.setdefault(budget.name, number)
        if first != number:
            message = f"{budget.name!r} is also the name of [[budget]] {first}; every budget needs its own name"
            found.append(Mistake(f"[[budget]] {number}, name", message))
        counted = None if budget.count is None else frozenset(budget.count)
        when = None if budget.steps is None else frozenset(budget.steps)
        first = costs.setdefault((budget.summed, counted, when, budget.where), number)
        if first != number:
            message = f"limits the same cost as [[budget]] {first}; keep the smaller one, which alone would bind"
            found.append(Mistake(f"[[budget]] {number}", message))
    return found


def _tables(
    content: Mapping[str, Any],
    name: str,
    mistaken: Callable[[Mapping[str, Any]], list[Mistake]],
    record: type[Record],
    mistakes: list[Mistake],
) -> tuple[Record, ...]:
    """The valid records of `[[name]]`."""
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.append(Mistake(name, f"must be a list of tables; write [[{name}]] above the entries of each"))
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


def _items(table: Any, folder: Path, mistakes: list[Mistake]) -> Catalogue | None:
    """The item catalogue named in a campaign file, relative to that file."""
    if table is None:
        return None
    named = isinstance(table, dict) and all(isinstance(value, str) for value in table.values())
    if not named or set(table) - {"file", "action"} or "file" not in table:
        message = 'has the entry file and may have action, the column of labels; write file = "items.parquet"'
        mistakes.append(Mistake("[items]", message))
        return None
    try:
        return Catalogue.read(folder / table["file"], table.get("action", "action"))
    except (UsageError, LogError) as error:
        mistakes.append(Mistake("[items]", str(error)))
        return None


def _explore_mistakes(share: Any) -> list[Mistake]:
    if share is None or (isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1):
        return []
    return [Mistake("share", f"must be a share from 0 to 1, such as 0.02, not {share!r}")]


def _holdout_mistakes(share: Any) -> list[Mistake]:
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < 1:
        return []
    return [Mistake("holdout", f"must be a share of users from 0 to below 1, such as 0.05, not {share!r}")]


def _audience_mistakes(audience: Any) -> list[Mistake]:
    if audience is None or (isinstance(audience, int) and not isinstance(audience, bool) and audience >= 1):
        return []
    return [Mistake("audience", f"must be a whole number of users, at least 1, not {audience!r}")]


# Checking a campaign against a log: all names that it uses, and whether its rules leave every user an eligible action.


def mistakes_in(campaign: Campaign, log: Log) -> list[Mistake]:
    """Everything in the campaign that does not fit the log, in the order of the campaign file."""
    found: list[Mistake] = []
    for number, budget in enumerate(campaign.budgets, start=1):
        place = f"[[budget]] {number}"
        found += [mistake.inside(place) for mistake in _unknown_actions(budget.count or (), "count", log)]
        if budget.summed is not None and budget.summed not in (*log.outcome_names, *log.features.numeric_names):
            found.append(Mistake(f"{place}, column", _no_column(budget.summed, log)))
        first, last = log.first_step, log.first_step + log.campaign_steps - 1
        odd = [step for step in budget.steps or () if not first <= step <= last]
        if odd:
            message = f"the campaign has no step {odd[0]}; its steps run from {first} to {last}"
            found.append(Mistake(f"{place}, steps", message))
        found += [mistake.inside(place) for mistake in _odd_columns(budget.condition, "where", log)]
    for number, rule in enumerate(campaign.rules, start=1):
        place = f"[[rule]] {number}"
        found += [mistake.inside(place) for mistake in _unknown_actions(rule.actions, "actions", log)]
        found += [mistake.inside(place) for mistake in _odd_columns(rule.condition, "only_where", log)]
    for number, new in enumerate(campaign.new, start=1):
        place = f"[[new]] {number}"
        found += [mistake.inside(place) for mistake in _unknown_actions((new.like,), "like", log)]
        if log.catalogue.numeric and not is_number(pl.Series([new.action])).all():
            message = f"the actions of the log are numbers, and {new.action!r} is none; name it by a number"
            found.append(Mistake(f"{place}, action", message))
    if campaign.holdout and HOLDOUT in log.features.names:
        message = f"the log has a feature {HOLDOUT!r}, the name that decisions mark the control group with; rename it"
        found.append(Mistake(HOLDOUT, message))
    return found or [*_nothing_left(campaign.rules, log)]


def _unknown_actions(labels: tuple[str, ...], entry: str, log: Log) -> Iterator[Mistake]:
    known = log.catalogue.labels
    for label, place in zip(labels, places_of(labels, known, log.catalogue.numeric), strict=True):
        if place is None:
            near = nearest_name(label, known)
            shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
            meant = f"; did you mean {near!r}?" if near else "."
            yield Mistake(entry, f"the log has no action {label!r}{meant} The actions are {shown}")


def _odd_columns(condition: Condition | None, entry: str, log: Log) -> Iterator[Mistake]:
    """Columns in a condition that the log lacks or has with another type."""
    seen: set[str] = set()
    for name, kind in () if condition is None else column_uses(condition):
        is_text = name in log.features.category_names
        is_number = name == STEP or name in log.features.numeric_names
        if not is_text and not is_number:
            if name not in seen:
                yield Mistake(entry, _no_column(name, log))
        elif kind == "number" and is_text:
            labels = log.features.labels[log.features.category_names.index(name)]
            shown = labels[0] if labels else "x"
            yield Mistake(entry, f"{name!r} holds texts; compare it with a text in quotes, such as {name} == '{shown}'")
        elif kind == "text" and is_number:
            yield Mistake(entry, f"{name!r} holds numbers; compare it with a number, without quotes")
        seen.add(name)


def _no_column(name: str, log: Log) -> str:
    for finding in log.findings:
        if finding.column == name and finding.rule.startswith("feature_"):
            return f"the column {name!r} was left out of the features ({finding.rule}), so no rule can use it"
    near = nearest_name(name, log.features.names)
    meant = (
        f"did you mean {near!r}?"
        if near
        else "conditions use features of the log, which are " + (", ".join(log.features.names[:20]) or "none")
    )
    return f"the log has no column {name!r}; {meant}"


def _nothing_left(rules: tuple[Rule, ...], log: Log) -> Iterator[Mistake]:
    """Rows of the log without any eligible action, and caps that may all be used up."""
    allowed = np.ones((len(log), len(log.catalogue)), dtype=bool)
    rows = TableRows(log.features, log.step)
    for rule in rules:
        if rule.condition is not None:
            allowed[:, _places(rule, log)] &= holds(rule.condition, rows)[:, None]
    nothing = np.flatnonzero(~allowed.any(axis=1))
    if len(nothing):
        user, step = log.users[int(log.user_of_row[nothing[0]])], log.step[nothing[0]]
        yield Mistake(
            "[[rule]]",
            f"the rules leave no eligible action in {len(nothing):,} of {len(log):,} logged rows (the first: user "
            f"{user!r}, step {step}); keep one action, such as sending nothing, free of only_where",
        )
        return
    caps = [rule for rule in rules if rule.most is not None and _may_bind(rule, log.campaign_steps)]
    capped = _capped(caps, log)
    exposed = int((~(allowed & ~capped).any(axis=1)).sum())
    if exposed and _runs_out(caps, log):
        yield Mistake(
            "[[rule]]",
            f"in {exposed:,} of {len(log):,} logged rows every action is capped, so that a user who has used up the "
            "caps has no eligible action; keep one action, such as sending nothing, free of at_most and cooldown",
        )


def _may_bind(rule: Rule, steps: int) -> bool:
    """Whether a rule that counts can forbid anything."""
    assert rule.most is not None
    return rule.most < min(rule.window or steps, steps)


def _runs_out(caps: list[Rule], log: Log) -> bool:
    """Whether all caps can be used up before the last step; caps on different actions are used up in turn."""
    together = sum(len(rule.actions) for rule in caps) > int(_capped(caps, log).sum())
    used = [rule.most or 0 for rule in caps]
    return (max(used) if together else sum(used)) < log.campaign_steps


def _capped(caps: list[Rule], log: Log) -> NDArray[np.bool_]:
    """Which actions are subject to a rule that counts, [actions]."""
    capped = np.zeros(len(log.catalogue), dtype=bool)
    for rule in caps:
        capped[_places(rule, log)] = True
    return capped


def _places(rule: Rule, log: Log) -> list[int]:
    found = places_of(rule.actions, log.catalogue.labels, log.catalogue.numeric)
    return [place for place in found if place is not None]

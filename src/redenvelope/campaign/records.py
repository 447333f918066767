"""Budgets, rules and new actions of a campaign, as checked records, and the mistakes that each can contain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from redenvelope.campaign.conditions import Condition, parse_condition
from redenvelope.errors import UsageError
from redenvelope.wording import counted

LONGEST_WINDOW = 64
"""Most steps that a rule may look back, because the actions in them are carried along every branch of a tree."""

_LARGEST = 1e15


@dataclass(frozen=True)
class Budget:
    """A limit on the mean cost per user over the campaign, by a column or by how often some actions are given."""

    name: str
    column: str | None = None
    """The column that is summed; "cost" if neither this nor `count` is given."""
    count: tuple[str, ...] | None = None
    """Actions that cost 1 each, instead of a column."""
    per_user: float | None = None
    """Mean cost per user."""
    total: float | None = None
    """Total cost over all users of the audience."""
    audience: int | None = None
    """Number of users that the total is for."""
    steps: tuple[int, ...] | None = None
    """The steps in which costs count; None is all."""
    where: str | None = None
    """A condition: costs count only in rows where it is true (see conditions.py)."""

    def __post_init__(self) -> None:
        refuse(budget_mistakes({field.name: getattr(self, field.name) for field in fields(self)}))
        # Lists are accepted too.
        if self.count is not None:
            object.__setattr__(self, "count", tuple(str(label) for label in self.count))
        if self.steps is not None:
            object.__setattr__(self, "steps", tuple(self.steps))

    @property
    def summed(self) -> str | None:
        """The column that is summed; None if actions are counted."""
        return None if self.count is not None else self.column or "cost"

    @cached_property
    def condition(self) -> Condition | None:
        """The condition under which costs count; None if they always do."""
        return None if self.where is None else parse_condition(self.where)

    def limit(self, audience: int | None = None) -> float:
        """The mean cost per user; `audience` is the campaign's, for totals without their own."""
        if self.per_user is not None:
            return float(self.per_user)
        users = self.audience or audience
        assert self.total is not None, "one of the two is given"
        if users is None:
            raise UsageError(f"the budget {self.name!r} is a total, which also needs `audience`, the number of users")
        return float(self.total) / users


@dataclass(frozen=True)
class Rule:
    """A restriction on where or how often some actions may be given; one of `only_where`, `at_most` and `cooldown`."""

    actions: tuple[str, ...]
    """Labels, as in the log."""
    only_where: str | None = None
    """A condition: the actions may be given only where it is true (see conditions.py)."""
    at_most: int | None = None
    """How often a user may get any of the actions."""
    within: int | None = None
    """Number of consecutive steps that `at_most` applies to; None is the whole campaign."""
    cooldown: int | None = None
    """Number of steps without any of the actions after one of them."""

    def __post_init__(self) -> None:
        refuse(rule_mistakes({field.name: getattr(self, field.name) for field in fields(self)}))
        object.__setattr__(self, "actions", tuple(str(label) for label in self.actions))

    @cached_property
    def condition(self) -> Condition | None:
        """The condition under which the actions may be given; None if the rule counts."""
        return None if self.only_where is None else parse_condition(self.only_where)

    @property
    def most(self) -> int | None:
        """How often the actions may be given within the window; None if the rule is a condition."""
        return 1 if self.cooldown is not None else self.at_most

    @property
    def window(self) -> int | None:
        """Number of consecutive steps, this one included, in which actions are counted; None is the whole campaign."""
        return self.cooldown + 1 if self.cooldown is not None else self.within

    def sentence(self) -> str:
        """The rule in words."""
        named = ", ".join(self.actions)
        if self.only_where is not None:
            return f"{named}: only where {self.only_where}"
        if self.cooldown is not None:
            return f"{named}: after one of them, none for {counted(self.cooldown, 'step')}"
        often = {0: "never", 1: "at most once", 2: "at most twice"}.get(
            self.at_most or 0, f"at most {self.at_most} times"
        )
        return f"{named}: {often} " + (f"in any {self.within} steps" if self.within is not None else "in the campaign")


@dataclass(frozen=True)
class NewAction:
    """An action to introduce: given to a small share at random, until the log has it and it is one like any other."""

    action: str
    """Its label, as in the catalogue of items and in the next log."""
    like: str
    """An action of the log whose rules it follows, and as which it counts in a user's history until the next fit."""
    at_most: float
    """The most that it can cost, such as its face value."""
    share: float | None = None
    """Share of the decisions that give it; by default as many as may add 3 % to the cost, and at most 2 %."""

    def __post_init__(self) -> None:
        refuse(new_mistakes({field.name: getattr(self, field.name) for field in fields(self)}))
        for name in ("action", "like"):
            object.__setattr__(self, name, str(getattr(self, name)))


def new_mistakes(given: Mapping[str, Any]) -> list[Mistake]:
    """The mistakes in the entries of a new action."""
    entries = {name: value for name, value in given.items() if value is not None}
    found = _unknown(entries, NewAction)
    for name, kind in (("action", "its label"), ("like", "an action of the log that it is treated as")):
        if not _is_label(entries.get(name)):
            found.append(Mistake(name, f'must be {kind}, such as {name} = "10 € coupon"'))
    if not _is_amount(entries.get("at_most")):
        found.append(Mistake("at_most", "must be the most that it can cost, such as at_most = 15.0"))
    share = entries.get("share", 0.01)
    if not _is_amount(share) or not 0 < share <= 0.5:
        found.append(Mistake("share", f"must be a share of the decisions, above 0 and at most 0.5, not {share!r}"))
    return found


def budget_mistakes(given: Mapping[str, Any]) -> list[Mistake]:
    """The mistakes in the entries of a budget."""
    entries = {name: value for name, value in given.items() if value is not None}
    found = [*_unknown(entries, Budget), *_budget_types(entries)]
    if "name" not in entries:
        found.append(Mistake("name", 'a budget needs a name; add one, such as name = "coupons"'))
    if "column" in entries and "count" in entries:
        found.append(Mistake("count", "a budget sums a column or counts actions; keep one of column and count"))
    if "per_user" in entries and "total" in entries:
        found.append(Mistake("total", "per_user and total exclude each other; keep one of the two"))
    if "per_user" not in entries and "total" not in entries:
        found.append(Mistake("", "the budget has no amount; add per_user = 4.0, or total with an audience"))
    if "audience" in entries and "total" not in entries:
        found.append(Mistake("audience", "an audience belongs to a total; per_user needs none"))
    return found


def rule_mistakes(given: Mapping[str, Any]) -> list[Mistake]:
    """The mistakes in the entries of a rule."""
    entries = {name: value for name, value in given.items() if value is not None}
    found = _unknown(entries, Rule)
    if "actions" in entries:
        found += _labels(entries["actions"], "actions")
    else:
        found.append(Mistake("actions", 'a rule needs the actions it is about; add actions = ["10 € coupon"]'))
    kinds = [name for name in ("only_where", "at_most", "cooldown") if name in entries]
    if not kinds:
        found.append(Mistake("", "the rule has no restriction; add only_where, at_most or cooldown"))
    for further in kinds[1:]:
        found.append(Mistake(further, f"the rule already has {kinds[0]}; write a separate rule for {further}"))
    if "only_where" in entries:
        found += _condition(entries["only_where"], "only_where")
    if "at_most" in entries:
        found += _whole(entries["at_most"], "at_most", 0)
    if "cooldown" in entries:
        found += _whole(entries["cooldown"], "cooldown", 1, LONGEST_WINDOW - 1)
    if "within" in entries:
        found += _whole(entries["within"], "within", 2, LONGEST_WINDOW)
        if "at_most" not in entries:
            found.append(Mistake("within", "within belongs to at_most; add at_most, or leave it out"))
    return found


def _budget_types(entries: Mapping[str, Any]) -> Iterator[Mistake]:
    for name in ("name", "column"):
        if name in entries and (not isinstance(entries[name], str) or not entries[name].strip()):
            yield Mistake(name, f"must be a non-empty text, not {entries[name]!r}")
    if "count" in entries:
        yield from _labels(entries["count"], "count")
    for name in ("per_user", "total"):
        if name in entries and not _is_amount(entries[name]):
            yield Mistake(name, f"must be a number of at least 0, not {entries[name]!r}")
    if "audience" in entries:
        yield from _whole(entries["audience"], "audience", 1, 10**12)
    if "steps" in entries:
        steps = entries["steps"]
        whole = isinstance(steps, list | tuple) and all(_is_whole(step) for step in steps)
        if not whole or not steps:
            yield Mistake("steps", f"must be a list of step numbers, such as steps = [0], not {steps!r}")
        elif len(set(steps)) < len(steps):
            yield Mistake("steps", "names a step twice; name each once")
    if "where" in entries:
        yield from _condition(entries["where"], "where")


def _unknown(entries: Mapping[str, Any], record: type) -> list[Mistake]:
    known = [field.name for field in fields(record)]
    odd = [name for name in entries if name not in known]
    return [Mistake(name, f"is not an entry; the entries are {', '.join(known)}") for name in odd]


def _labels(given: Any, name: str) -> Iterator[Mistake]:
    if not isinstance(given, list | tuple) or not given or not all(_is_label(label) for label in given):
        yield Mistake(name, f'must be a list of action labels, such as {name} = ["push"], not {given!r}')
    elif len(set(given)) < len(given):
        yield Mistake(name, "names an action twice; name each once")


def _condition(given: Any, name: str) -> Iterator[Mistake]:
    if not isinstance(given, str):
        yield Mistake(name, f'must be a condition in quotes, such as {name} = "tenure_days >= 30", not {given!r}')
        return
    try:
        parse_condition(given)
    except UsageError as error:
        yield Mistake(name, f"cannot be read: {error} (in {given[:200]!r})")


def _whole(given: Any, name: str, least: int, most: int = 10**9) -> Iterator[Mistake]:
    if not _is_whole(given) or not least <= given <= most:
        above = "" if most == 10**9 else f" and at most {most:,}"
        yield Mistake(name, f"must be a whole number of at least {least}{above}, not {given!r}")


def _is_label(value: Any) -> bool:
    """Whether a value is a label; numeric labels may be written as numbers."""
    return bool(value) if isinstance(value, str) else isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 <= value <= _LARGEST


# Mistakes in a campaign are collected, each with its place and a remedy.


class Mistake(NamedTuple):
    """One invalid entry."""

    place: str
    """Where in the campaign, such as `[[rule]] 2, only_where`."""
    message: str
    """What is wrong, and what to do."""

    def inside(self, table: str) -> Mistake:
        """The same mistake, placed inside a table such as `[[rule]] 2`."""
        return Mistake(f"{table}, {self.place}" if self.place else table, self.message)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


def refuse(mistakes: Iterable[Mistake], where: str = "") -> None:
    """Raise a UsageError with all mistakes, if there are any; `where` names the file."""
    found = [str(mistake) for mistake in mistakes]
    if not found:
        return
    before = f"{where}: " if where else ""
    if len(found) == 1:
        raise UsageError(before + found[0])
    raise UsageError(f"{before}{len(found)} mistakes\n" + "\n".join(f"  {line}" for line in found))

"""A campaign held against a log: every name it uses, and whether its rules leave every user something."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.conditions import Condition, holds
from redenvelope.campaign.mistakes import Mistake
from redenvelope.campaign.records import Rule
from redenvelope.campaign.rows import STEP, TableRows, places_of
from redenvelope.log.columns import nearest_name
from redenvelope.log.log import Log

__all__ = ["mistakes_in"]


def mistakes_in(campaign: Campaign, log: Log) -> list[Mistake]:
    """Everything that does not fit the log, in the order of the campaign file."""
    found: list[Mistake] = []
    for number, budget in enumerate(campaign.budgets, start=1):
        place = f"[[budget]] {number}"
        found += [mistake.inside(place) for mistake in _unknown_actions(budget.count or (), "count", log)]
        if budget.summed is not None and budget.summed not in (*log.outcome_names, *log.features.numeric_names):
            found.append(Mistake(f"{place}, column", _no_column(budget.summed, log)))
        first, last = log.first_step, log.first_step + log.campaign_steps - 1
        odd = [step for step in budget.steps or () if not first <= step <= last]
        if odd:
            message = f"the campaign has no step {odd[0]}; its steps go from {first} to {last}"
            found.append(Mistake(f"{place}, steps", message))
        found += [mistake.inside(place) for mistake in _odd_columns(budget.condition, "where", log)]
    for number, rule in enumerate(campaign.rules, start=1):
        place = f"[[rule]] {number}"
        found += [mistake.inside(place) for mistake in _unknown_actions(rule.actions, "actions", log)]
        found += [mistake.inside(place) for mistake in _odd_columns(rule.condition, "only_where", log)]
    return found or [*_nothing_left(campaign.rules, log)]


def _unknown_actions(labels: tuple[str, ...], entry: str, log: Log) -> Iterator[Mistake]:
    known = log.catalogue.labels
    for label, place in zip(labels, places_of(labels, known, log.catalogue.numeric), strict=True):
        if place is None:
            near = nearest_name(label, known)
            shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
            meant = f"; is {near!r} meant?" if near else ""
            yield Mistake(entry, f"the log has no action {label!r}{meant} It has {shown}")


def _odd_columns(condition: Condition | None, entry: str, log: Log) -> Iterator[Mistake]:
    """Columns that a condition looks at and the log lacks, or has in another kind."""
    seen: set[str] = set()
    for name, kind in () if condition is None else condition.uses():
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
            return f"the column {name!r} was left out of the features ({finding.rule}), so that no rule can ask for it"
    near = nearest_name(name, log.features.names)
    meant = (
        f"is {near!r} meant?"
        if near
        else "rules ask for features of the log, which are " + (", ".join(log.features.names[:20]) or "none")
    )
    return f"the log has no column {name!r}; {meant}"


def _nothing_left(rules: tuple[Rule, ...], log: Log) -> Iterator[Mistake]:
    """Rows of the log in which nothing may be given, and caps that may run out all at once."""
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
            f"the rules leave nothing to give in {len(nothing):,} of {len(log):,} logged rows (the first: user "
            f"{user!r}, step {step}); leave one action, such as sending nothing, without only_where",
        )
        return
    caps = [rule for rule in rules if rule.most is not None and _may_bind(rule, log.campaign_steps)]
    capped = _capped(caps, log)
    exposed = int((~(allowed & ~capped).any(axis=1)).sum())
    if exposed and _runs_out(caps, log):
        yield Mistake(
            "[[rule]]",
            f"in {exposed:,} of {len(log):,} logged rows every action is under a rule that counts, so that a user "
            "who used them up is left with nothing; leave one action, such as sending nothing, without at_most and "
            "cooldown",
        )


def _may_bind(rule: Rule, steps: int) -> bool:
    """Whether a rule that counts can ever forbid anything."""
    assert rule.most is not None
    return rule.most < min(rule.window or steps, steps)


def _runs_out(caps: list[Rule], log: Log) -> bool:
    """Whether all caps can be used up before the last step: those of actions apart take one step after the other."""
    together = sum(len(rule.actions) for rule in caps) > int(_capped(caps, log).sum())
    used = [rule.most or 0 for rule in caps]
    return (max(used) if together else sum(used)) < log.campaign_steps


def _capped(caps: list[Rule], log: Log) -> NDArray[np.bool_]:
    """Which actions stand under a rule that counts, [actions]."""
    capped = np.zeros(len(log.catalogue), dtype=bool)
    for rule in caps:
        capped[_places(rule, log)] = True
    return capped


def _places(rule: Rule, log: Log) -> list[int]:
    found = places_of(rule.actions, log.catalogue.labels, log.catalogue.numeric)
    return [place for place in found if place is not None]

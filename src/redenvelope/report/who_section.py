"""Who gets what, in words and pictures, and where the money goes step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from redenvelope.plan.plan import Plan
from redenvelope.plan.record import StepShares
from redenvelope.plan.who import Group, StepGroups
from redenvelope.report.allocation_charts import cost_by_step_chart, feature_chart, step_chart
from redenvelope.report.drawing import action_colours
from redenvelope.report.markup import figure, number, section, table, text
from redenvelope.report.spoken import Spoken

__all__ = ["FEATURES_FIRST", "action_name", "given_words", "group_words", "shares_bar", "who_section"]

FEATURES_FIRST = 2
"""Features whose pictures come first; the others are for whoever checks."""
_CERTAIN, _MOSTLY, _SOME, _SEEN = 0.95, 0.6, 0.2, 0.005


def who_section(plan: Plan) -> str:
    """Groups in words, shares by step, and the cost of each step."""
    given, words = plan.record.shares, Spoken.of(plan)
    if given is None:
        told = (
            "The price was changed after the plan was made, without the log: who gets what was not looked at again. "
            "Making the plan anew with redenvelope fit looks."
        )
        return section("who", "Who gets what", f"<p>{text(told)}</p>")
    spent = _spent(plan, given.by_step)
    charts = [step_chart(given.by_step, given.actions), cost_by_step_chart(spent, words)]
    charts += [feature_chart(feature, given.actions, words) for feature in given.by_feature[:FEATURES_FIRST]]
    introduction = (
        f"What the plan gives to {number(given.users)} of the users who checked it, in the situations they were in. "
        "The groups are the few that say most about it; the plan itself looks at every user by themselves."
    )
    return section(
        "who",
        "Who gets what",
        f"<p>{text(introduction)}</p>",
        _steps(given.groups, given.actions, words),
        f'<div class="pair">{"".join(figure(chart) for chart in charts)}</div>',
        _spend(spent, words),
    )


def _steps(steps: Sequence[StepGroups], labels: Sequence[str], words: Spoken) -> str:
    """The first step in the open, the others to be opened."""
    if not steps:
        return ""
    first, *others = steps
    later = "".join(_step(step, labels, words) for step in others)
    more = f"<details><summary>The later steps, in the same way</summary>{later}</details>" if others else ""
    return _legend(labels) + _step(first, labels, words) + more


def _legend(labels: Sequence[str]) -> str:
    keys = "".join(
        f'<li><span class="key" style="background:{colour}"></span>{text(action_name(label))}</li>'
        for label, colour in zip(labels, action_colours(len(labels)), strict=True)
    )
    return f'<ul class="legend" aria-label="Colours of the actions, from the cheapest">{keys}</ul>'


def _step(step: StepGroups, labels: Sequence[str], words: Spoken) -> str:
    rows = "".join(
        f"<li><p>{_group(group, step.rows, labels, words)}</p>{shares_bar(group.probabilities, labels)}</li>"
        for group in step.groups
    )
    explained = (
        f" These groups explain {step.explained:.0%} of the differences in what users get." if step.explained else ""
    )
    return f'<h3>Step {step.step}</h3><ul class="groups">{rows}</ul><p class="note">{text(explained.strip())}</p>'


def _group(group: Group, rows: int, labels: Sequence[str], words: Spoken) -> str:
    share = f"{group.rows / rows:.0%}"
    return (
        f"<strong>{text(group_words(group))}</strong> ({text(share)} of users) "
        f"{given_words(group.probabilities, labels)}, for {text(words.cost(group.cost))} each."
    )


def group_words(group: Group) -> str:
    """Who is in a group."""
    if not group.conditions:
        return "Everybody"
    parts = [f"{condition.feature} {condition.words}" for condition in group.conditions]
    return "Users whose " + " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def given_words(probabilities: Sequence[float], labels: Sequence[str]) -> str:
    """What users get, in words; markup."""
    order = sorted(range(len(labels)), key=lambda place: -probabilities[place])
    first, share = action_name(labels[order[0]]), probabilities[order[0]]
    if share >= _CERTAIN:
        return f"get <b>{text(first)}</b>"
    if share >= _MOSTLY:
        return f"mostly get <b>{text(first)}</b> ({share:.0%})"
    named = [place for place in order[:3] if probabilities[place] >= _SOME] or order[:1]
    parts = [f"<b>{text(action_name(labels[place]))}</b> ({probabilities[place]:.0%})" for place in named]
    return "get " + " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def action_name(label: str) -> str:
    """An action as it is spoken of: numbers alone would be taken for figures."""
    return f"“{label}”" if label.replace(".", "", 1).replace("-", "", 1).isdigit() else label


def shares_bar(probabilities: Sequence[float], labels: Sequence[str]) -> str:
    """Shares of the actions as one bar."""
    spoken = ", ".join(
        f"{action_name(label)} {share:.0%}"
        for label, share in zip(labels, probabilities, strict=True)
        if share >= _SEEN
    )
    parts = "".join(
        f'<span style="width:{100 * share:.2f}%;background:{colour}"></span>'
        for share, colour in zip(probabilities, action_colours(len(labels)), strict=True)
        if share >= _SEEN
    )
    return f'<div class="bar" role="img" aria-label="{text(spoken)}">{parts}</div>'


def _spent(plan: Plan, steps: Sequence[StepShares]) -> tuple[StepShares, ...]:
    """The steps with costs that add up to the plan's: the decisions were looked at in situations as logged, which the
    plan would change, so that their sum is another."""
    total = sum(entry.cost for entry in steps)
    factor = plan.certificate.cost.estimate / total if total > 0 else 1.0
    return tuple(replace(entry, cost=factor * entry.cost) for entry in steps)


def _spend(steps: Sequence[StepShares], words: Spoken) -> str:
    """What each step costs, beside today."""
    total = sum(entry.cost for entry in steps)
    has_today = all(entry.logged_cost is not None for entry in steps)
    rows = [
        (
            f"step {entry.step}",
            words.cost(entry.cost),
            *([words.total_cost(entry.cost)] if words.audience is not None else []),
            f"{entry.cost / total:.0%}" if total > 0 else "–",
            *([words.cost(entry.logged_cost or 0.0)] if has_today else []),
        )
        for entry in steps
    ]
    heads = (
        "step",
        "cost a user",
        *(["in all"] if words.audience is not None else []),
        "share",
        *(["today, a user"] if has_today else []),
    )
    return table("Where the money goes: the plan’s cost, divided as the model expects it", heads, rows)

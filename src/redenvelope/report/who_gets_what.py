"""Who gets what, in words and charts, where the money goes step by step, and examples of users with the reasons."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from redenvelope.plan.plan import Plan
from redenvelope.plan.record import Alternative, Example, FeatureShares, Group, StepGroups, StepShares
from redenvelope.report.drawing import ACCENT, HALF, LABEL, MUTED, action_colours, draw, short_labels, values
from redenvelope.report.markup import Chart, Spoken, figure, section, table, text
from redenvelope.wording import number, signed

FEATURES_FIRST = 2
"""Features whose charts are in the first half; the others are for reviewers."""
_CERTAIN, _MOSTLY, _SOME, _SEEN = 0.95, 0.6, 0.2, 0.005


def who_section(plan: Plan) -> str:
    """Groups in words, shares of actions by step, and the cost of each step."""
    given, words = plan.record.shares, Spoken.of(plan)
    if given is None:
        told = (
            "The price was changed after the plan was made, without the log: who gets what was not computed again. "
            "Fit the plan again with redenvelope fit to see it."
        )
        return section("who", "Who gets what", f"<p>{text(told)}</p>")
    spent = _spent(plan, given.by_step)
    charts = [step_chart(given.by_step, given.actions), cost_by_step_chart(spent, words)]
    charts += [feature_chart(feature, given.actions, words) for feature in given.by_feature[:FEATURES_FIRST]]
    introduction = (
        f"What the plan gives to {number(given.users)} of the users who checked it, in the situations they were in. "
        "The groups are the few that explain most of it; the plan itself decides for every user separately."
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
    """The first step, and the later ones collapsed."""
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
    """The conditions of a group in words."""
    if not group.conditions:
        return "Everybody"
    parts = [f"{condition.feature} {condition.words}" for condition in group.conditions]
    return "Users whose " + " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def given_words(probabilities: Sequence[float], labels: Sequence[str]) -> str:
    """The actions that users get, in words, as markup."""
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
    """An action's name in a sentence; numbers are quoted, so that they are not taken for figures."""
    return f"“{label}”" if label.replace(".", "", 1).replace("-", "", 1).isdigit() else label


def shares_bar(probabilities: Sequence[float], labels: Sequence[str]) -> str:
    """Shares of the actions as a stacked bar."""
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
    """The steps with costs scaled to the plan's cost. Their own sum differs, because they were computed in logged
    situations, which the plan would change."""
    total = sum(entry.cost for entry in steps)
    factor = plan.certificate.cost.estimate / total if total > 0 else 1.0
    return tuple(replace(entry, cost=factor * entry.cost) for entry in steps)


def _spend(steps: Sequence[StepShares], words: Spoken) -> str:
    """The cost of each step, next to today's."""
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
        "cost per user",
        *(["in all"] if words.audience is not None else []),
        "share",
        *(["today, per user"] if has_today else []),
    )
    return table("Where the money goes: the plan’s cost, divided as the model expects it", heads, rows)


# A few users with all alternatives, and the reasons against these.


_NAMES = "ABCDEF"
_ALMOST = 0.15
"""An action drawn with at least this probability besides the best one has nearly the same value."""


def examples_section(plan: Plan) -> str:
    """Examples of users, if the plan has any."""
    given = plan.record.shares
    if given is None or not given.examples:
        return ""
    words, price = Spoken.of(plan), _price(plan)
    introduction = (
        f"Users of step {given.examples[0].step} who are typical of their group. Rewards and costs are what the "
        f"model expects {_looking(plan)}; what an action is worth is its reward less its cost at the plan’s "
        + (
            "prices: what the budgets earn with other users."
            if price is None
            else f"price, {number(price, 3)} reward for {words.unit if words.currency else 'a unit of cost'}: what "
            "that money earns with other users."
        )
    )
    shown = "".join(
        _example(example, _NAMES[place], price, words) for place, example in enumerate(given.examples[: len(_NAMES)])
    )
    return section(
        "examples", "Some users, and why", f"<p>{text(introduction)}</p>", f'<div class="examples">{shown}</div>'
    )


def _looking(plan: Plan) -> str:
    depth, own = plan.record.planner.depth, plan.policy.specification
    if own.leaf_values or depth >= own.steps > 1:
        return "from that step to the end of the campaign"
    return "of that step" if depth <= 1 else f"from that step on, {depth} steps ahead"


def _price(plan: Plan) -> float | None:
    """The price that most users follow, if two are mixed; None with several budgets, which have a price each."""
    pricing = plan.policy.pricing
    if pricing.budgets > 1:
        return None
    return float(pricing.prices[max(range(len(pricing.shares)), key=lambda row: pricing.shares[row])][0])


def _example(example: Example, name: str, price: float | None, words: Spoken) -> str:
    known = ", ".join(f"{feature} {value}" for feature, value in example.known)
    best = max(part.worth for part in example.alternatives)
    rows = [
        (
            action_name(part.action),
            f"{part.probability:.0%}",
            number(part.reward, 3),
            words.cost(part.cost),
            "not allowed" if math.isinf(part.worth) else "best" if part.worth == best else signed(part.worth - best, 2),
        )
        for part in example.alternatives
    ]
    chances = [part.probability for part in example.alternatives]
    labels = [part.action for part in example.alternatives]
    why = "" if price is None else " ".join(reasons_why(example, price, words))
    return (
        f'<article class="example" aria-labelledby="example-{name}"><h3 id="example-{name}">User {name}</h3>'
        f'<p class="note">{text(known)}</p>'
        f"<p>Would {given_words(chances, labels)}. {text(why)}</p>"
        + table(f"User {name}: every action", ("action", "chance", "reward", "cost", "worth, beside the best"), rows)
        + "</article>"
    )


def reasons_why(example: Example, price: float, words: Spoken) -> Iterator[str]:
    """Why the user does not get the best dearer action, nor the best cheaper one."""
    allowed = [part for part in example.alternatives if not math.isinf(part.worth)]
    chosen = max(allowed, key=lambda part: part.probability)
    others = [part for part in allowed if part is not chosen]
    alike = [part for part in others if part.probability >= _ALMOST]
    if alike:
        named = " and ".join(action_name(part.action) for part in (chosen, *alike))
        yield f"{named} are worth almost the same, so the choice is left to chance."
    if math.isinf(price):
        yield f"The plan saves whatever it can, and {action_name(chosen.action)} leads to the least cost."
        return
    if price == 0:
        yield f"Money is no limit here: {action_name(chosen.action)} earns most."
        return
    apart = [part for part in others if part not in alike]
    dearer = [part for part in apart if part.cost > chosen.cost]
    cheaper = [part for part in apart if part.cost <= chosen.cost]
    if dearer:
        yield _not_dearer(max(dearer, key=lambda part: part.worth), chosen, price, words)
    if cheaper:
        yield _not_cheaper(max(cheaper, key=lambda part: part.worth), chosen, price, words)


def _not_dearer(other: Alternative, chosen: Alternative, price: float, words: Spoken) -> str:
    name, cost, gain = action_name(other.action), other.cost - chosen.cost, other.reward - chosen.reward
    if gain <= 0:
        return f"{name} would cost {words.cost(cost)} more and earn no more."
    return (
        f"{name} would earn {number(gain, 2)} more and cost {words.cost(cost)} more; with other users that money "
        f"earns {number(price * cost, 2)}."
    )


def _not_cheaper(other: Alternative, chosen: Alternative, price: float, words: Spoken) -> str:
    name, saved, lost = action_name(other.action), chosen.cost - other.cost, chosen.reward - other.reward
    if lost <= 0:
        return f"{name} would save {words.cost(saved)} and earn as much: the two are worth the same."
    return (
        f"{name} would save {words.cost(saved)} and earn {number(lost, 2)} less; with other users the saving earns "
        f"only {number(price * saved, 2)}."
    )


# Charts of shares of the actions, by step and by feature, and of costs.


def step_chart(steps: Sequence[StepShares], labels: Sequence[str]) -> Chart:
    """Mean probability of each action at each step."""
    drawing = _shares([(f"step {entry.step}", entry.probabilities) for entry in steps], labels)
    caption = "Deeper red costs more: bars that change from step to step show how the plan spreads money over time."
    return Chart("Actions by step", caption, drawing)


def feature_chart(given: FeatureShares, labels: Sequence[str], words: Spoken) -> Chart:
    """Mean probability of each action in bins of a feature."""
    most, least = (choose(given.bins, key=lambda part: part.cost) for choose in (max, min))
    caption = (
        f"This feature explains {given.strength:.0%} of the differences in what users get; "
        f"the most is spent on “{most.label}” ({words.cost(most.cost)} per decision), "
        f"the least on “{least.label}” ({words.cost(least.cost)})."
    )
    drawing = _shares([(part.label, part.probabilities) for part in given.bins], labels)
    return Chart(f"By {given.feature}", caption, drawing)


def cost_by_step_chart(steps: Sequence[StepShares], words: Spoken) -> Chart:
    """Expected cost per user at each step, next to today's."""
    import altair as alt

    rows = [
        {
            "step": f"step {entry.step}",
            "whose": whose,
            "cost": cost,
            "note": f"step {entry.step}, {whose}: {words.cost(cost)}",
        }
        for entry in steps
        for whose, cost in (("the plan", entry.cost), ("today", entry.logged_cost))
        if cost is not None
    ]
    names = list(dict.fromkeys(str(row["whose"]) for row in rows))
    drawn = (
        alt.Chart(values(rows))
        .mark_bar()
        .encode(
            y=alt.Y("step:N", title=None, sort=None),
            yOffset=alt.YOffset("whose:N", sort=names),
            x=alt.X("cost:Q", title=words.axis, axis=alt.Axis(tickCount=5)),
            color=alt.Color("whose:N", scale=alt.Scale(domain=names, range=[ACCENT, MUTED][: len(names)])),
            description="note:N",
        )
    )
    total, most = sum(entry.cost for entry in steps), max(steps, key=lambda entry: entry.cost)
    caption = (
        f"The most goes to step {most.step}, {most.cost / total:.0%} of what the model expects to spend."
        if total > 0
        else "Nothing is expected to be spent."
    )
    return Chart("Cost by step", caption, draw(drawn, HALF, 84 + 15 * len(rows) + 6 * len(steps)))


def _shares(groups: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str]) -> str:
    """Stacked bars, one per group."""
    import altair as alt

    shown = short_labels(labels)
    rows = [
        {"group": group, "action": label, "place": place, "share": share, "note": f"{group}: {label} {share:.1%}"}
        for group, shares in groups
        for place, (label, share) in enumerate(zip(labels, shares, strict=True))
    ]
    scale = alt.Scale(domain=list(labels), range=action_colours(len(labels)))
    columns = _columns(shown, [group for group, _ in groups])
    # Only the displayed labels are cut: hovering over the legend shows them in full.
    cut = json.dumps(dict(zip(labels, shown, strict=True)))
    legend = alt.Legend(columns=columns, symbolType="square", labelExpr=f"{cut}[datum.value]")
    drawn = (
        alt.Chart(values(rows))
        .mark_bar(stroke="var(--paper)", strokeWidth=0.75)
        .encode(
            y=alt.Y("group:N", title=None, sort=None),
            x=alt.X(
                "share:Q",
                title="share of decisions",
                stack="zero",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%", tickCount=5),
            ),
            color=alt.Color("action:N", scale=scale, legend=legend),
            order=alt.Order("place:Q"),
            description="note:N",
        )
    )
    rows_of_legend = -(-len(shown) // columns)
    return draw(drawn, HALF, 66 + 18 * rows_of_legend + 30 * len(groups))


def _columns(labels: Sequence[str], groups: Sequence[str]) -> int:
    """The number of legend columns that fit to the right of the groups' names."""
    names, widest = (7 * max(map(len, words), default=1) for words in (groups, labels))
    return max(1, min(6, (HALF - 20 - min(names, LABEL)) // (30 + widest)))

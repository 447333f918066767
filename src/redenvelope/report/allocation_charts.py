"""Who gets what: shares of the actions by step and by feature, and where the money goes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from redenvelope.plan.record import FeatureShares, StepShares
from redenvelope.report.drawing import ACCENT, HALF, LABEL, MUTED, action_colours, draw, short_labels, values
from redenvelope.report.markup import Chart
from redenvelope.report.spoken import Spoken

__all__ = ["cost_by_step_chart", "feature_chart", "step_chart"]


def step_chart(steps: Sequence[StepShares], labels: Sequence[str]) -> Chart:
    """Mean probability of each action at each step."""
    drawing = _shares([(f"step {entry.step}", entry.probabilities) for entry in steps], labels)
    caption = "Deeper red is dearer: bars that change from step to step show how the plan spreads money over time."
    return Chart("Actions by step", caption, drawing)


def feature_chart(given: FeatureShares, labels: Sequence[str], words: Spoken) -> Chart:
    """Mean probability of each action in bins of a feature."""
    most, least = (choose(given.bins, key=lambda part: part.cost) for choose in (max, min))
    caption = (
        f"This feature explains {given.strength:.0%} of the differences in what users get; "
        f"the most is spent on “{most.label}” ({words.cost(most.cost)} a decision), "
        f"the least on “{least.label}” ({words.cost(least.cost)})."
    )
    drawing = _shares([(part.label, part.probabilities) for part in given.bins], labels)
    return Chart(f"By {given.feature}", caption, drawing)


def cost_by_step_chart(steps: Sequence[StepShares], words: Spoken) -> Chart:
    """Expected cost a user at each step, beside today's."""
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
    """Stacked bars, one a group."""
    import altair as alt

    shown = short_labels(labels)
    rows = [
        {
            "group": group,
            "action": label,
            "place": place,
            "share": share,
            "note": f"{group}: {label} {share:.1%}",
        }
        for group, shares in groups
        for place, (label, share) in enumerate(zip(labels, shares, strict=True))
    ]
    scale = alt.Scale(domain=list(labels), range=action_colours(len(labels)))
    columns = _columns(shown, [group for group, _ in groups])
    # Only what is shown is cut: pointing at the legend tells its values in full.
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
    """How many labels of a legend stand side by side, right of the groups' names."""
    names, widest = (7 * max(map(len, words), default=1) for words in (groups, labels))
    return max(1, min(6, (HALF - 20 - min(names, LABEL)) // (30 + widest)))

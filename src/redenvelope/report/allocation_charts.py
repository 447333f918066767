"""Who gets what: shares of the actions by step and by feature, and where the money goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redenvelope.report.drawing import HALF, SECOND, action_colours, draw, finite, short_labels, values
from redenvelope.report.markup import Chart, number

__all__ = ["cost_by_step_chart", "feature_chart", "step_chart"]


def step_chart(steps: Sequence[dict[str, Any]], labels: Sequence[str]) -> Chart | None:
    """Mean probability of each action at each step."""
    groups = [(f"step {entry['step']}", entry.get("probabilities", ())) for entry in steps]
    drawing = _shares(groups, labels)
    if drawing is None:
        return None
    caption = "Deeper red is dearer: bars that change from step to step show how the plan spreads money over time."
    return Chart("Actions by step", caption, drawing)


def feature_chart(entry: dict[str, Any], labels: Sequence[str]) -> Chart | None:
    """Mean probability of each action in bins of a feature."""
    bins = entry.get("bins", ())
    drawing = _shares([(str(part["label"]), part.get("probabilities", ())) for part in bins], labels)
    if drawing is None:
        return None
    costs = [(part["cost"], str(part["label"])) for part in bins if finite(part, "cost")]
    caption = f"This feature explains {entry.get('strength', 0.0):.0%} of the differences in what users get"
    if costs:
        most, least = max(costs), min(costs)
        caption += (
            f"; the most is spent on “{most[1]}” ({number(most[0], 3)} a decision), "
            f"the least on “{least[1]}” ({number(least[0], 3)})"
        )
    return Chart(f"By {entry.get('feature')}", caption + ".", drawing)


def cost_by_step_chart(steps: Sequence[dict[str, Any]]) -> Chart | None:
    """Expected cost a user at each step."""
    import altair as alt

    rows = [
        {
            "step": f"step {entry['step']}",
            "cost": entry["cost"],
            "note": f"step {entry['step']}: {number(entry['cost'])}",
        }
        for entry in steps
        if finite(entry, "cost")
    ]
    if not rows:
        return None
    drawn = (
        alt.Chart(values(rows))
        .mark_bar(color=SECOND)
        .encode(
            y=alt.Y("step:N", title=None, sort=None),
            x=alt.X("cost:Q", title="expected cost a user"),
            description="note:N",
        )
    )
    total, most = sum(row["cost"] for row in rows), max(rows, key=lambda row: row["cost"])
    caption = (
        f"The most goes to {most['step']}, {most['cost'] / total:.0%} of what the model expects to spend."
        if total > 0
        else "Nothing is expected to be spent."
    )
    return Chart("Cost by step", caption, draw(drawn, HALF, 84 + 30 * len(rows)))


def _shares(groups: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str]) -> str | None:
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
        for place, (label, share) in enumerate(zip(labels, shares, strict=False))
    ]
    if not rows:
        return None
    scale = alt.Scale(domain=list(labels), range=action_colours(len(labels)))
    columns = _columns(shown)
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


def _columns(labels: Sequence[str]) -> int:
    """How many labels of a legend stand side by side."""
    widest = 36 + 7 * max(map(len, labels), default=1)
    return max(1, min(6, (HALF - 20) // widest))

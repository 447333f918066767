"""What the log can speak for: actions as logged, and users left after so many steps."""

from __future__ import annotations

from typing import Any

from redenvelope.report.drawing import (
    ACCENT,
    GOLD,
    HALF,
    INK,
    SECOND,
    draw,
    finite,
    layered,
    round_marks,
    short_labels,
    values,
)
from redenvelope.report.markup import Chart, number

__all__ = ["action_chart", "overlap_chart"]


def action_chart(audit: dict[str, Any]) -> Chart | None:
    """Reward against cost of each action, with intervals."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    effects = audit.get("actions", ())
    for effect, shown in zip(effects, short_labels([effect["label"] for effect in effects], 14), strict=True):
        row: dict[str, Any] = {"action": shown}
        for target in ("reward", "cost"):
            row |= {f"{target}_{part}": effect[target].get(part) for part in ("estimate", "lower", "upper")}
        if finite(row, *(name for name in row if name != "action")):
            row["note"] = (
                f"{effect['label']}: cost {number(row['cost_estimate'])}, reward {number(row['reward_estimate'])}"
            )
            rows.append(row)
    if not rows:
        return None
    middle = (min(row["cost_estimate"] for row in rows) + max(row["cost_estimate"] for row in rows)) / 2
    sides = [
        alt.Chart(values([row for row in rows if (row["cost_estimate"] > middle) is right])).mark_text(
            align="right" if right else "left",
            dx=-8 if right else 8,
            dy=-9 if right else 9,
            color=INK,
            fontSize=12,
            aria=False,
        )
        for right in (False, True)  # labels stand inwards, so that none leaves the drawing
    ]
    cost = alt.X("cost_estimate:Q", title="mean cost a decision")
    reward = alt.Y("reward_estimate:Q", title="mean reward a decision", scale=alt.Scale(zero=False))
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_rule(color=SECOND, strokeWidth=1.5, opacity=0.6, aria=False).encode(
            x=cost, y=alt.Y("reward_lower:Q", title="mean reward a decision"), y2="reward_upper:Q"
        ),
        chart.mark_rule(color=SECOND, strokeWidth=1.5, opacity=0.6, aria=False).encode(
            x=alt.X("cost_lower:Q", title="mean cost a decision"), x2="cost_upper:Q", y=reward
        ),
        chart.mark_point(color=SECOND, filled=True, size=60, opacity=1).encode(x=cost, y=reward, description="note:N"),
        *(side.encode(x=cost, y=reward, text="action:N") for side in sides),
    )
    pairs = len(audit.get("reversals", ()))
    caption = (
        f"A point that lies lower than one to its left is money for less: {pairs} such pair{'s' * (pairs != 1)} "
        "beyond chance."
        if pairs
        else "The points should rise to the right, as they do here within chance: dearer is better."
    )
    return Chart("Actions as logged", caption, draw(drawn, HALF, 260))


def overlap_chart(audit: dict[str, Any]) -> Chart | None:
    """Effective number of users after so many steps."""
    import altair as alt

    kinds = {"uniform": "uniform policy", "alone": "fixed, step alone", "greedy": "fixed, all steps"}
    rows = [
        {
            "step": entry["step"],
            "kind": name,
            "users": entry[field],
            "note": f"{name}, {entry['step']} step(s): {number(round(entry[field]))} effective users",
        }
        for entry in audit.get("overlap", ())
        for field, name in kinds.items()
        if finite(entry, "step", field) and entry[field] > 0
    ]
    if not rows:
        return None
    counts = [row["users"] for row in rows]
    marks = round_marks(min(1.0, *counts), 10 * max(counts))
    step = alt.X("step:O", title="steps weighed", axis=alt.Axis(labelAngle=0, grid=False))
    users = alt.Y(
        "users:Q", title="effective users", scale=alt.Scale(type="log"), axis=alt.Axis(format=",~r", values=marks)
    )
    legend = alt.Legend(columns=2)
    colour = alt.Color(
        "kind:N", legend=legend, scale=alt.Scale(domain=list(kinds.values()), range=[SECOND, GOLD, ACCENT])
    )
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_line(strokeWidth=2, aria=False).encode(x=step, y=users, color=colour),
        chart.mark_point(filled=True, size=50, opacity=1).encode(x=step, y=users, color=colour, description="note:N"),
    )
    alive, steps = audit.get("steps_alive"), len(audit["overlap"])
    caption = "Weighing all steps leaves ever fewer users who speak for another policy (logarithmic)"
    if isinstance(alive, int):
        caption += (
            f"; after {alive} of {steps} steps too few to certify a fixed action. A certificate weighs step by step."
            if alive < steps
            else f"; after all {steps} there are still enough to certify."
        )
    else:
        caption += "."
    return Chart("Overlap by step", caption, draw(drawn, HALF, 280))

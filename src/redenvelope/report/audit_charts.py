"""What the log can speak for: actions as logged, and users left after so many steps."""

from __future__ import annotations

from typing import Any

from redenvelope.audit.audit import Audit
from redenvelope.audit.effects import counted
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

_KINDS = ("uniform policy", "fixed, step alone", "fixed, all steps")


def action_chart(audit: Audit) -> Chart | None:
    """Reward against cost of each action, with intervals."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    shortened = short_labels([effect.label for effect in audit.actions], 14)
    for effect, shown in zip(audit.actions, shortened, strict=True):
        row: dict[str, Any] = {}
        for target, mean in (("reward", effect.reward), ("cost", effect.cost)):
            ends = {f"{target}_lower": mean.lower, f"{target}_upper": mean.upper}
            row |= {f"{target}_estimate": mean.estimate} | ends
        if finite(row, *row):  # an action that was never logged has no mean
            note = f"{effect.label}: cost {number(effect.cost.estimate)}, reward {number(effect.reward.estimate)}"
            rows.append(row | {"action": shown, "note": note})
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
    cost = alt.X("cost_estimate:Q", title="mean cost a decision", axis=alt.Axis(tickCount=5))
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
    caption = (
        f"A point that lies lower than one to its left is money for less: {counted(audit.reversals)} beyond chance."
        if audit.reversals
        else "The points should rise to the right, as they do here within chance: dearer is better."
    )
    return Chart("Actions as logged", caption, draw(drawn, HALF, 260))


def overlap_chart(audit: Audit) -> Chart | None:
    """Effective number of users after so many steps."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "step": entry.step,
            "kind": kind,
            "users": users,
            "note": f"{kind}, {entry.step} step(s): {number(round(users))} effective users",
        }
        for entry in audit.overlap
        for kind, users in zip(_KINDS, (entry.uniform, entry.alone, entry.greedy), strict=True)
        if users > 0  # nobody has no logarithm
    ]
    if not rows:
        return None
    counts = [row["users"] for row in rows]
    marks = round_marks(min(1.0, *counts), 10 * max(counts))
    step = alt.X("step:O", title="steps weighed", axis=alt.Axis(labelAngle=0, grid=False))
    users = alt.Y(
        "users:Q", title="effective users", scale=alt.Scale(type="log"), axis=alt.Axis(format=",~r", values=marks)
    )
    scale = alt.Scale(domain=list(_KINDS), range=[SECOND, GOLD, ACCENT])
    colour = alt.Color("kind:N", legend=alt.Legend(columns=2), scale=scale)
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_line(strokeWidth=2, aria=False).encode(x=step, y=users, color=colour),
        chart.mark_point(filled=True, size=50, opacity=1).encode(x=step, y=users, color=colour, description="note:N"),
    )
    alive, steps = audit.steps_alive, len(audit.overlap)
    caption = "Weighing all steps leaves ever fewer users who speak for another policy (logarithmic)" + (
        f"; after {alive} of {steps} steps too few to certify a fixed action. A certificate weighs step by step."
        if alive < steps
        else f"; after all {steps} there are still enough to certify."
    )
    return Chart("Overlap by step", caption, draw(drawn, HALF, 280))

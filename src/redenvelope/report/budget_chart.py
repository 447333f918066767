"""The curve that a budget slides along: reward against cost, this plan and today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redenvelope.plan.plan import Plan
from redenvelope.report.drawing import (
    ACCENT,
    FULL,
    INK,
    PHONE,
    SECOND,
    dotted_rule,
    draw,
    finite,
    layered,
    values,
)
from redenvelope.report.markup import Chart, number
from redenvelope.report.spoken import Spoken

if TYPE_CHECKING:
    import altair as alt

__all__ = ["budget_chart", "curve"]

_REWARD = "reward a user"


def curve(plan: Plan, words: Spoken) -> list[dict[str, Any]]:
    """The points of the curve by rising cost, each with what its mark says."""
    rows = [
        {name: row[name] for name in ("cost", "reward", "reward_lower", "reward_upper")}
        for row in plan.frontier.sort("cost").to_dicts()
        if finite(row, "cost", "reward")
    ]
    for row in rows:
        row["note"] = f"{words.cost(row['cost'])} a user buy {number(row['reward'])} reward"
    return rows


def budget_chart(plan: Plan, words: Spoken) -> Chart | None:
    """Reward against cost with its band, and where the plan and today's way stand."""
    rows = curve(plan, words)
    if len(rows) < 2:
        return None
    drawn = _layers(rows, plan, words)
    caption = (
        "The line is the most that money can earn, as estimated on users who had no part in making it, the band how "
        "well that is known. Where it flattens, more money buys little. The diamond is this plan, the circle what is "
        "done today, the dotted line the budget."
    )
    return Chart("Reward against cost", caption, draw(drawn, FULL, 340), draw(drawn, PHONE, 300))


def _layers(rows: list[dict[str, Any]], plan: Plan, words: Spoken) -> alt.LayerChart:
    import altair as alt

    certificate = plan.certificate
    points: list[dict[str, Any]] = [
        {"who": "this plan", "cost": certificate.cost.estimate, "reward": certificate.reward.estimate},
        {"who": "today", **certificate.logged},
    ]
    for point in points:
        point["note"] = f"{point['who']}: {number(point['reward'])} reward for {words.cost(point['cost'])} a user"
    cost = alt.X("cost:Q", title=words.axis, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6, format="~g"))
    reward = alt.Y("reward:Q", title=_REWARD, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    names = [point["who"] for point in points]
    colours = alt.Color("who:N", scale=alt.Scale(domain=names, range=[ACCENT, SECOND]))
    shapes = alt.Shape("who:N", scale=alt.Scale(domain=names, range=["diamond", "circle"]))
    budget = {"cost": certificate.budget, "label": f"budget {words.cost(certificate.budget)}"}
    banded = [row for row in rows if finite(row, "reward_lower", "reward_upper")]
    curve = alt.Chart(values(rows))
    return layered(
        alt.Chart(values(banded))
        .mark_area(color=ACCENT, opacity=0.14, aria=False)
        .encode(x=cost, y=alt.Y("reward_lower:Q", title=_REWARD), y2="reward_upper:Q"),
        curve.mark_line(color=ACCENT, strokeWidth=2.5, aria=False).encode(x=cost, y=reward),
        curve.mark_point(color=ACCENT, filled=True, size=22, opacity=1).encode(x=cost, y=reward, description="note:N"),
        dotted_rule(budget).encode(x="cost:Q"),
        alt.Chart(values([budget]))
        .mark_text(color=INK, align="left", baseline="bottom", dx=5, fontSize=12, aria=False)
        .encode(x="cost:Q", y=alt.value("height"), text="label:N"),
        alt.Chart(values([point for point in points[::-1] if finite(point, "cost", "reward")]))
        .mark_point(filled=True, size=150, opacity=1, stroke="var(--paper)", strokeWidth=1.5)
        .encode(x=cost, y=reward, color=colours, shape=shapes, description="note:N"),
    )

"""Charts for a notebook: interactive, in colours of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from redenvelope.plan.plan import Plan

if TYPE_CHECKING:
    import altair as alt

__all__ = ["plot_frontier"]

_CURVE, _PLAN, _LOGGED = "#2b5c8a", "#b0203f", "#777777"


def plot_frontier(plan: Plan) -> alt.LayerChart:
    """What budgets buy, as an altair chart: the frontier with its band, the plan, what was logged, and the budget."""
    import altair as alt

    given = plan.certificate
    names = ["cost", "reward", "reward_lower", "reward_upper"]
    finite = pl.all_horizontal(pl.col("cost").is_finite(), pl.col("reward").is_finite())
    rows = plan.frontier.filter(finite).select(*names, price=pl.col("dual").cast(pl.String)).sort("cost").to_dicts()
    points = [
        {"policy": "this plan", "cost": given.cost.estimate, "reward": given.reward.estimate},
        {"policy": "as logged", "cost": given.logged["cost"], "reward": given.logged["reward"]},
    ]
    cost = alt.X("cost:Q", title="cost a user", scale=alt.Scale(zero=False))
    reward = alt.Y("reward:Q", title="reward a user", scale=alt.Scale(zero=False))
    curve = alt.Chart(alt.InlineData(values=rows))
    colours = alt.Color("policy:N", scale=alt.Scale(domain=["this plan", "as logged"], range=[_PLAN, _LOGGED]))
    band = curve.mark_area(color=_CURVE, opacity=0.15).encode(x=cost, y=alt.Y("reward_lower:Q"), y2="reward_upper:Q")
    line = curve.mark_line(color=_CURVE, point=True).encode(x=cost, y=reward, tooltip=["price:N", "cost:Q", "reward:Q"])
    marks = alt.Chart(alt.InlineData(values=points)).mark_point(filled=True, size=120, opacity=1)
    budget = alt.Chart(alt.InlineData(values=[{"cost": given.budget}])).mark_rule(strokeDash=[4, 4])
    policies = marks.encode(x=cost, y=reward, color=colours, tooltip=["policy:N", "cost:Q", "reward:Q"])
    layers = [band, line, budget.encode(x="cost:Q"), policies]
    return alt.LayerChart(layer=layers).properties(title="What a budget buys")

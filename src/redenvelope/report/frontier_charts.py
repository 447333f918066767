"""Charts of what a budget buys: the frontier, cost and reward by price, and the rungs around the plan's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from redenvelope.plan.certificate import Certificate
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy
from redenvelope.report.drawing import (
    ACCENT,
    FULL,
    GOLD,
    HALF,
    INK,
    MUTED,
    PHONE,
    SECOND,
    dotted_rule,
    draw,
    finite,
    layered,
    round_marks,
    values,
)
from redenvelope.report.markup import Chart, Spoken
from redenvelope.wording import number, price_label

if TYPE_CHECKING:
    import altair as alt


_SHAPES = ("diamond", "circle", "square", "triangle-up", "cross", "triangle-down")
_COLOURS = (ACCENT, SECOND, GOLD, MUTED)
_COST, _REWARD = "cost per user", "reward per user"
_FITS = {False: "above the line", True: "within it"}
_PRICES_NAMED = 5


def policy_points(certificate: Certificate, comparison: Sequence[ComparedPolicy]) -> list[dict[str, Any]]:
    """The plan, the logged policy and others, each with a note as text."""
    points: list[dict[str, Any]] = [
        {"policy": "this plan", "cost": certificate.cost.estimate, "reward": certificate.reward.estimate},
        {"policy": "as logged", **certificate.logged},
        *(
            {"policy": row.policy, "cost": row.cost, "reward": row.reward}
            for row in comparison
            if row.policy not in ("plan", "logged")  # already included above
        ),
    ]
    for point in points:
        point["note"] = f"{point['policy']}: cost {number(point['cost'])}, reward {number(point['reward'])} per user"
    return [point for point in points if finite(point, "cost", "reward")]


def frontier_chart(
    frontier: pl.DataFrame, certificate: Certificate, comparison: Sequence[ComparedPolicy] = ()
) -> Chart | None:
    """Reward against cost, with bands, the plan and the compared policies."""
    rows = [row for row in frontier.sort("cost").to_dicts() if finite(row, "cost", "reward")]
    if len(rows) < 2:
        return None
    for row in rows:
        row["note"] = (
            f"price λ {price_label(_dual(row))}: cost {number(row['cost'])}, reward {number(row['reward'])} per user "
            f"({number(row['reward_lower'])} to {number(row['reward_upper'])})"
        )
        row["dual"] = price_label(_dual(row))  # JSON has no infinity
    budget = {"cost": certificate.budget, "label": f"budget {number(certificate.budget)}"}
    details = ([_believed(rows)], _bounds(certificate))
    chart = _layers(rows, policy_points(certificate, comparison), budget, _COST, details)
    caption = (
        "Every point of the line is a plan at one price, as estimated on the check users, with its interval as the "
        "band: where the line flattens, more money buys little. The diamond is this plan, with its own bounds at "
        f"{certificate.confidence:.0%} confidence from the check users; the "
        "dotted line is the budget, and the dashed one what the model alone would promise."
    )
    return Chart("The frontier", caption, draw(chart, FULL, 380), draw(chart, PHONE, 320))


def _dual(row: dict[str, Any]) -> float:
    return float(row["dual"])


def _layers(
    rows: list[dict[str, Any]],
    points: list[dict[str, Any]],
    budget: dict[str, Any],
    axis: str,
    details: tuple[Sequence[alt.Chart], Sequence[alt.Chart]] = ((), ()),
) -> alt.LayerChart:
    """The curve with its band, the budget, and policies as points; `details` go below the curve and the points."""
    import altair as alt

    cost = alt.X("cost:Q", title=axis, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6, format=",~r"))
    reward = alt.Y("reward:Q", title=_REWARD, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    curve = alt.Chart(values(rows))
    banded = [row for row in rows if finite(row, "reward_lower", "reward_upper")]
    names = list(dict.fromkeys(point["policy"] for point in points))
    marks = alt.Chart(values(points[::-1]))  # the most important is drawn last, on top
    colours = alt.Color(
        "policy:N",
        scale=alt.Scale(domain=names, range=[_COLOURS[place % len(_COLOURS)] for place in range(len(names))]),
    )
    shapes = alt.Shape(
        "policy:N", scale=alt.Scale(domain=names, range=[_SHAPES[place % len(_SHAPES)] for place in range(len(names))])
    )
    return layered(
        alt.Chart(values(banded))
        .mark_area(color=ACCENT, opacity=0.14, aria=False)
        .encode(x=cost, y=alt.Y("reward_lower:Q", title=_REWARD), y2="reward_upper:Q"),
        *details[0],
        curve.mark_line(color=ACCENT, strokeWidth=2.5, aria=False).encode(x=cost, y=reward),
        curve.mark_point(color=ACCENT, filled=True, size=26, opacity=1).encode(x=cost, y=reward, description="note:N"),
        dotted_rule(budget).encode(x="cost:Q"),
        alt.Chart(values([budget]))
        .mark_text(color=INK, align="left", baseline="bottom", dx=5, fontSize=12, aria=False)
        .encode(x="cost:Q", y=alt.value("height"), text="label:N"),
        *details[1],
        marks.mark_point(filled=True, size=150, opacity=1, stroke="var(--paper)", strokeWidth=1.5).encode(
            x=cost, y=reward, color=colours, shape=shapes, description="note:N"
        ),
    )


def _believed(rows: list[dict[str, Any]]) -> alt.Chart:
    """The frontier that the model alone predicts."""
    import altair as alt

    modelled = [row for row in rows if finite(row, "model_cost", "model_reward")]
    line = alt.Chart(values(modelled)).mark_line(color=MUTED, strokeDash=[6, 4], strokeWidth=1.5, aria=False)
    drawn: alt.Chart = line.encode(x=alt.X("model_cost:Q", title=_COST), y=alt.Y("model_reward:Q", title=_REWARD))
    return drawn


def _bounds(certificate: Certificate) -> list[alt.Chart]:
    """The certificate's bounds as a cross behind the plan's mark."""
    import altair as alt

    cost, reward = certificate.cost, certificate.reward
    plan = {
        "cost": cost.estimate,
        "reward": reward.estimate,
        "cost_lower": cost.lower,
        "cost_upper": cost.upper,
        "reward_lower": reward.lower,
        "reward_upper": reward.upper,
    }
    if not finite(plan, *plan):
        return []
    chart = alt.Chart(values([plan]))
    return [
        chart.mark_rule(color=INK, strokeWidth=2, aria=False).encode(x="cost_lower:Q", x2="cost_upper:Q", y="reward:Q"),
        chart.mark_rule(color=INK, strokeWidth=2, aria=False).encode(
            x="cost:Q", y="reward_lower:Q", y2="reward_upper:Q"
        ),
    ]


def by_price_chart(frontier: pl.DataFrame, target: str, certificate: Certificate) -> Chart | None:
    """Cost or reward against the price."""
    rows = [
        row
        for row in frontier.sort("dual").to_dicts()
        if finite(row, "dual", target, f"{target}_lower", f"{target}_upper") and row["dual"] > 0
    ]
    if len(rows) < 2:
        return None
    plain = [
        {
            "dual": row["dual"],
            "value": row[target],
            "lower": row[f"{target}_lower"],
            "upper": row[f"{target}_upper"],
            "note": f"λ {number(row['dual'])}: {target} {number(row[target])} "
            f"({number(row[f'{target}_lower'])} to {number(row[f'{target}_upper'])})",
        }
        for row in rows
    ]
    if target == "cost":
        caption = "Less is spent at a higher price: the plan’s price is where the cost meets the budget (dotted)."
    else:
        caption = "What saving costs: the reward falls as the price rises; the dotted line is this plan’s price."
    drawing = draw(_by_price_layers(plain, target, certificate), HALF, 250)
    return Chart(f"{target.capitalize()} against the price λ", caption, drawing)


def _by_price_layers(rows: list[dict[str, Any]], target: str, certificate: Certificate) -> alt.LayerChart:
    import altair as alt

    colour = SECOND if target == "cost" else ACCENT
    # A logarithmic axis spreads prices of several magnitudes; for close ones it would leave no ticks.
    spread = rows[-1]["dual"] >= 10 * rows[0]["dual"]
    marks = {"values": round_marks(rows[0]["dual"], rows[-1]["dual"])} if spread else {"tickCount": 5}
    price = alt.X(
        "dual:Q",
        title="price λ (logarithmic)" if spread else "price λ",
        scale=alt.Scale(type="log" if spread else "linear", nice=False, zero=False),
        axis=alt.Axis(format=",~r", **marks),
    )
    title = f"{target} per user"
    value = alt.Y("value:Q", title=title, scale=alt.Scale(zero=target == "cost"))
    chart = alt.Chart(values(rows))
    layers: list[alt.Chart] = [
        chart.mark_area(color=colour, opacity=0.16, aria=False).encode(
            x=price, y=alt.Y("lower:Q", title=title), y2="upper:Q"
        ),
        chart.mark_line(color=colour, strokeWidth=2.5, aria=False).encode(x=price, y=value),
        chart.mark_point(color=colour, filled=True, size=24, opacity=1).encode(x=price, y=value, description="note:N"),
    ]
    if finite({"dual": certificate.dual}, "dual") and certificate.dual > 0:
        layers.append(dotted_rule({"dual": certificate.dual}).encode(x="dual:Q"))
    if target == "cost":
        layers.append(dotted_rule({"value": certificate.budget}).encode(y="value:Q"))
    return layered(*layers)


def ladder_chart(ladder: Ladder, near: range, certificate: Certificate) -> Chart | None:
    """Some rungs of a ladder in order of price: the tested outcome with its bound, next to the limit."""
    import altair as alt

    about_cost = certificate.target_reward is None
    limit = certificate.budget if certificate.target_reward is None else certificate.target_reward
    lower, upper = ladder.bounds(certificate.confidence)
    outcome, bounds = (1, upper[1]) if about_cost else (0, lower[0])
    passed = bounds <= limit if about_cost else bounds >= limit
    ordered = list(near)[::-1]  # prices fall along a ladder
    rows = [
        {
            "place": place,
            "estimate": float(ladder.means[outcome, rung]),
            "bound": float(bounds[rung]),
            "fits": _FITS[bool(passed[rung])],
            "note": f"λ {price_label(ladder.prices[rung, 0])}: {number(ladder.means[outcome, rung])}, "
            f"bound {number(bounds[rung])}",
        }
        for place, rung in enumerate(ordered)
    ]
    # Rungs are equally spaced, because prices from 0 to infinity have no common scale.
    shown = json.dumps([price_label(ladder.prices[rung, 0]) for rung in ordered])
    axis = alt.Axis(
        labelExpr=f"{shown}[datum.value]",
        labelAngle=0,
        values=list(range(0, len(ordered), -(-len(ordered) // _PRICES_NAMED))),
        grid=False,
        description="prices in rising order",
    )
    price = alt.X("place:O", title="price λ, rising", axis=axis)
    value = alt.Y("bound:Q", title=_COST if about_cost else _REWARD, scale=alt.Scale(zero=False))
    kinds = alt.Scale(domain=list(_FITS.values()), range=[MUTED, SECOND])
    fits = alt.Color("fits:N", scale=kinds, legend=alt.Legend(columns=2, columnPadding=28))
    chart = alt.Chart(values(rows))
    drawn = layered(
        dotted_rule({"bound": limit}).encode(y="bound:Q"),
        chart.mark_rule(color=SECOND, strokeWidth=2, opacity=0.5, aria=False).encode(x=price, y=value, y2="estimate:Q"),
        chart.mark_point(filled=True, size=60, opacity=1).encode(x=price, y=value, color=fits, description="note:N"),
    )
    what, side = ("cost", "above") if about_cost else ("reward", "below")
    caption = (
        f"Each point is the {certificate.confidence:.0%} bound of the {what} at a price, its line reaches to the "
        f"estimate. The plan is at the last price before the first bound {side} the dotted line, {number(limit)} "
        "per user, or between it and the next."
    )
    return Chart(f"{what.capitalize()} near the plan’s price", caption, draw(drawn, HALF, 270))


# The curve behind the slider: reward against cost, with this plan and today's policy.


def curve(plan: Plan, words: Spoken) -> list[dict[str, Any]]:
    """The points of the curve by increasing cost, each with the text of its mark."""
    rows = [
        {name: row[name] for name in ("cost", "reward", "reward_lower", "reward_upper")}
        for row in plan.frontier.sort("cost").to_dicts()
        if finite(row, "cost", "reward")
    ]
    for row in rows:
        row["note"] = f"{words.cost(row['cost'])} per user buy {number(row['reward'])} reward"
    return rows


def budget_chart(plan: Plan, words: Spoken) -> Chart | None:
    """Reward against cost with its band, the plan and today's policy."""
    rows = curve(plan, words)
    if len(rows) < 2:
        return None
    certificate = plan.certificate
    points: list[dict[str, Any]] = [
        {"policy": "this plan", "cost": certificate.cost.estimate, "reward": certificate.reward.estimate},
        {"policy": "today", **certificate.logged},
    ]
    for point in points:
        point["note"] = f"{point['policy']}: {number(point['reward'])} reward for {words.cost(point['cost'])} per user"
    budget = {"cost": certificate.budget, "label": f"budget {words.cost(certificate.budget)}"}
    drawn = _layers(rows, [point for point in points if finite(point, "cost", "reward")], budget, words.axis)
    caption = (
        "The line is the most that money can earn, as estimated on held-out users, and the band is its interval. Where "
        "it flattens, more money buys little. The diamond is this plan, the circle today’s policy, the dotted line the "
        "budget."
    )
    return Chart("Reward against cost", caption, draw(drawn, FULL, 340), draw(drawn, PHONE, 300))

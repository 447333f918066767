"""The figures of the experiments: each from its table alone."""

from __future__ import annotations

import altair as alt
import polars as pl

from experiments.paper import BUDGET, TABLE_ONE
from experiments.style import ACCENT, GOLD, INK, MUTED, PANEL, SECOND, beside, data, marks
from redenvelope.report.drawing import layered

__all__ = [
    "accuracy_chart",
    "budgets_chart",
    "log_chart",
    "prices_chart",
    "searches_chart",
    "second_table_chart",
    "table_one_chart",
]

_REWARD, _COST = "reward per user", "cost per user"
_LEARNED, _EXACT, _PAPER = "learned from a log (true value)", "exact, truth known", "the paper"
_KINDS = ([_LEARNED, _EXACT, _PAPER], [ACCENT, SECOND, GOLD], ["circle", "diamond", "stroke"])
_WIDE = 560


def table_one_chart(table: pl.DataFrame) -> alt.LayerChart:
    """Paper, exact and learned reward of every row."""
    named = table.with_columns(pl.concat_str("policy", pl.lit(": "), "learned_by").alias("row"))
    learned = named.filter(pl.col("seeds").is_not_null()).with_columns(mark=pl.lit(_LEARNED))
    exact = named.with_columns(mark=pl.lit(_EXACT), reward=pl.col("exact_reward"))
    paper = named.with_columns(mark=pl.lit(_PAPER), reward=pl.col("paper_reward"))
    rows = alt.Y("row:N", title=None, sort=named["row"].to_list())
    reward = alt.X("reward:Q", title=_REWARD, scale=alt.Scale(zero=False))
    colour, shape = marks(*_KINDS)
    tips = ["row:N", "mark:N", alt.Tooltip("reward:Q", format=".4f")]
    return layered(
        alt.Chart(data(paper))
        .mark_point(size=900, angle=90, strokeWidth=2.5, filled=False)
        .encode(x=reward, y=rows, color=colour, shape=shape, tooltip=tips),
        alt.Chart(data(exact)).mark_point(size=110).encode(x=reward, y=rows, color=colour, shape=shape, tooltip=tips),
        alt.Chart(data(learned))
        .mark_rule(strokeWidth=2, color=ACCENT)
        .encode(x="reward_lower:Q", x2="reward_upper:Q", y=rows),
        alt.Chart(data(learned)).mark_point(size=70).encode(x=reward, y=rows, color=colour, shape=shape, tooltip=tips),
    ).properties(width=_WIDE, height=alt.Step(34), title=f"What a budget of {BUDGET:g} a user earns, two-step problem")


def accuracy_chart(table: pl.DataFrame) -> alt.HConcatChart:
    """Observed against predicted, reward and cost, with the line where they agree."""
    panels = []
    for target in ("reward", "cost"):
        cells = table.filter(target=target).with_columns(
            lower=pl.col("observed") - 1.96 * pl.col("observed_error"),
            upper=pl.col("observed") + 1.96 * pl.col("observed_error"),
            mark=pl.lit("observed on held-out users"),
        )
        ends = [cells.select(pl.min_horizontal("predicted", "lower")).min().item()]
        ends.append(cells.select(pl.max_horizontal("predicted", "upper")).max().item())
        scale = alt.Scale(zero=False, nice=True)
        predicted = alt.X("predicted:Q", title=f"predicted {target} of a decision", scale=scale)
        observed = alt.Y("observed:Q", title=f"{target} of a decision", scale=scale)
        known = cells.filter(pl.col("truth").is_not_null()).with_columns(observed=pl.col("truth"), mark=pl.lit("truth"))
        names = ["observed on held-out users", "truth"][: 1 + (len(known) > 0)]
        colour, shape = marks(names, [ACCENT, SECOND][: len(names)], ["circle", "diamond"][: len(names)])
        tips = [
            "cell:N",
            "action:N",
            "rows:Q",
            *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("predicted", "observed")),
        ]
        line = alt.Chart(data(pl.DataFrame({"end": ends}))).mark_line(color=MUTED, strokeDash=[4, 4])
        layers = [
            line.encode(
                x=alt.X("end:Q", title=f"predicted {target} of a decision"),
                y=alt.Y("end:Q", title=f"{target} of a decision"),
            ),
            alt.Chart(data(cells))
            .mark_rule(color=ACCENT, opacity=0.6)
            .encode(x=predicted, y=alt.Y("lower:Q", title=f"{target} of a decision"), y2="upper:Q"),
            alt.Chart(data(cells))
            .mark_point(size=45)
            .encode(x=predicted, y=observed, color=colour, shape=shape, tooltip=tips),
        ]
        if len(known):
            layers.append(
                alt.Chart(data(known))
                .mark_point(size=60, filled=False)
                .encode(x=predicted, y=observed, color=colour, shape=shape)
            )
        panels.append(layered(*layers).properties(width=PANEL, height=PANEL - 30))
    return beside(*panels, title=f"Prediction accuracy on held-out users, {table['campaign'][0]}")


def budgets_chart(table: pl.DataFrame, truth: pl.DataFrame) -> alt.HConcatChart:
    """True reward against true cost, and regret against the budget."""
    names = table["method"].unique(maintain_order=True).to_list()
    colour, shape = marks(
        [*names, "the paper"], [ACCENT, SECOND, INK, GOLD], ["circle", "diamond", "triangle-up", "cross"]
    )
    points = table.with_columns(mark=pl.col("method"))
    paper = pl.DataFrame({"cost": [BUDGET], "reward": [TABLE_ONE["constrained MDP"].reward], "mark": ["the paper"]})
    cost = alt.X("cost:Q", title=_COST, scale=alt.Scale(zero=False))
    reward = alt.Y("reward:Q", title=_REWARD, scale=alt.Scale(zero=False))
    dash = alt.StrokeDash(
        "policy:N", title=None, scale=alt.Scale(domain=["exact optimum", "exact bandit"], range=[[1, 0], [5, 4]])
    )
    tips = ["method:N", *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("budget", "cost", "reward", "regret"))]
    curve = alt.Chart(data(truth)).mark_line(color=MUTED, strokeWidth=2)
    left = layered(
        curve.encode(x=alt.X("budget:Q", title=_COST), y=reward, strokeDash=dash),
        alt.Chart(data(points)).mark_point(size=60).encode(x=cost, y=reward, color=colour, shape=shape, tooltip=tips),
        alt.Chart(data(paper)).mark_point(size=110).encode(x=cost, y=reward, color=colour, shape=shape),
    )
    budget = alt.X("budget:Q", title="budget a user", scale=alt.Scale(zero=False))
    # The methods stand side by side at a budget, or their intervals would hide each other.
    offset = points.with_columns(
        budget=pl.col("budget") + 0.05 * (pl.col("method").replace_strict(names, list(range(len(names)))) - 1)
    )
    right = layered(
        alt.Chart(data(pl.DataFrame({"regret": [0.0]}))).mark_rule(color=MUTED, strokeWidth=1.5).encode(y="regret:Q"),
        alt.Chart(data(offset))
        .mark_rule(strokeWidth=2)
        .encode(
            x=budget,
            y=alt.Y("regret_lower:Q", title="regret a user, at equal true cost"),
            y2="regret_upper:Q",
            color=colour,
        ),
        alt.Chart(data(offset))
        .mark_point(size=60)
        .encode(x=budget, y="regret:Q", color=colour, shape=shape, tooltip=tips),
    )
    panels = (panel.properties(width=PANEL, height=PANEL - 30) for panel in (left, right))
    return beside(*panels, title="Model-free against model-based over budgets, two-step problem")


def prices_chart(table: pl.DataFrame, budget: float) -> alt.HConcatChart:
    """Reward and cost against λ: exact lines, estimated points and bands."""
    colour = alt.Color(
        "policy:N", title=None, scale=alt.Scale(domain=["constrained MDP", "bandit"], range=[ACCENT, SECOND])
    )
    dual = alt.X("dual:Q", title="price λ (reward for a unit of cost)", axis=alt.Axis(values=[0, 0.5, 1, 1.5, 2, 2.5]))
    panels = []
    for target in ("reward", "cost"):
        title = f"{target} a user"
        chart = alt.Chart(data(table))
        value = alt.Y(f"estimated_{target}:Q", title=title, scale=alt.Scale(zero=False))
        tips = [
            "policy:N",
            *(
                alt.Tooltip(f"{name}:Q", format=".4f")
                for name in ("dual", f"exact_{target}", f"learned_{target}", f"estimated_{target}")
            ),
        ]
        layers = [
            chart.mark_area(opacity=0.16).encode(
                x=dual,
                y=alt.Y(f"estimated_{target}_lower:Q", title=title),
                y2=f"estimated_{target}_upper:Q",
                color=colour,
            ),
            chart.mark_line(strokeWidth=2, interpolate="step").encode(
                x=dual, y=alt.Y(f"exact_{target}:Q", title=title), color=colour
            ),
            chart.mark_point(size=26).encode(x=dual, y=value, color=colour, tooltip=tips),
        ]
        if target == "cost":
            line = pl.DataFrame({"cost": [budget], "label": [f"budget {budget:g}"], "dual": [table["dual"].max()]})
            layers.append(alt.Chart(data(line)).mark_rule(color=INK, strokeDash=[2, 3]).encode(y="cost:Q"))
            layers.append(
                alt.Chart(data(line))
                .mark_text(color=INK, align="right", dy=-8, fontSize=12)
                .encode(x=dual, y="cost:Q", text="label:N")
            )
        panels.append(layered(*layers).properties(width=PANEL, height=PANEL - 30))
    return beside(*panels, title="Reward and cost against the price λ, two-step problem")


def searches_chart(table: pl.DataFrame) -> alt.VConcatChart:
    """Steps and seconds of every search, a row of panels for each problem."""
    named = table.with_columns(
        search=pl.concat_str("pricing", pl.lit(", "), "solver"),
        problem=pl.concat_str(
            "campaign", pl.lit(", temperature "), pl.col("temperature").round(3).cast(pl.String).str.strip_suffix(".0")
        ),
        mark=pl.when(pl.col("status") == "converged")
        .then(pl.lit("met the budget"))
        .otherwise(pl.lit("stopped before")),
    )
    colour, shape = marks(["met the budget", "stopped before"], [ACCENT, MUTED], ["circle", "triangle-up"])
    lines = []
    for problem in named["problem"].unique(maintain_order=True):
        part = named.filter(problem=problem)
        order = part["search"].to_list()
        tips = [
            "search:N",
            "status:N",
            "steps:Q",
            "passes:Q",
            alt.Tooltip("seconds:Q", format=".3f"),
            alt.Tooltip("dual:Q", format=".4f"),
        ]
        panels = []
        for column, title in (("steps", "prices evaluated"), ("seconds", "seconds of processor time (logarithmic)")):
            scale = (
                alt.Scale(type="log", nice=False, padding=12)
                if column == "seconds"
                else alt.Scale(domain=[0, 1.1 * max(table["steps"].to_list())])
            )
            labels = alt.Axis() if column == "steps" else alt.Axis(labels=False)
            rows = alt.Y("search:N", title=None, sort=order, axis=labels)
            value = alt.X(
                f"{column}:Q",
                title=title,
                scale=scale,
                axis=alt.Axis(format="d" if column == "steps" else "~g", tickCount=5),
            )
            chart = alt.Chart(data(part))
            text = alt.Text(f"{column}:Q", format="d" if column == "steps" else ".2g")
            panels.append(
                layered(
                    chart.mark_point(size=80).encode(x=value, y=rows, color=colour, shape=shape, tooltip=tips),
                    chart.mark_text(align="left", dx=8, color=INK, fontSize=11).encode(x=value, y=rows, text=text),
                ).properties(width=PANEL - 40, height=alt.Step(24))
            )
        lines.append(
            alt.hconcat(*panels, spacing=24).properties(title=alt.TitleParams(problem, fontSize=13, color=MUTED))
        )
    return alt.vconcat(*lines, spacing=18).properties(
        title="The search for λ: prices evaluated and seconds of processor time"
    )


def second_table_chart(table: pl.DataFrame) -> alt.HConcatChart:
    """Change against random at a fixed budget and at a fixed reward."""
    given = "learned, price given"
    names = {"neural model": "learned, price found on the log", "neural model, price given": given}
    marked = table.with_columns(mark=pl.col("learned_by").replace_strict(names, default=_EXACT))
    colour, shape = marks(
        [*names.values(), _EXACT, _PAPER], [MUTED, ACCENT, SECOND, GOLD], ["circle", "circle", "diamond", "stroke"]
    )
    lines = {"learned, price found on the log": 12, given: -12}  # side by side, so that no interval hides another
    panels = []
    for form, title in (("fixed budget", "reward, against random"), ("fixed reward", "cost, against random")):
        part = marked.filter(form=form)
        exact = part.filter(mark=_EXACT)
        paper = exact.with_columns(mark=pl.lit(_PAPER), change=pl.col("paper_change"))
        rows = alt.Y("policy:N", title=None, sort=["bandit", "constrained MDP"])
        ends = [0.0, *part["change"].to_list()]
        room = 0.25 * (max(ends) - min(ends))  # the points decide what is shown: intervals may be endless
        scale = alt.Scale(domain=[min(ends) - room, max(ends) + room], clamp=True, nice=False)
        change = alt.X("change:Q", title=title, scale=scale, axis=alt.Axis(format="+.0%", tickCount=5))
        tips = ["policy:N", "mark:N", alt.Tooltip("change:Q", format="+.2%")]
        layers = [
            alt.Chart(data(pl.DataFrame({"change": [0.0]}))).mark_rule(color=MUTED).encode(x=change),
            alt.Chart(data(paper))
            .mark_point(size=900, angle=90, strokeWidth=2.5, filled=False)
            .encode(x=change, y=rows, color=colour, shape=shape, tooltip=tips),
            alt.Chart(data(exact))
            .mark_point(size=110)
            .encode(x=change, y=rows, color=colour, shape=shape, tooltip=tips),
        ]
        for name, offset in lines.items():
            chart = alt.Chart(data(part.filter(mark=name)))
            low = alt.X("change_lower:Q", title=title)
            layers += [
                chart.mark_rule(strokeWidth=2, yOffset=offset).encode(x=low, x2="change_upper:Q", y=rows, color=colour),
                chart.mark_point(size=70, yOffset=offset).encode(
                    x=change, y=rows, color=colour, shape=shape, tooltip=tips
                ),
            ]
        panels.append(
            layered(*layers).properties(
                width=PANEL - 40, height=alt.Step(64), title=alt.TitleParams(form, fontSize=13, color=MUTED)
            )
        )
    return beside(*panels, title="The second table's form, envelopes (the paper's numbers are of another campaign)")


def log_chart(table: pl.DataFrame, title: str) -> alt.LayerChart:
    """Estimated reward against estimated cost, with intervals, of what was fitted to a log."""
    names = table["row"].to_list()
    colours, shapes = [MUTED, SECOND, ACCENT, SECOND, ACCENT], ["square", "circle", "circle", "diamond", "diamond"]
    colour, shape = marks(names, colours[: len(names)], shapes[: len(names)], columns=3)
    chart = alt.Chart(data(table.with_columns(mark=pl.col("row"))))
    cost = alt.X("cost:Q", title=_COST, scale=alt.Scale(zero=False))
    reward = alt.Y("reward:Q", title=_REWARD, scale=alt.Scale(zero=False))
    tips = ["row:N", "certificate:N", alt.Tooltip("cost:Q", format=".4f"), alt.Tooltip("reward:Q", format=".4f")]
    return layered(
        chart.mark_rule(strokeWidth=1.5).encode(
            x=alt.X("cost_lower:Q", title=_COST), x2="cost_upper:Q", y=reward, color=colour
        ),
        chart.mark_rule(strokeWidth=1.5).encode(
            x=cost, y=alt.Y("reward_lower:Q", title=_REWARD), y2="reward_upper:Q", color=colour
        ),
        chart.mark_point(size=120).encode(x=cost, y=reward, color=colour, shape=shape, tooltip=tips),
    ).properties(width=_WIDE, height=PANEL, title=title)

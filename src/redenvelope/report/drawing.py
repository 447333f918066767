"""Drawing charts as SVG, with colours as CSS variables that the page's style defines.

One drawing therefore serves light, dark and print, needs no script, and takes a few kilobytes instead of a library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import polars as pl

from redenvelope.plan.plan import Plan
from redenvelope.report.markup import shown
from redenvelope.wording import price_label

if TYPE_CHECKING:
    import altair as alt


ACCENT, SECOND, GOLD = "var(--accent)", "var(--second)", "var(--gold)"
INK, MUTED, LINE = "var(--ink)", "var(--muted)", "var(--line)"

FULL, HALF, PHONE = 760, 372, 358
"""Widths in pixels: of the page, of half of it, and of a phone."""
LABEL = 115
"""The largest width of an axis label in pixels; longer ones are cut."""

# The reader's font may be wider than the one used to measure labels.
_PADDING = {"left": 10, "right": 14, "top": 2, "bottom": 2}

_CONFIG = {
    "background": "transparent",
    "font": "sans-serif",
    "padding": _PADDING,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "gridColor": LINE,
        "domain": False,
        "ticks": False,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelPadding": 6,
        "titlePadding": 8,
        "labelLimit": LABEL,
    },
    "axisX": {"labelFlush": False},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": INK,
        "labelFontSize": 12,
        "symbolOpacity": 1,
        "labelLimit": 150,
        "columnPadding": 14,
    },
}

# From pale to deep; each is visible on white and on near-black.
_RAMP = ((246, 214, 160), (240, 160, 92), (222, 84, 62), (176, 32, 72), (136, 44, 124))


def action_colours(count: int) -> list[str]:
    """A colour for each action, from the cheapest (pale) to the dearest (deep)."""
    return [_blend(place / max(count - 1, 1)) for place in range(count)]


def _blend(place: float) -> str:
    position = place * (len(_RAMP) - 1)
    low = min(int(position), len(_RAMP) - 2)
    share = position - low
    mixed = (round((1 - share) * a + share * b) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def round_marks(least: float, most: float) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2 and 5 of each magnitude, or only 1 if these are many."""
    if not 0 < least <= most:
        return []
    magnitudes = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    for digits in ((1, 2, 5), (1,)):
        marks = [float(f"{digit}e{magnitude}") for magnitude in magnitudes for digit in digits]
        inside = [mark for mark in marks if least <= mark <= most]
        if len(inside) <= 6:
            break
    return inside


def short_labels(labels: Sequence[str], most: int = 18) -> list[str]:
    """Distinct labels of at most `most` characters: cut at the end, or to the part where they differ, or numbered."""
    long = [label for label in labels if len(label) > most]
    head = _shared(long)
    tail = _shared([label[head:][::-1] for label in long])
    ends = [label if len(label) <= most else label[: most - 1] + "…" for label in labels]
    cores = [label if len(label) <= most else _core(label, head, tail, most) for label in labels]
    numbered = [f"{label[: most - 5]}… #{place}" for place, label in enumerate(labels, start=1)]
    return [
        next((way[place] for way in (ends, cores) if way.count(way[place]) == 1), numbered[place])
        for place in range(len(labels))
    ]


def _shared(labels: Sequence[str]) -> int:
    """Length of the whole words with which all of several labels begin."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*labels, strict=False))
    beginning = "".join(letters[0] for letters in alike) if len(labels) > 1 else ""
    return beginning.rfind(" ") + 1


def _core(label: str, head: int, tail: int, most: int) -> str:
    """The part that distinguishes a label, after as many whole words of the shared beginning as fit."""
    own = label[head : len(label) - tail]
    start = max(head - max(most - 2 - len(own), 0), 0)
    before = label[start:head]
    if start and label[start - 1] != " ":  # starts inside a word
        before = before.partition(" ")[2]
    return f"…{before}{own}"[: most - 1] + ("…" if tail or len(own) > most - 2 else "")


def finite(row: Mapping[str, Any], *names: str) -> bool:
    """Whether these entries of a row are finite numbers."""
    return all(row[name] is not None and math.isfinite(row[name]) for name in names)


def values(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Rows as the data of a chart."""
    import altair as alt

    # A tuple is passed on as it is, whereas altair copies lists row by row several times.
    return alt.InlineData(values=tuple(dict(row) for row in rows))


def dotted_rule(row: Mapping[str, Any]) -> alt.Chart:
    """A dotted line at a row's position; the caller encodes its axis."""
    import altair as alt

    rule: alt.Chart = alt.Chart(values([row])).mark_rule(color=INK, strokeDash=[2, 3], aria=False)
    return rule


def layered(*charts: alt.Chart) -> alt.LayerChart:
    """Charts on top of each other, the first at the back."""
    import altair as alt

    return alt.LayerChart(layer=list(charts))


def draw(chart: alt.Chart | alt.LayerChart, width: int, height: int) -> str:
    """The chart as SVG with the given total size in pixels."""
    import vl_convert

    # The chart's own methods would copy its data each time.
    drawn = chart.to_dict(validate=False) | {"width": width, "height": height, "config": _CONFIG}
    drawn["autosize"] = {"type": "fit", "contains": "padding"}
    return vl_convert.vegalite_to_svg(_drawable(drawn))


def _drawable(value: Any) -> Any:
    """A chart's description without characters that SVG cannot contain."""
    if isinstance(value, dict):
        return {key: _drawable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_drawable(item) for item in value]
    return shown(value) if isinstance(value, str) else value


# Charts for a notebook: interactive, with fixed colours.


_CURVE, _PLAN, _LOGGED = "#2b5c8a", "#b0203f", "#777777"


def plot_frontier(plan: Plan) -> alt.LayerChart:
    """The frontier as an altair chart: curve with band, the plan, logged behaviour, and the budget."""
    import altair as alt

    given = plan.certificate
    names = ["cost", "reward", "reward_lower", "reward_upper"]
    finite = pl.all_horizontal(pl.col("cost").is_finite(), pl.col("reward").is_finite())
    found = plan.along(given.budgets[0].name).filter(finite)
    rows = found.select(*names, "dual").sort("cost").to_dicts()
    for row in rows:
        row["price"] = price_label(row.pop("dual"))
    points = [
        {"policy": "this plan", "cost": given.cost.estimate, "reward": given.reward.estimate},
        {"policy": "as logged", "cost": given.logged["cost"], "reward": given.logged["reward"]},
    ]
    cost = alt.X("cost:Q", title="cost per user", scale=alt.Scale(zero=False))
    reward = alt.Y("reward:Q", title="reward per user", scale=alt.Scale(zero=False))
    curve = alt.Chart(alt.InlineData(values=rows))
    colours = alt.Color("policy:N", scale=alt.Scale(domain=["this plan", "as logged"], range=[_PLAN, _LOGGED]))
    band = curve.mark_area(color=_CURVE, opacity=0.15).encode(x=cost, y=alt.Y("reward_lower:Q"), y2="reward_upper:Q")
    line = curve.mark_line(color=_CURVE, point=True).encode(x=cost, y=reward, tooltip=["price:N", "cost:Q", "reward:Q"])
    marks = alt.Chart(alt.InlineData(values=points)).mark_point(filled=True, size=120, opacity=1)
    budget = alt.Chart(alt.InlineData(values=[{"cost": given.budget}])).mark_rule(strokeDash=[4, 4])
    policies = marks.encode(x=cost, y=reward, color=colours, tooltip=["policy:N", "cost:Q", "reward:Q"])
    layers = [band, line, budget.encode(x="cost:Q"), policies]
    return alt.LayerChart(layer=layers).properties(title="What a budget buys")

"""How the figures look, on paper and on a page, and what they are drawn with."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

__all__ = ["ACCENT", "GOLD", "INK", "LINE", "MUTED", "PANEL", "SECOND", "beside", "data", "html", "image", "marks"]

# The report's colours on white: a picture is not told whether its reader likes it dark.
ACCENT, SECOND, GOLD = "#c4122f", "#22619e", "#a8730a"
INK, MUTED, LINE = "#1c1d21", "#5d616b", "#e2e1de"

PANEL = 330
"""Width of one of two panels, in pixels."""
_SCALE = 2.0  # pixels of a picture for each of the drawing


def data(frame: pl.DataFrame) -> alt.InlineData:
    """A table as the data of a chart."""
    return alt.InlineData(values=frame.to_dicts())


def marks(names: list[str], colours: list[str], shapes: list[str], columns: int = 4) -> tuple[alt.Color, alt.Shape]:
    """The legend of the column `mark`: a colour and a shape for each name, in so many columns."""
    legend = alt.Legend(columns=columns)
    colour = alt.Color("mark:N", title=None, legend=legend, scale=alt.Scale(domain=names, range=colours))
    shape = alt.Shape("mark:N", title=None, legend=legend, scale=alt.Scale(domain=names, range=shapes))
    return colour, shape


def beside(*panels: alt.Chart | alt.LayerChart, title: str) -> alt.HConcatChart:
    """Panels side by side under one title."""
    return alt.hconcat(*panels, spacing=36).properties(title=title)


def _themed(chart: alt.TopLevelMixin) -> dict[str, Any]:
    specification: dict[str, Any] = chart.to_dict(validate=False)
    axis = {
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
        "labelLimit": 240,
    }
    legend = {"orient": "top", "title": None, "labelColor": INK, "labelFontSize": 12, "labelLimit": 260}
    heading = {"color": INK, "fontSize": 15, "anchor": "start", "offset": 12, "subtitleColor": MUTED}
    specification["config"] = {
        "background": "white",
        "font": "sans-serif",
        "padding": 14,
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"labelFlush": False},
        "legend": legend | {"symbolOpacity": 1, "columnPadding": 16},
        "title": heading,
        "point": {"filled": True, "opacity": 1},
    }
    return specification


def image(chart: alt.TopLevelMixin) -> bytes:
    """The chart as PNG; needs neither browser nor network."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_themed(chart), scale=_SCALE))


def html(chart: alt.TopLevelMixin) -> bytes:
    """The chart as a page with tooltips that holds everything it needs."""
    import vl_convert

    return str(vl_convert.vegalite_to_html(_themed(chart), bundle=True)).encode()

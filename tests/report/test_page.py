"""The page: whole, quiet on the network, and safe whatever labels say; see test_browser.py for how it is drawn."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import polars as pl
import pytest
import vl_convert

from redenvelope.plan.record import FitRecord, Source
from redenvelope.report.drawing import action_colours, round_marks, short_labels
from redenvelope.report.page import render_report
from redenvelope.serialization import from_plain, to_plain
from redenvelope.wording import number, signed
from tests.report.parsed import Parsed
from tests.report.plans import CHARTS, HOSTILE, NARROW, frontier, plan, record


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(plan())


@pytest.fixture(scope="module")
def parsed(page: str) -> Parsed:
    return Parsed(page)


def test_nothing_is_fetched(page: str, parsed: Parsed) -> None:
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in parsed.tags}
    for _, attributes in parsed.tags:
        assert not {"src", "srcset", "data", "action", "xlink:href"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\"'\s<)]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    rules = next(a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a)
    assert rules is not None
    assert rules.startswith("default-src 'none'")


def test_where_it_came_from_is_told_where_it_is_known(parsed: Parsed) -> None:
    assert "columns of the log" not in parsed.text
    source = Source("march.csv", "2024-04-01", {"user": "Kunde", "step": "step"}, ("id",))
    shown = Parsed(render_report(plan(record=record(source=source)))).text
    assert "redenvelope report · march.csv · 2024-04-01" in shown
    assert "log march.csv made on 2024-04-01 columns of the log user = Kunde columns left out id" in shown


def test_long_labels_are_cut_in_legends_and_stay_apart() -> None:
    labels = ["none", "20 % off a basket over 50", "20 % off a basket over 80"]
    assert short_labels(labels) == ["none", "…a basket over 50", "…a basket over 80"]
    assert short_labels(["one very long label of many", "short"]) == ["one very long lab…", "short"]
    assert short_labels(["a voucher of 5 on shoes", "a voucher of 8 on shoes"], 14) == [
        "…voucher of 5…",
        "…voucher of 8…",
    ]
    alike = [f"{'x' * 30} {'abc'[place] * 30} {'x' * 30}" for place in range(3)]
    for found in (short_labels(alike), short_labels([*alike, *labels, "a" * 40, "b" * 40])):
        assert len(set(found)) == len(found)
        assert max(map(len, found)) <= 18


def test_every_chart_has_a_caption_and_words_for_those_who_cannot_see_it(parsed: Parsed) -> None:
    assert parsed.count("figure") == parsed.count("figcaption") == CHARTS
    drawings = [a for tag, a in parsed.tags if tag == "div" and (a.get("class") or "").startswith("drawing")]
    assert len(drawings) == parsed.count("svg") == CHARTS + NARROW
    assert all(a.get("role") == "img" and len(a.get("aria-label") or "") > 40 for a in drawings)
    assert parsed.count("table") == parsed.count("caption") == 12
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    sections = [a["id"] for tag, a in parsed.tags if tag == "section"]
    assert sections == ["summary", "budget", "who", "examples", "checks"]
    folded = [a["id"] for tag, a in parsed.tags if tag == "details" and "id" in a]
    assert folded == ["certificate", "frontier", "allocation", "rules", "model", "search", "log", "making", "glossary"]
    links = [a for tag, a in parsed.tags if tag == "a"]
    assert [(a["href"] or "")[1:] for a in links if a.get("class") != "term"] == sections
    for link in (a for a in links if a.get("class") == "term"):
        assert link["aria-describedby"] == (link["href"] or "")[1:] in ids


def test_labels_cannot_become_markup(page: str, parsed: Parsed) -> None:
    assert parsed.count("script") == 1
    assert HOSTILE not in page
    assert f"By city {HOSTILE}" in parsed.text
    assert HOSTILE in parsed.text.replace(f"city {HOSTILE}", "")


def test_descriptions_of_charts_are_valid_and_hold_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    specifications: list[dict[str, Any]] = []
    drawn: list[str] = []
    draw = vl_convert.vegalite_to_svg

    def watched(specification: dict[str, Any]) -> str:
        specifications.append(specification)
        drawn.append(draw(specification))
        return drawn[-1]

    monkeypatch.setattr(vl_convert, "vegalite_to_svg", watched)
    render_report(plan())
    assert len(specifications) == CHARTS + NARROW
    for specification, drawing in zip(specifications, drawn, strict=True):
        alt.Chart.from_json(json.dumps(specification, allow_nan=False))  # refuses what the schema does not know
        notes = {row["note"] for row in _rows(specification) if "note" in row}
        marks = {element.get("aria-label") for element in ElementTree.fromstring(drawing).iter()}
        assert notes
        assert notes <= marks


def _rows(part: Any) -> list[dict[str, Any]]:
    """Every row of data anywhere in a description."""
    if isinstance(part, list):
        return [row for entry in part for row in _rows(entry)]
    if not isinstance(part, dict):
        return []
    here = part["data"].get("values", []) if isinstance(part.get("data"), dict) else []
    named = [row for rows in part.get("datasets", {}).values() for row in rows]
    below = (row for name, entry in part.items() if name not in ("data", "datasets") for row in _rows(entry))
    return [*here, *named, *below]


def test_the_report_of_a_record_that_was_stored_is_the_same(page: str) -> None:
    stored = json.loads(json.dumps(to_plain(record()), allow_nan=False))
    assert render_report(plan(record=from_plain(FitRecord, stored, "the record"))) == page


@pytest.mark.parametrize("points", [1, 2])
def test_short_and_odd_frontiers_do_no_harm(points: int) -> None:
    odd = frontier(points).with_columns(pl.lit(None, dtype=pl.Float64).alias("reward_upper"))
    assert "Certified" in Parsed(render_report(plan(frontier=odd))).text


def test_figures_are_written_as_people_do() -> None:
    assert [number(value) for value in (1234567, 12345.6, 0.123456, -2.5, np.inf, None, np.nan)] == [
        "1,234,567",
        "12,346",
        "0.123",
        "−2.5",
        "∞",
        "–",
        "–",
    ]
    assert [signed(value) for value in (0.25, -0.25, 1e-17, None)] == ["+0.25", "−0.25", "0", "–"]


def test_marks_of_a_logarithmic_axis_are_round_and_few() -> None:
    assert round_marks(0.9, 60) == [1, 2, 5, 10, 20, 50]
    assert round_marks(0.002, 20_000) == [0.01, 0.1, 1, 10, 100, 1_000, 10_000]
    assert len(set(action_colours(12))) == 12


def test_the_page_stays_small(page: str) -> None:
    assert len(page.encode()) < 400_000


@pytest.mark.parametrize("scale", [1e-5, 15.0, 1e6])
def test_axes_are_written_without_exponents(scale: float) -> None:
    costs = [name for name in frontier().columns if "cost" in name]
    scaled = frontier().with_columns(pl.col(costs) * scale, dual=pl.col("dual") / scale)
    shown = re.findall(r">([^<>]*\d[eE][+−-]?\d[^<>]*)</text>", render_report(plan(frontier=scaled)))
    assert not shown

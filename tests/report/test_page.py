"""The page: whole, quiet on the network, and safe whatever labels say; see test_browser.py for how it is drawn."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import polars as pl
import pytest
import vl_convert

from redenvelope.audit.verdicts import verdicts
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.plan.plain import from_plain, to_plain
from redenvelope.plan.record import FitRecord, Source
from redenvelope.policies.pricing import Pricing
from redenvelope.report.audit_charts import overlap_chart
from redenvelope.report.certificate_section import certificate_section, unspent_sentence
from redenvelope.report.drawing import action_colours, round_marks, short_labels
from redenvelope.report.evidence_sections import log_section, model_section
from redenvelope.report.frontier_charts import search_chart
from redenvelope.report.markup import number, signed
from redenvelope.report.page import render_report
from redenvelope.report.plan_sections import making_section, search_section
from tests.report.plans import (
    CHARTS,
    HOSTILE,
    audit,
    certificate,
    compared,
    fidelity,
    frontier,
    plan,
    policy,
    record,
    search,
)


class Parsed(HTMLParser):
    """Tags, attributes, and the text that a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


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


def test_the_certificate_is_said_in_words(parsed: Parsed) -> None:
    first, _, rest = plan().certificate.sentence().partition(":")
    assert f"{first}: {rest.strip()}" in parsed.text
    assert "one more unit of budget a user buys about 0.0625 more reward" in parsed.text
    assert (
        "the plan earns 0.16 more a user (95% interval 0.06 to 0.26) and costs 4.19 less (−4.29 to −4.09)"
        in parsed.text
    )
    assert "less than what was logged" not in parsed.text


@pytest.mark.parametrize(
    ("reward", "cost", "sentence"),
    [
        (
            -0.5,
            -3.0,
            "The plan earns less than what was logged: 0.5 less a user (95% interval −0.6 to −0.4); it costs 3 less",
        ),
        (-0.5, -3.0, "The budget is below the 7.84 a user that was spent."),
        (-0.05, -3.0, "The plan may earn less, within chance, than what was logged: 0.05 less a user"),
        (-0.5, 0.2, "and costs 0.2 more: keep to what was logged."),
    ],
)
def test_a_plan_that_earns_less_than_the_log_says_so_at_the_top(reward: float, cost: float, sentence: str) -> None:
    beside = compared("plan", (1.0, 1.0), (cost, reward))
    no_gain = Reason("no_gain", Weight.WARNING, "the plan was no better than the log")
    other = Reason("clipped", Weight.WARNING, "some ratios were clipped")
    worse = plan(record=record(comparison=(beside,)), certificate=certificate(reasons=(no_gain, other)))
    shown = certificate_section(worse)
    assert sentence in Parsed(shown).text
    assert 'class="caution"' in shown[: shown.index('<dl class="figures">')]
    assert other.message in shown
    assert no_gain.message not in shown, "the caution says the same"


def test_a_reason_of_no_gain_is_told_where_no_caution_says_it() -> None:
    no_gain = Reason("no_gain", Weight.WARNING, "the plan was no better than the log")
    shown = certificate_section(plan(record=record(comparison=()), certificate=certificate(reasons=(no_gain,))))
    assert no_gain.message in shown
    assert "Beside what was logged" not in shown


def test_money_left_by_the_safety_margin_is_explained(parsed: Parsed) -> None:
    # The search aims at 3.5 of 4; the standard error of the cost is 0.15, so an interval reaches 0.29 to either side.
    assert "The plan aims at 3.5 and leaves 12% of the budget, to be safe" in parsed.text
    assert "3,020 users the cost is known to ± 0.29 (95 % interval)" in parsed.text
    assert unspent_sentence(plan(record=record(safety=False))) == ""
    assert unspent_sentence(plan(record=record(search=search(target=3.9)))) == ""
    assert unspent_sentence(plan(record=record(search=search(status="budget_slack")))) == ""
    assert unspent_sentence(plan(certificate=certificate(target_reward=2.5))) == ""


def test_a_mixture_of_prices_is_shown_as_deployed() -> None:
    mixed = Pricing(((0.05,), (0.25,)), (0.3, 0.7))
    deployed = plan(policy=policy(mixed), certificate=certificate(dual=0.25))
    expected = "Two prices are mixed, λ = 0.05 for 30% of the users and λ = 0.25 for 70% of the users"
    assert expected in Parsed(certificate_section(deployed)).text
    assert "price λ 0.05, 0.25" in Parsed(making_section(deployed)).text


def test_where_it_came_from_is_told_where_it_is_known(parsed: Parsed) -> None:
    assert "columns of the log" not in parsed.text
    source = Source("march.csv", "2024-04-01", {"user": "Kunde", "step": "step"}, ("id",))
    shown = Parsed(render_report(plan(record=record(source=source)))).text
    assert "redenvelope report · march.csv · 2024-04-01" in shown
    assert "log march.csv made on 2024-04-01 columns of the log user = Kunde columns left out id" in shown


def test_findings_name_their_place(parsed: Parsed) -> None:
    assert "log.csv, column city, lines 4, 10" in parsed.text


def test_the_audit_is_said_in_sentences(parsed: Parsed) -> None:
    for sentence in verdicts(audit()):
        assert sentence in parsed.text


def _across(mark: ElementTree.Element) -> float:
    """How far to the right a mark is drawn."""
    found = re.match(r"translate\(([\d.]+),", mark.get("transform") or "")
    assert found is not None
    return float(found[1])


def test_how_the_price_was_found_is_told_and_drawn_in_order_of_price(parsed: Parsed) -> None:
    assert "estimated in one pass over 500 users" in parsed.text
    assert "so that 4 holds with confidence: the price found spends 3.5 as estimated without it" in parsed.text
    assert "price λ cost a user reward a user 0 9 3 0.0625 4 2 ∞ 1 1" in parsed.text
    # Places in the drawing rise with the price, whatever the order they come in; with the budget they change colour.
    drawn = search_chart(search().points[::-1], budget=4.0)
    assert drawn is not None
    marks = [
        (_across(mark), mark.get("aria-label"), mark.get("fill"))
        for mark in ElementTree.fromstring(drawn.wide).iter()
        if mark.get("aria-roledescription") == "point"
    ]
    assert [label for _, label, _ in marks] == [
        f"λ {dual}: cost {cost}, reward {reward}" for dual, cost, reward in ((0, 9, 3), (0.0625, 4, 2), ("∞", 1, 1))
    ]
    assert marks == sorted(marks, key=lambda mark: mark[0])
    above, *within = (colour for _, _, colour in marks)
    assert within == [within[0]] * 2
    assert above != within[0]


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
    assert len(drawings) == parsed.count("svg") == CHARTS + 1
    assert all(a.get("role") == "img" and len(a.get("aria-label") or "") > 40 for a in drawings)
    assert parsed.count("table") == parsed.count("caption") == 10
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = {(a["href"] or "")[1:] for tag, a in parsed.tags if tag == "a"}
    assert links <= set(ids)


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
    assert len(specifications) == CHARTS + 1
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


def test_a_refused_plan_says_so_and_why() -> None:
    reasons = (
        Reason("thin_overlap", Weight.REFUSAL, f"overlap is thin at {HOSTILE}"),
        Reason("heavy_weight", Weight.WARNING, "one user carries 8 % of all weight"),
    )
    parsed = Parsed(certificate_section(plan(certificate=certificate(status="refused", reasons=reasons))))
    assert "Refused: overlap is thin" in parsed.text
    assert parsed.text.count("overlap is thin") == 1
    assert reasons[1].message in parsed.text
    assert any(a.get("class") == "verdict refused" for _, a in parsed.tags)
    assert not any(a.get("class") == "verdict certified" for _, a in parsed.tags)


@pytest.mark.parametrize(
    ("dual", "sentence"),
    [(0.0, "one more unit of it buys no more reward"), (np.inf, "the plan saves whatever can be saved")],
)
def test_the_ends_of_the_price_are_explained(dual: float, sentence: str) -> None:
    assert sentence in Parsed(certificate_section(plan(certificate=certificate(dual=dual)))).text


def test_what_the_record_lacks_is_left_out() -> None:
    trusted = Parsed(model_section(plan(record=record(fidelity=replace(fidelity(), roll_outs=())))))
    assert "it is trusted to plan ahead" in trusted.text
    assert trusted.count("figure") == 2
    assert trusted.count("table") == trusted.count("li") == 0
    quiet = Parsed(log_section(plan(record=record(audit=replace(audit(), findings=())))))
    assert "The audit has no findings." in quiet.text
    assert quiet.count("table") == 2
    assert overlap_chart(replace(audit(), overlap=())) is None
    untabled = Parsed(search_section(plan(record=record(search=search(target=4.0, made_monotone_by=0.0, points=())))))
    assert untabled.count("figure") == untabled.count("table") == 0
    assert untabled.count("li") == 2


def test_an_action_that_was_never_logged_has_no_point() -> None:
    never = replace(audit().actions[0], reward=replace(audit().actions[0].reward, estimate=np.nan))
    shown = log_section(plan(record=record(audit=replace(audit(), actions=(never, *audit().actions[1:])))))
    assert 'aria-label="nothing: cost' not in shown
    assert 'aria-label="nothing: cost' in log_section(plan())


def test_the_report_of_a_record_that_was_stored_is_the_same(page: str) -> None:
    stored = json.loads(json.dumps(to_plain(record()), allow_nan=False))
    assert render_report(plan(record=from_plain(FitRecord, stored, "the record"))) == page


@pytest.mark.parametrize("points", [1, 2])
def test_short_and_odd_frontiers_do_no_harm(points: int) -> None:
    odd = frontier(points).with_columns(pl.lit(None, dtype=pl.Float64).alias("reward_upper"))
    assert "Certified" in Parsed(render_report(plan(frontier=odd))).text


def test_other_budgets_are_read_off_the_frontier(parsed: Parsed) -> None:
    # The frontier is √cost at 8 costs; between two of them mixing earns a straight line.
    costs = np.linspace(1, 9, 8)
    earned = float(np.interp(4.4, costs, np.sqrt(costs)))
    difference = earned - float(np.interp(4.0, costs, np.sqrt(costs)))
    assert f"+10% 4.4 {earned:.4g} +{difference:.3g}" in parsed.text


def test_figures_are_written_as_people_do() -> None:
    assert [number(value) for value in (1234567, 12345.6, 0.123456, -2.5, np.inf, None, np.nan)] == [
        "1,234,567",
        "12,346",
        "0.1235",
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

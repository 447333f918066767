"""What each section says, and what it leaves out."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from redenvelope.audit.audit import verdicts
from redenvelope.audit.effects import Mean
from redenvelope.dual.solution import DualStatus
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.plan.fixed_sequence_test import Stop
from redenvelope.plan.ladder import Place
from redenvelope.policies.pricing import Pricing
from redenvelope.report.frontier_charts import ladder_chart
from redenvelope.report.page import render_report
from redenvelope.report.sections import (
    action_chart,
    log_section,
    making_section,
    model_section,
    overlap_chart,
    search_section,
)
from redenvelope.report.summary import certificate_section, summary_section, unspent_sentence
from tests.report.parsed import Parsed
from tests.report.plans import HOSTILE, audit, certificate, compared, fidelity, ladder, plan, policy, record


@pytest.fixture(scope="module")
def parsed() -> Parsed:
    return Parsed(render_report(plan()))


def test_the_certificate_is_said_in_words(parsed: Parsed) -> None:
    first, _, rest = plan().certificate.sentence().partition(":")
    assert f"{first}: {rest.strip()}" in parsed.text
    assert "one more unit of budget per user buys about 0.0625 more reward" in parsed.text
    assert (
        "the plan earns 0.16 more per user (95% interval 0.06 to 0.26) and costs 4.19 less (−4.29 to −4.09)"
        in parsed.text
    )
    assert "less than what was logged" not in parsed.text


@pytest.mark.parametrize(
    ("reward", "cost", "sentence"),
    [
        (
            -0.5,
            -3.0,
            "The plan earns less than what was logged: 0.5 less per user (95% interval −0.6 to −0.4); it costs 3 less",
        ),
        (-0.5, -3.0, "The budget is below the 7.84 per user that was spent."),
        (-0.05, -3.0, "The plan may earn less, within chance, than what was logged: 0.05 less per user"),
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
    assert 'class="caution"' in shown
    assert 'class="verdict good"' not in shown + summary_section(worse), "within the budget is no approval"
    assert other.message in shown
    assert no_gain.message not in shown, "the caution says the same"


def test_a_reason_of_no_gain_is_told_where_no_caution_says_it() -> None:
    no_gain = Reason("no_gain", Weight.WARNING, "the plan was no better than the log")
    shown = certificate_section(plan(record=record(comparison=()), certificate=certificate(reasons=(no_gain,))))
    assert no_gain.message in shown
    assert "Beside what was logged" not in shown


def test_money_that_is_left_is_explained(parsed: Parsed) -> None:
    # The estimate is 3.65 of 4, the bound 3.9.
    assert "The plan leaves 9% of the budget, because its cost is uncertain" in parsed.text
    assert "on 3,020 users it may be 0.25 more than estimated, with 95% confidence" in parsed.text
    nearly = certificate(cost=Estimate(3.9, 3.8, 4.0, 0.06, "marginalised"))
    assert unspent_sentence(plan(certificate=nearly)) == ""
    slack = Stop(Place(2), DualStatus.BUDGET_SLACK, holds=True)
    assert unspent_sentence(plan(record=record(stop=slack))) == ""
    nowhere = Stop(Place(0), DualStatus.CONVERGED, holds=False)
    assert unspent_sentence(plan(record=record(stop=nowhere))) == ""
    assert unspent_sentence(plan(certificate=certificate(target_reward=2.5))) == ""


def test_a_mixture_of_prices_is_shown_as_deployed() -> None:
    mixed = Pricing(((0.05,), (0.25,)), (0.3, 0.7))
    deployed = plan(policy=policy(mixed), certificate=certificate(dual=0.25))
    expected = "Two prices are mixed, λ = 0.05 for 30% of the users and λ = 0.25 for 70% of the users"
    assert expected in Parsed(certificate_section(deployed)).text
    assert "price λ 0.05, 0.25" in Parsed(making_section(deployed)).text
    several = plan(policy=policy(Pricing(((0.05, 7.0), (0.25, 8.0)), (0.3, 0.7))))
    assert "price λ 0.05 and 7; 0.25 and 8" in Parsed(making_section(several)).text


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
    assert "3 prices were put in order before the 500 check users were looked at" in parsed.text
    assert "90% of the users, drawn once each, follow the cheaper price" in parsed.text
    # Of 500 users with a spread of 2, 1.645 standard errors are 0.147; of rewards with a spread of 1, half of that.
    assert "cheapest 1 1.147 1 0.926 0.0625 4 4.147 2 1.926 0 9 9.147 3 2.926" in parsed.text
    drawn = ladder_chart(ladder(), range(3), certificate())
    assert drawn is not None
    marks = [
        (_across(mark), mark.get("aria-label"), mark.get("fill"))
        for mark in ElementTree.fromstring(drawn.wide).iter()
        if mark.get("aria-roledescription") == "point"
    ]
    assert [label for _, label, _ in marks] == [
        f"λ {dual}: {cost}, bound {bound}"
        for dual, cost, bound in ((0, 9, 9.147), (0.0625, 4, 4.147), ("cheapest", 1, 1.147))
    ]
    assert marks == sorted(marks, key=lambda mark: mark[0]), "places rise with the price"
    first, second, last = (colour for _, _, colour in marks)
    assert first == second != last, "only the bound of the cheapest is within the budget of 4"


def test_the_cheapest_plan_for_a_reward_is_told_by_its_reward() -> None:
    asked = plan(certificate=certificate(target_reward=1.9, budget=4.2))
    shown = Parsed(search_section(asked)).text
    assert (
        "From the dearest plan down, each was tested on them: is the reward at least 1.9, with 95% confidence?" in shown
    )
    assert "before the first bound below the dotted line, 1.9 per user" in shown


def test_prices_that_were_stepped_over_are_told() -> None:
    doubt = Reason("thin_overlap", Weight.REFUSAL, "too few")
    rungs = tuple(replace(rung, reasons=(doubt,)) for rung in ladder().rungs[:2]) + ladder().rungs[2:]
    assert "2 of the prices were stepped over" in Parsed(search_section(plan(ladder=ladder(rungs=rungs)))).text


def test_a_refused_plan_says_so_and_why() -> None:
    reasons = (
        Reason("thin_overlap", Weight.REFUSAL, f"overlap is thin at {HOSTILE}"),
        Reason("heavy_weight", Weight.WARNING, "one user carries 8 % of all weight"),
    )
    parsed = Parsed(certificate_section(plan(certificate=certificate(status="refused", reasons=reasons))))
    assert "Refused: overlap is thin" in parsed.text
    assert parsed.text.count("overlap is thin") == 1
    assert reasons[1].message in parsed.text
    assert any(a.get("class") == "verdict bad" for _, a in parsed.tags)


@pytest.mark.parametrize(
    ("dual", "sentence"),
    [(0.0, "one more unit of it buys no more reward"), (np.inf, "The plan saves whatever can be saved")],
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


def test_an_action_that_was_never_logged_is_not_drawn() -> None:
    unknown = Mean.of(np.nan, np.nan)
    first, *others = audit().actions
    never = replace(audit(), actions=(replace(first, rows=0, reward=unknown, cost=unknown), *others))
    assert action_chart(never) == action_chart(replace(audit(), actions=tuple(others)))
    assert "nothing 0 – – to – – – to – 1.01" in Parsed(log_section(plan(record=record(audit=never)))).text

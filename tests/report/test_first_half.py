"""What whoever pays reads: headline, paragraph, budgets, groups and examples, against figures known by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from redenvelope import Budget, Plan, render_report
from redenvelope.dual.paths import ladder_path
from redenvelope.dual.solution import BudgetStatus
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.plan.certificate import BudgetFigure
from redenvelope.plan.fixed_sequence_test import climb
from redenvelope.plan.ladder import MixableSums, Mixtures, new_ladder
from redenvelope.plan.money import Money
from redenvelope.plan.record import PricedPlan
from redenvelope.plan.reprice import believed_plans, budget_points, ladder_for, path_frontiers
from redenvelope.report.budget_slider import break_even, budget_section
from redenvelope.report.page import linked
from redenvelope.report.summary import outlook, summary_section
from redenvelope.report.who_gets_what import examples_section, who_section
from tests.report.parsed import Parsed
from tests.report.plans import certificate, compared, ladder, plan, record

EUROS = Money("EUR", 50_000, 10.0)


def beside(reward: float, cost: float, **changes: Any) -> Plan:
    """A plan that differs from the log by so much, each known to ± 0.1."""
    return plan(record=record(comparison=(compared("plan", (1.0, 1.0), (cost, reward)),), **changes))


@pytest.mark.parametrize(
    ("reward", "cost", "kind", "headline"),
    [
        (0.5, -3.0, "good", "Earns more than today, for less money"),
        (0.5, 3.0, "good", "Earns more than today, for more money"),
        (0.5, 0.05, "good", "Earns more than today, for about the same money"),
        (-0.5, -3.0, "caution", "Keeps to the budget, but earns less than today"),
        (-0.5, 3.0, "caution", "Keeps to the budget, but earns less than today"),
        (0.05, -3.0, "good", "Costs less than today and earns about the same"),
        (-0.05, -3.0, "caution", "Costs less than today, and may earn less"),
        (0.05, 0.05, "caution", "Keeps to the budget, but is not shown to earn more than today"),
    ],
)
def test_the_headline_weighs_the_plan_against_today(reward: float, cost: float, kind: str, headline: str) -> None:
    seen = outlook(beside(reward, cost))
    assert (seen.kind, seen.headline) == (kind, headline)


def test_what_a_reward_is_worth_decides_where_it_is_known() -> None:
    assert outlook(beside(0.5, 3.0, money=Money("EUR", None, 1.0))).kind == "caution"
    assert outlook(beside(0.5, 3.0, money=Money("EUR", None, 100.0))).kind == "good"
    assert outlook(beside(-0.5, -3.0, money=Money("EUR", None, 1.0))).kind == "good"
    shown = Parsed(summary_section(beside(0.5, 3.0, money=EUROS))).text
    # 10 a unit: 0.5 are worth 5 and cost 3; at worst 0.4 are worth 4 and cost 3.1.
    assert "At 10.00 EUR a unit of reward, the change is worth 2.00 EUR per user more than it costs" in shown
    assert "100,000 EUR in all (between 0.90 EUR and 3.10 EUR per user)" in shown


def test_a_refusal_is_never_an_approval() -> None:
    doubt = Reason("thin_overlap", Weight.REFUSAL, "overlap is thin")
    refused = plan(certificate=certificate(status="refused", reasons=(doubt,)))
    assert outlook(refused).kind == "bad"
    shown = Parsed(summary_section(refused)).text
    assert "Do not roll it out on this evidence. Overlap is thin." in shown
    assert "stays below" not in shown and "% sure" not in shown


@pytest.mark.parametrize(("lower", "upper", "kind"), [(2.9, 3.1, "good"), (2.0, 2.5, "caution"), (2.5, 3.1, "caution")])
def test_without_a_comparison_the_estimate_stands_beside_today(lower: float, upper: float, kind: str) -> None:
    given = certificate(reward=Estimate((lower + upper) / 2, lower, upper, 0.1, "marginalised"))  # 2.81 was logged
    assert outlook(plan(certificate=given, record=record(comparison=()))).kind == kind


def test_sums_are_told_a_user_and_in_all() -> None:
    text = Parsed(summary_section(plan(record=record(money=EUROS)))).text
    assert "costs about 3.65 EUR per user, 0.35 EUR below the budget of 4.00 EUR" in text
    assert "for 50,000 users, 182,500 EUR of 200,000 EUR, 17,500 EUR stay unspent" in text
    assert "It earns 2.97 reward per user, 148,500 in all; that is 0.16 (8,000 in all) more than today" in text
    assert "for 4.19 EUR (209,500 EUR in all) less" in text
    alone = Parsed(summary_section(plan())).text
    assert "in all" not in alone and "EUR" not in alone
    assert "costs about 3.65 per user, 0.35 below the budget of 4" in alone
    asked = plan(certificate=certificate(target_reward=2.5), record=record(money=EUROS))
    assert "to reach 2.5 reward: for 50,000 users, 182,500 EUR." in Parsed(summary_section(asked)).text


def test_other_budgets_are_what_the_ladder_certifies() -> None:
    # Bounds of the three rungs are 1.147, 4.147 and 9.147 (see `ladder`); prices ∞, 0.0625 and 0.
    stop = climb(ladder(), [4.0], 0.95)
    reward, cost = ladder().figures(stop.place, 0.95)
    assert cost.upper == pytest.approx(4.0, abs=0.02)
    points = tuple(budget_points(plan(certificate=certificate(cost=cost, reward=reward))))
    assert points[0].budget == pytest.approx(1.147, abs=1e-3)
    assert points[-1].budget == pytest.approx(9.147, abs=1e-3)
    own = next(point for point in points if point.budget == 4.0)
    assert (own.cost, own.reward) == pytest.approx((cost.estimate, reward.estimate))
    for point in points:
        # Between two rungs the cost and the reward of their plans are mixed: 1 for 3 up to the second, then 1 for 5.
        assert point.cost <= point.budget
        assert point.reward == pytest.approx(np.interp(point.cost, [1, 4, 9], [1, 2, 3]))
        # Below the second rung one more unit buys at least its price; nobody knows more.
        expected = 0.0625 if point.cost < 9 else 0.0
        assert point.price == expected or point is own
    # A unit of reward is worth 32: the last unit pays as long as its price is 1/32.
    limit = break_even(points, 32.0)
    assert limit is not None and 4.147 < limit < 9.147
    assert break_even(points[-1:], 32.0) is None


def test_the_slider_holds_what_it_shows() -> None:
    shown = Parsed(budget_section(plan(record=record(money=replace(EUROS, value_per_reward=32.0)))))
    (slider,) = (a for _, a in shown.tags if a.get("class") == "slider")
    rows = json.loads(slider["data-points"] or "")
    (knob,) = (a for tag, a in shown.tags if tag == "input")
    assert int(knob["max"] or "") == len(rows) - 1
    own = rows[int(knob["value"] or "")]
    assert own["cells"][0] == "4.00 EUR\n200,000 EUR in all"
    assert own["cells"][3] == "this plan"
    assert knob["aria-valuetext"] == own["said"] == "4.00 EUR per user, expected reward 2.97"
    assert "money brings back more than itself up to a budget of about" in shown.text
    assert "Yours is below it." in shown.text
    assert "4.00 EUR (this plan)" in shown.text


def test_where_no_other_budget_can_be_told_the_curve_stands_alone() -> None:
    doubt = Reason("thin_overlap", Weight.REFUSAL, "too few")
    rungs = tuple(replace(rung, reasons=(doubt,)) for rung in ladder().rungs)
    shown = Parsed(budget_section(plan(ladder=ladder(rungs=rungs))))
    assert shown.count("input") == shown.count("table") == 0
    assert shown.count("figure") == 1


def test_groups_and_examples_are_said_in_words() -> None:
    shown = Parsed(who_section(plan(record=record(money=EUROS)))).text
    assert "and active is yes (25% of users) get" in shown
    assert "for 2.00 EUR each." in shown
    assert "These groups explain 80% of the differences" in shown
    # The two steps cost 1 and 2 in the situations as logged, and 3.65 in all.
    assert "step 0 1.22 EUR 60,830 EUR 33% 3.00 EUR step 1 2.43 EUR 121,700 EUR 67% 3.00 EUR" in shown
    told = Parsed(examples_section(plan())).text
    assert "would earn 0.1 more and cost 3 more; with other users that money earns 0.19." in told
    assert "nothing would save 1 and earn 0.2 less; with other users the saving earns only 0.062." in told


def test_a_repriced_plan_says_what_it_does_not_know() -> None:
    again = plan(record=record(shares=None, comparison=()))
    assert "was not computed again" in Parsed(who_section(again)).text
    assert examples_section(again) == ""
    assert "#examples" not in render_report(again)


def test_a_word_is_explained_once_and_never_inside_of_a_link() -> None:
    found = linked('<p>The price λ and the price.</p><svg><text>price</text></svg><p aria-hidden="true">overlap</p>')
    assert found.count("<a ") == 1
    assert '<a class="term" href="#term-price" aria-describedby="term-price">price λ</a>' in found
    assert "<text>price</text>" in found and ">overlap</p>" in found


def several() -> Plan:
    """A plan with two budgets, mixed of four plans, each known to a standard error of about 0.04 (2,500 users): money
    earns 0.5, a push 0.7 until 1.5 are sent."""
    rng = np.random.default_rng(0)
    outcomes = np.array([[1.0, 2.5, 2.05, 3.55], [0.0, 3.0, 0.0, 3.0], [0.0, 0.0, 1.5, 1.5]])
    added = rng.normal(outcomes[:, None], 0.2, size=(3, 2_500, 4))
    prices = ((9.0, 9.0), (0.1, 9.0), (9.0, 0.1), (0.1, 0.1))
    means = added.mean(axis=1).T.tolist()
    priced = tuple(
        PricedPlan(row, tuple(mean), tuple(own))
        for row, mean, own in zip(prices, means, outcomes.T.tolist(), strict=True)
    )
    sums, limits = MixableSums.of(added), np.array([2.0, 1.0])
    path = ladder_path(believed_plans(priced), limits, 12)
    mixtures = Mixtures(np.array(prices), path.shares, path.duals)
    mixed = sums.mixed(added.mean(axis=1), path.shares, 2_500)
    made = new_ladder(path.duals, mixed, [()] * len(path), [{}] * len(path), "marginalised", (), mixtures)
    stop = climb(made, limits.tolist(), 0.95)
    reward, *costs = made.figures(stop.place, 0.95)
    figures = tuple(
        BudgetFigure(name, limit, cost, dual, BudgetStatus.BINDING, limit)
        for name, limit, cost, dual in zip(
            ("money", "pushes"), limits.tolist(), costs, made.duals(stop.place), strict=True
        )
    )
    asked = (Budget("money", per_user=2.0), Budget("pushes", count=("push",), per_user=1.0))
    own = record(
        money=replace(EUROS, value_per_reward=3.0), budgets=asked, priced=priced, sums=sums, stop=stop, comparison=()
    )
    return plan(
        certificate=certificate(budgets=figures, reward=reward),
        record=own,
        ladder=made,
        frontier=path_frontiers(priced, sums, 2_500, limits, ("money", "pushes"), 0.95),
    )


def test_each_of_several_budgets_moves_while_the_others_are_kept() -> None:
    made = several()
    held = {each.name: each.budget for each in made.certificate.budgets}
    for own, worth in zip(made.certificate.budgets, (0.5, 0.7), strict=True):
        points = tuple(budget_points(made, own))
        assert len(points) > 10
        assert all(point.cost <= point.budget for point in points)
        mine = next(point for point in points if point.budget == own.budget)
        assert (mine.cost, mine.price) == (own.cost.estimate, own.dual)
        # What more of it buys is known exactly, and estimated with an error of 0.01 or so.
        for point in points:
            gained = worth * (point.cost - mine.cost)
            assert point.reward - mine.reward == pytest.approx(gained, abs=0.05)
            limits = [point.budget if name == own.name else limit for name, limit in held.items()]
            found = ladder_for(made, limits)
            figures = found.figures(climb(found, limits, 0.95).place, 0.95)
            assert [figure.upper <= limit for figure, limit in zip(figures[1:], limits, strict=True)] == [True, True]
        # The other budget is not cut: it is spent as before.
        wide = ladder_for(made, limits)
        other = 1 + (own.name == "money")
        spent = wide.figures(climb(wide, limits, 0.95).place, 0.95)[other].estimate
        assert spent == pytest.approx([2.0, 1.0][other - 1], abs=0.05)


def test_each_of_several_budgets_has_a_slider_by_its_name() -> None:
    shown = Parsed(budget_section(several()))
    sliders = [a for _, a in shown.tags if a.get("class") == "slider"]
    knobs = [a for tag, a in shown.tags if tag == "input"]
    assert [a["id"] for a in knobs] == ["budget-slider-0", "budget-slider-1"]
    assert [a["data-chart"] for a in sliders] == ["budget-chart-0", "budget-chart-1"]
    assert {a.get("id") for tag, a in shown.tags if tag == "figure"} >= {"budget-chart-0", "budget-chart-1"}
    assert "Try another budget for money" in shown.text and "pushes, the others held" in shown.text
    own = [json.loads(a["data-points"] or "")[int(b["value"] or "")] for a, b in zip(sliders, knobs, strict=True)]
    assert own[0]["cells"][0] == "2.00 EUR\n100,000 EUR in all"
    assert own[1]["cells"][0] == "1\n50,000 in all"  # pushes are no money
    assert shown.text.count("brings back") == 2, "of money alone"

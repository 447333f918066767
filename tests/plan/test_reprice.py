"""Another budget from the same plan: the certificate that a fit for that budget would have given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from redenvelope import Cache, FiniteCampaign, FitSettings, Log, Plan, UsageError, fit, render_report
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.plan.reprice import reprice
from tests.program import run_here
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK, true_value


def test_it_is_the_plan_that_a_fit_would_have_made(plan: Plan, log: Log, stages: Path) -> None:
    again = reprice(plan, budget=2.5)
    with quick_programs():  # those that the plan was made with: others round differently
        whole = fit(log, budget=2.5, settings=FitSettings(neural=QUICK), cache=Cache(stages))
    assert again.policy.pricing == whole.policy.pricing
    assert again.certificate.cost == whole.certificate.cost
    assert again.certificate.reward == whole.certificate.reward
    assert again.certificate.policy_sha256 == whole.certificate.policy_sha256
    assert {reason.rule for reason in again.certificate.reasons} == {"repriced"} | {
        reason.rule for reason in whole.certificate.reasons
    }
    # Back to the first budget, the first certificate.
    assert reprice(again, budget=BUDGET).certificate.cost == plan.certificate.cost


def test_what_it_promises_holds_in_truth(plan: Plan, campaign: FiniteCampaign) -> None:
    for budget in (2.2, 2.6, 3.2):
        again = reprice(plan, budget=budget)
        truth = true_value(campaign, again)
        assert again.certificate.is_certified
        assert truth.cost <= budget
        assert truth.reward >= 0.98 * campaign.optimum(truth.cost).reward
    asked = reprice(plan, target_reward=4.2)
    assert asked.certificate.is_certified
    assert true_value(campaign, asked).reward >= 4.2
    assert asked.certificate.budget == asked.certificate.cost.upper


def test_bounds_for_all_prices_are_wider_but_not_as_wide_as_many_single_ones(plan: Plan) -> None:
    one, all_of_them = reprice(plan, budget=2.5), reprice(plan, budget=2.5, for_all_prices=True)
    assert all_of_them.certificate.cost.upper <= 2.5
    assert all_of_them.certificate.cost.estimate < one.certificate.cost.estimate
    assert "repriced" not in {reason.rule for reason in all_of_them.certificate.reasons}
    each = plan.ladder.each_confidence(0.95)
    assert 0.95 < each < 1 - 0.05 / (2 * len(plan.ladder.rungs)), "Bonferroni over rewards and costs of all rungs"
    with pytest.raises(UsageError, match=re.escape("known for a confidence of 0.8, 0.9, 0.95, 0.99, not of 0.97")):
        reprice(plan, budget=2.5, confidence=0.97, for_all_prices=True)


def test_more_confidence_spends_less(plan: Plan) -> None:
    costs = [reprice(plan, budget=2.6, confidence=level).certificate.cost.estimate for level in (0.8, 0.95, 0.99)]
    assert costs[0] > costs[1] > costs[2]


def test_a_budget_that_no_plan_meets_is_refused(plan: Plan) -> None:
    refused = reprice(plan, budget=0.5)
    assert not refused.certificate.is_certified
    assert "no plan is as cheap as the budget of 0.5" in refused.certificate.sentence()
    assert np.isinf(refused.policy.pricing.prices[0][0]), "the cheapest plan"
    assert 0 < refused.dual < np.inf, "what more budget buys at least"
    for wrong in (
        {},
        {"budget": 1.0, "target_reward": 1.0},
        {"budget": float("nan")},
        {"budget": 1.0, "confidence": 2},
    ):
        with pytest.raises(UsageError):
            reprice(plan, **wrong)


def test_a_refusal_never_calls_a_bound_too_high_that_is_within_the_budget(plan: Plan) -> None:
    """The cheapest plans may keep the budget and be refused all the same, because too few users were like them."""
    thin = Reason("thin_overlap", Weight.REFUSAL, "overlap is thin: too few")
    rungs = tuple(replace(rung, reasons=(thin,)) if place < 8 else rung for place, rung in enumerate(plan.ladder.rungs))
    budget = float(plan.ladder.bounds(plan.certificate.confidence)[1][1, 4])
    refused = reprice(replace(plan, ladder=replace(plan.ladder, rungs=rungs)), budget=budget).certificate
    assert {reason.rule for reason in refused.reasons} >= {"over_budget", "thin_overlap"}
    (said,) = re.findall(r"at most ([\d.]+) at 95% confidence, above the budget of ([\d.]+)", refused.sentence())
    assert float(said[0]) > float(said[1])


def test_it_is_written_opened_and_reported_without_the_log(plan: Plan, tmp_path: Path) -> None:
    again = reprice(plan, budget=2.5)
    again.save(tmp_path / "plan", {"report.html": render_report(again).encode()})
    opened = Plan.load(tmp_path / "plan")
    assert opened.certificate == again.certificate
    assert opened.ladder == plan.ladder
    assert "who gets what was not computed again" in (tmp_path / "plan" / "report.html").read_text()
    assert reprice(opened, budget=2.7).certificate == reprice(plan, budget=2.7).certificate


def test_a_plan_that_leaves_most_of_a_budget_that_would_earn_more_is_no_success(plan: Plan, tmp_path: Path) -> None:
    """Of all plans but the cheapest nothing reliable is known: the plan is certified, and does next to nothing."""
    thin = Reason("thin_overlap", Weight.REFUSAL, "overlap is thin: 12 effective users")
    first, *others = plan.ladder.rungs
    rungs = (first, *(replace(rung, reasons=(thin,)) for rung in others))
    poor = replace(plan, ladder=replace(plan.ladder, rungs=rungs))
    limit = 2.2 * first.mean[1]
    again = reprice(poor, budget=limit)
    told = again.certificate
    assert told.is_certified
    assert told.is_under_spent
    assert told.sentence().startswith("Certified, but uses only 45% of its budget: on ")
    message = next(reason.message for reason in told.reasons if reason.rule == "under_spent")
    assert "overlap is thin: 12 effective users" in message
    assert "What helps: a log of more users" in message
    assert 0 < told.dual < np.inf
    page = render_report(again)
    assert "leaves most of it unspent" in page
    assert "∞" not in page
    assert not reprice(poor, budget=1.9 * first.mean[1]).certificate.is_under_spent, "more than half of it is used"
    rich = reprice(plan, budget=10 * plan.ladder.means[1].max()).certificate
    assert not rich.is_under_spent, "no plan can use more of it"
    poor.save(tmp_path / "poor", {})
    for asked, code in ((limit, 4), (limit / 1.2, 0)):
        done = run_here("reprice", tmp_path / "poor", "--budget", asked, "--out", tmp_path / "new")
        assert done.returncode == code

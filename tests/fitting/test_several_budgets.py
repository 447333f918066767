"""A plan for two budgets on the two-step problem, whose truth under both is exact: made, stored, repriced and used."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import (
    Budget,
    Campaign,
    Decider,
    FiniteCampaign,
    FiniteProblem,
    FitSettings,
    Log,
    Plan,
    PlanError,
    UsageError,
    evaluate_plan,
    fit,
    linear_program,
    log_from_frame,
    render_report,
)
from redenvelope.dual.solution import BudgetStatus
from redenvelope.finite.problem import evaluate
from redenvelope.plan.reprice import BudgetPoint, answer, budget_point, budget_points, reprice
from redenvelope.plan.storage import FORMAT
from tests.adversary.signed import sign
from tests.quick_programs import quick_programs
from tests.two_step_plan import QUICK

COUNTED = ("a2", "a3")
LIMITS = (2.9, 0.75)
CAMPAIGN = Campaign(
    budgets=(
        Budget("coupons", total=LIMITS[0] * 10_000, audience=10_000),
        Budget("large ones", count=COUNTED, per_user=LIMITS[1]),
    )
)


@pytest.fixture(scope="module")
def two_budgets(campaign: FiniteCampaign) -> FiniteProblem:
    """The problem with the cost of both."""
    problem = campaign.problem
    counted = np.broadcast_to(np.isin(campaign.actions, COUNTED), problem.rewards.shape).astype(float)
    return replace(problem, costs=np.stack([problem.costs[0], counted]))


@pytest.fixture(scope="module")
def several(log: Log) -> Plan:
    with quick_programs():
        return fit(log, campaign=CAMPAIGN, settings=FitSettings(neural=QUICK, explore=0.0, history="none"))


def truth(campaign: FiniteCampaign, problem: FiniteProblem, plan: Plan) -> np.ndarray:
    """Reward and costs of a plan, exactly."""
    wide = replace(campaign, problem=problem)
    shares = plan.policy.pricing.shares
    found = [wide.value(partial(plan.policy.probabilities, row=row)).outcomes for row in range(len(shares))]
    return np.asarray(np.array(shares) @ np.array(found))


def test_both_budgets_are_certified_and_kept_in_truth(
    campaign: FiniteCampaign, two_budgets: FiniteProblem, several: Plan
) -> None:
    certificate = several.certificate
    assert certificate.is_certified
    first, second = certificate.budgets
    assert (first.name, second.name) == ("coupons", "large ones")
    assert (certificate.budget, certificate.cost, certificate.dual) == (first.budget, first.cost, first.dual)
    assert [each.budget for each in certificate.budgets] == pytest.approx(LIMITS)
    assert all(each.cost.upper <= each.budget for each in certificate.budgets)
    assert "keeps all 2 budgets" in certificate.sentence()
    assert first.total == pytest.approx(29_000) and second.total is None
    assert f"{first.unspent:,.0f} of 29,000 unspent" in first.sentence()
    reward, *costs = truth(campaign, two_budgets, several)
    assert (np.array(costs) <= LIMITS).all()
    optimum = linear_program(two_budgets, LIMITS)
    assert optimum.duals.min() > 0, "both bind, or this test says little"
    assert {each.status for each in certificate.budgets} == {BudgetStatus.BINDING}
    nothing = evaluate(two_budgets, np.eye(4)[np.zeros(two_budgets.states, dtype=int)])
    assert (reward - nothing.reward) / (optimum.reward - nothing.reward) > 0.8


def test_estimates_cover_the_truth_of_every_budget(
    campaign: FiniteCampaign, two_budgets: FiniteProblem, several: Plan
) -> None:
    _, *costs = truth(campaign, two_budgets, several)
    for each, cost in zip(several.certificate.budgets, costs, strict=True):
        # Two-sided at 95 %, of two figures: four standard errors leave no room for chance. A cost that an action always
        # has is known, and what is left is rounding.
        assert each.cost.estimate == pytest.approx(cost, abs=4 * each.cost.standard_error + 1e-6)


def _of_the_format_before(folder: Path, copy: Path) -> Plan:
    """The plan of a folder, written as before: the first budget's frontier without a name, and those of all budgets in
    a file of their own, by falling price and with the limit that each point was made for."""
    shutil.copytree(folder, copy)
    frontier = pl.read_parquet(copy / "frontier.parquet")
    limits = frontier.with_columns(pl.col("model_cost").alias("limit")).select("budget", "limit", *frontier.columns[1:])
    limits.reverse().sort("budget", maintain_order=True).write_parquet(copy / "frontiers.parquet")
    frontier.filter(budget="coupons").drop("budget").write_parquet(copy / "frontier.parquet")
    manifest = json.loads((copy / "plan.json").read_text())
    sign(copy, manifest | {"format": FORMAT - 1, "files": manifest["files"] | {"frontiers.parquet": ""}})
    return Plan.load(copy)


def test_it_is_stored_opened_and_repriced_by_name(several: Plan, tmp_path: Path) -> None:
    folder = several.save(tmp_path / "plan", {})
    opened = Plan.load(folder)
    assert opened.certificate == several.certificate
    assert opened.record.budgets == CAMPAIGN.budgets
    assert opened.frontier.equals(several.frontier)
    assert opened.frontier["budget"].unique(maintain_order=True).to_list() == ["coupons", "large ones"]
    assert _of_the_format_before(folder, tmp_path / "older").frontier.equals(several.frontier)
    less = reprice(opened, budget={"large ones": 0.4})
    assert less.certificate.is_certified
    assert [each.budget for each in less.certificate.budgets] == pytest.approx([LIMITS[0], 0.4])
    assert less.certificate.budgets[1].cost.upper <= 0.4
    assert less.certificate.budgets[0].total == pytest.approx(29_000)
    assert less.certificate.budgets[1].logged == several.certificate.budgets[1].logged
    plain = reprice(opened, budget=2.0, audience=500)
    assert [each.budget for each in plain.certificate.budgets] == pytest.approx([2.0, LIMITS[1]])
    assert plain.certificate.budgets[0].total == pytest.approx(1_000)
    assert plain.certificate.budgets[1].total == pytest.approx(375)
    again = Plan.load(less.save(tmp_path / "less", {}))
    assert again.certificate == less.certificate
    none = reprice(opened, budget={"coupons": 0.5, "large ones": 0.0})
    assert not none.certificate.is_certified
    assert "coupons would cost" in none.certificate.reasons[0].message
    with pytest.raises(UsageError, match="no budget 'pushes'; it has 'coupons', 'large ones'"):
        reprice(opened, budget={"pushes": 1.0})
    with pytest.raises(UsageError, match="the plan has 2 of them"):
        reprice(opened, target_reward=4.0)
    odd = replace(several, certificate=replace(several.certificate, budgets=several.certificate.budgets[:1]))
    with pytest.raises(PlanError, match="not as many as the ladder has costs"):
        Plan.load(odd.save(tmp_path / "odd", {}))


@pytest.mark.parametrize(("name", "limit"), [("large ones", 0.4), ("coupons", 3.1)])
def test_one_budget_moves_and_the_others_are_kept(
    name: str, limit: float, campaign: FiniteCampaign, two_budgets: FiniteProblem, several: Plan
) -> None:
    again = reprice(several, budget={name: limit})
    place = ("coupons", "large ones").index(name)
    before, after = ([each.cost.estimate for each in own.certificate.budgets] for own in (several, again))
    assert again.certificate.is_certified
    assert abs(after[place] - limit) < 0.05, "it is moved"
    assert after[1 - place] > 0.95 * before[1 - place], "and the other is spent as before"
    # Every surface says the same of it.
    own = next(each for each in several.certificate.budgets if each.name == name)
    point, moved = budget_point(several, own, limit), again.certificate.budgets[place]
    assert point == BudgetPoint(limit, moved.cost.estimate, again.certificate.reward.estimate, moved.dual)
    (asked,) = answer(several, {name: limit}, None)["budgets"][place]["at"]
    assert (asked["cost"], asked["reward"], asked["shadow_price"]) == (point.cost, point.reward, point.price)
    # And it is true: within both limits, and near the best that they allow.
    reward, *costs = truth(campaign, two_budgets, again)
    limits = [limit if each.name == name else each.budget for each in several.certificate.budgets]
    assert (np.array(costs) <= limits).all()
    assert reward > 0.9 * linear_program(two_budgets, limits).reward


def test_no_place_of_a_slider_costs_more_than_its_budget(several: Plan) -> None:
    for own in several.certificate.budgets:
        points = list(budget_points(several, own))
        assert len(points) > 5
        assert all(point.cost <= point.budget for point in points)
    assert "reprice --budget &#x27;large ones=…&#x27;" in render_report(several)


def test_another_log_is_asked_about_every_budget(campaign: FiniteCampaign, several: Plan) -> None:
    newer = log_from_frame(campaign.log(6_000, seed=9))
    content = evaluate_plan(several, newer, 0.95, all_users=True)
    assert content["verdict"]["status"] in ("confirmed", "undecided")
    assert [each["name"] for each in content["verdict"]["budgets"]] == ["coupons", "large ones"]
    assert set(content["logged"]["costs"]) == {"coupons", "large ones"}
    assert content["logged"]["costs"]["large ones"] == pytest.approx(1.0, abs=0.05)  # half of two steps
    assert {row.get("budget") for row in content["estimates"]} == {None, "coupons", "large ones"}
    loose = replace(several.certificate, budgets=tuple(replace(b, budget=0.01) for b in several.certificate.budgets))
    wrong = evaluate_plan(replace(several, certificate=loose), newer, 0.95, all_users=True)
    assert wrong["verdict"]["status"] == "contradicted"
    own = evaluate_plan(several, newer, 0.95, all_users=True)
    assert own["certificate"]["verified"] is None


def test_its_own_fold_gives_the_certificate_again(several: Plan, log: Log) -> None:
    assert evaluate_plan(several, log, 0.95)["certificate"]["verified"] is True


def test_every_budget_has_a_frontier_and_decisions_an_expected_cost(several: Plan, campaign: FiniteCampaign) -> None:
    content = answer(several, {"large ones": 0.6}, None)
    assert [each["name"] for each in content["budgets"]] == ["coupons", "large ones"]
    assert content["budgets"][1]["at"][0]["budget"] == 0.6
    for name in ("coupons", "large ones"):
        table = several.along(name)
        assert (table["dual"].diff().drop_nulls() >= 0).all(), "by rising price"
        # More of a budget is believed to earn more, and never less.
        assert (table["model_reward"].diff().drop_nulls() <= 1e-9).all()
    with pytest.raises(UsageError, match="several"):
        answer(several, None, 4.0)
    users = campaign.log(50, seed=3).filter(pl.col("step") == 0).select("user", "step", "state")
    decisions, _ = several.allocate(users)
    counted = decisions["action"].is_in(COUNTED).cast(float)
    assert decisions["expected_cost_large ones"].to_list() == counted.to_list()
    assert decisions["expected_cost_coupons"].to_list() == decisions["expected_cost"].to_list()
    decision = Decider(several).decide(users.row(0, named=True))
    assert decision.action == decisions["action"][0]
    assert decision.expected_costs["large ones"] == counted[0]
    assert decision.expected_costs["coupons"] == pytest.approx(decisions["expected_cost"][0], abs=1e-5)


def test_the_report_speaks_of_all_budgets(several: Plan) -> None:
    page = render_report(several)
    for said in ("coupons, the others held", "large ones, the others held", "29,000", "The budgets"):
        assert said in page
    assert "budgets of 2.9 (coupons), 0.75 (large ones)" in page


def test_what_cannot_be_asked_for_is_refused(log: Log) -> None:
    with pytest.raises(UsageError, match="several budgets"):
        fit(log, budget=1.0, campaign=CAMPAIGN)
    with pytest.raises(UsageError, match="a target reward minimizes one cost"):
        fit(log, target_reward=4.0, campaign=CAMPAIGN)

"""How many users a test needs, and the budget of the largest profit, by simulation and by definition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from redenvelope import Plan, UsageError
from redenvelope.plan.reprice import budget_point, budget_points
from redenvelope.plan.rollout_check import users_for_test
from tests.program import run_here
from tests.two_step_plan import plan, stages

__all__ = ["plan", "stages"]


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_a_test_of_that_size_sees_the_gain_as_often_as_it_says(plan: Plan, share: float) -> None:
    asked = users_for_test(plan, share=share, gain=0.1, power=0.8)
    draw, sd = np.random.default_rng(1), asked["standard_deviation"]
    first, second = asked["plan_users"], asked["other_users"]
    assert first / (first + second) == pytest.approx(share, abs=0.01)
    means = draw.normal(0.1, sd / np.sqrt(first), 4_000) - draw.normal(0, sd / np.sqrt(second), 4_000)
    seen = np.abs(means) > 1.96 * sd * np.sqrt(1 / first + 1 / second)
    assert seen.mean() == pytest.approx(0.8, abs=0.02)


def test_a_smaller_gain_needs_more_users_and_weeks_follow(plan: Plan) -> None:
    content = users_for_test(plan, users_per_week=10)
    assert content["cautious"]["plan_users"] > content["plan_users"]
    assert content["weeks"] == int(np.ceil((content["plan_users"] + content["other_users"]) / 10))
    for odd in ({"share": 0}, {"power": 1}, {"gain": 0.0}, {"users_per_week": 0}, {"confidence": "high"}):
        with pytest.raises(UsageError):
            users_for_test(plan, **odd)  # type: ignore[arg-type]


def with_gain(plan: Plan, gain: float, lower: float) -> Plan:
    told = {"reward_difference": gain, "reward_difference_lower": lower}
    rows = [replace(each, **told) if each.policy == "plan" else each for each in plan.record.comparison]
    return replace(plan, record=replace(plan.record, comparison=tuple(rows)))


def test_a_plan_without_a_gain_is_not_sized_for_one(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"earns 0\.2 less per user than was logged; give gain=…"):
        users_for_test(with_gain(plan, -0.2, -0.5))
    assert users_for_test(with_gain(plan, -0.2, -0.5), gain=0.1)["gain"] == 0.1
    unsure = with_gain(plan, 0.2, -0.1)
    assert "cautious" not in users_for_test(unsure)
    unsure.save(tmp_path / "plan", {"report.html": b""})
    assert "The interval of this gain contains 0" in run_here("power", "plan", folder=tmp_path).stdout


def test_at_the_budget_of_the_largest_profit_one_more_unit_earns_its_value(plan: Plan) -> None:
    own, value = plan.certificate.budgets[0], 1 / plan.dual
    found = plan.profit_budget(value)
    at, beyond = (budget_point(plan, own, found * factor) for factor in (1.0, 1.02))
    assert at is not None
    assert at.price * value >= 1
    assert beyond is None or beyond.price * value < at.price * value
    assert plan.profit_budget(2 * value) >= found >= plan.profit_budget(0.9 * value)
    # Where nothing earns its own value, the cheapest plan is the best.
    assert plan.profit_budget(1e-6) == pytest.approx(next(budget_points(plan)).budget, rel=0.01)


def test_the_commands_say_both(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan", {"report.html": b""})
    said = run_here("power", "plan", "--users-per-week", "100", folder=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "users follow the plan, and" in said.stdout
    asked = ("reprice", "plan", "--out", "profit", "--maximise", "profit")
    assert "--value-per-reward" in run_here(*asked, folder=tmp_path).stderr
    done = run_here(*asked, "--value-per-reward", str(1 / plan.dual), folder=tmp_path)
    assert done.returncode in (0, 3), done.stderr
    budget = Plan.load(tmp_path / "profit").certificate.budget
    assert budget == pytest.approx(plan.profit_budget(1 / plan.dual))

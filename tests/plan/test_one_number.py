"""One number for one question: every surface that says what a budget buys says the same of the same plan."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console

from redenvelope import Plan, Pricing
from redenvelope.plan.decide import DecisionEngine
from redenvelope.plan.plan import plan_lines
from redenvelope.plan.reprice import answer, budget_points, reprice
from redenvelope.policies.action_values import Decided
from redenvelope.report.budget_slider import budget_section
from redenvelope.report.summary import certificate_section
from redenvelope.report.terminal import show_plan
from redenvelope.wording import number
from tests.report.parsed import Parsed
from tests.two_step_plan import BUDGET


def slider(plan: Plan) -> tuple[list[dict[str, Any]], int]:
    """The rows of the report's slider, and the place at which it stands."""
    shown = Parsed(budget_section(plan))
    (points,) = (a["data-points"] for _, a in shown.tags if a.get("class") == "slider")
    (start,) = (a["value"] for tag, a in shown.tags if tag == "input")
    return json.loads(points or ""), int(start or "")


def printed(plan: Plan) -> str:
    """What `fit` and `reprice` print of a plan."""
    console = Console(file=StringIO(), width=500, highlight=False)
    with patch("redenvelope.report.terminal.Console", lambda **_: console):
        show_plan(plan, Path("plan"))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("budget", [BUDGET, 2.5])
def test_what_one_more_unit_of_budget_buys(plan: Plan, budget: float) -> None:
    own = plan if budget == BUDGET else reprice(plan, budget=budget)
    price = number(own.certificate.dual)
    said = f"one more unit of budget per user buys about {price} more reward"
    assert said in printed(own)
    assert said in Parsed(certificate_section(own)).text
    assert f"one more unit of cost per user would earn about {price} more reward" in Parsed(budget_section(own)).text
    rows, start = slider(own)
    assert rows[start]["cells"][4] == f"{price} reward"
    (asked,) = answer(own, budget, None)["at"]
    assert asked["shadow_price"] == own.certificate.dual == own.dual
    assert any(f"{price} of reward for one more unit of budget" in line for line in plan_lines(own))


@pytest.mark.parametrize("budget", [2.2, 2.5, 3.0])
def test_what_another_budget_buys(plan: Plan, budget: float) -> None:
    again = reprice(plan, budget=budget).certificate
    (asked,) = answer(plan, budget, None)["at"]
    expected = (budget, again.cost.estimate, again.reward.estimate, again.dual)
    assert (asked["budget"], asked["cost"], asked["reward"], asked["shadow_price"]) == expected


def test_every_place_of_the_slider_is_what_reprice_certifies(plan: Plan) -> None:
    rows, start = slider(plan)
    points = list(budget_points(plan))
    assert len(rows) == len(points) > 30
    for row, point in zip(rows, points, strict=True):
        again = plan if point.budget == BUDGET else reprice(plan, budget=point.budget)
        cost, reward = again.certificate.cost, again.certificate.reward
        assert (point.cost, point.reward, point.price) == (cost.estimate, reward.estimate, again.certificate.dual)
        assert row["cells"][1:3] == [number(cost.estimate), number(reward.estimate)]
        assert point.cost <= cost.upper <= point.budget, "no row costs more than its budget"
    assert points[start].budget == BUDGET
    assert answer(plan, None, None)["least_budget"] == points[0].budget


def test_the_table_of_other_budgets_reads_the_slider(plan: Plan) -> None:
    shown, (rows, _) = Parsed(budget_section(plan)).text, slider(plan)
    table = shown[shown.index("Other budgets, per user") :]
    known = {(row["cells"][0], row["cells"][1], row["cells"][2]) for row in rows}
    found = re.findall(r"([\d.]+)(?: \(this plan\))? ([\d.]+) ([\d.]+) [–+−\d.]+ [∞\d.]+", table)
    assert len(found) >= 3
    assert set(found) <= known


def test_the_least_cost_of_a_reward_is_that_of_its_plan(plan: Plan) -> None:
    again = reprice(plan, target_reward=4.2).certificate
    assert answer(plan, None, 4.2)["least_cost"] == {
        "reward": 4.2,
        "cost": again.cost.estimate,
        "budget": again.cost.upper,
    }


def test_no_decision_is_expected_to_cost_less_than_nothing() -> None:
    """No log has a negative cost, so a model that predicts one for a free action is known to be wrong."""
    outcomes = np.array([[[-0.3, 0.5]], [[-0.05, 0.62]]], dtype=np.float32)  # [outcomes, users, actions]
    found = Decided(np.array([[[0.5, 0.5]]], dtype=np.float32), outcomes)
    policy: Any = SimpleNamespace(
        pricing=Pricing.at(1.0), steps_left=lambda step: step, by_member=lambda *_: found, holdout=0.0, new=()
    )
    keys = np.array([7], dtype=np.uint64)
    decided = DecisionEngine(policy).decide(np.zeros((1, 1), np.float32), np.array([0]), None, keys)
    assert decided.outcomes[1].tolist() == [[0.0, pytest.approx(0.62)]]
    assert decided.outcomes[0, 0, 0] == pytest.approx(-0.3), "a reward may be negative"

"""Budgets, prices and accuracy, with counted models in place of networks."""

from __future__ import annotations

import pytest
from experiments.accuracy import _rows
from experiments.budgets import run_budgets
from experiments.paper import BUDGET
from experiments.prices import run_prices
from experiments.studies import Studies, TwoStepStudy


def test_no_budget_earns_more_than_the_optimum(counted_studies: Studies) -> None:
    table = run_budgets(counted_studies).table
    campaign = counted_studies.two_step[0].campaign
    assert BUDGET in table["budget"].to_list()
    for row in table.iter_rows(named=True):
        assert row["exact_optimum"] == pytest.approx(campaign.optimum(row["budget"]).reward)
        assert row["exact_bandit"] <= row["exact_optimum"] + 1e-9
        # 2,100 users of a counted model order the plans of this problem rightly, or nearly.
        assert -1e-9 <= row["regret"] < 0.02


def test_cost_falls_with_the_price_and_estimates_follow(counted_studies: Studies) -> None:
    table = run_prices(counted_studies).table
    for policy in ("bandit", "constrained MDP"):
        part = table.filter(policy=policy)
        assert (part["exact_cost"].diff().drop_nulls() <= 1e-12).all()
        # Half the width of an interval is 1.96 standard errors: 4.5 of them hold the truth of all estimates.
        gap = (part["estimated_cost"] - part["learned_cost"]).abs()
        width = (part["estimated_cost_upper"] - part["estimated_cost_lower"]) / 2
        assert (gap <= 4.5 / 1.96 * width).all()


def test_cells_hold_what_was_predicted_and_observed(counted_studies: Studies) -> None:
    first = counted_studies.two_step[0]
    study = TwoStepStudy(first.campaign, first.settings, first.seed)
    study.__dict__["model"] = first.counted  # in place of the network
    rows = _rows(study)
    assert len(rows) == 2 * 5 * 4
    for row in rows:
        assert abs(row["observed"] - row["truth"]) < 4.5 * row["observed_error"]
        # A cell of a later state has 130 training rows with a standard deviation of 0.32: 4.5 errors are 0.13.
        assert row["predicted"] == pytest.approx(row["truth"], abs=0.13)

"""One user at a time: the same decisions as a table gets, and nothing of the factory is loaded for them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope.errors import ModelError
from redenvelope.plan.decide import Decider
from redenvelope.plan.plan import Plan
from redenvelope.policies.pricing import Pricing
from redenvelope.simulate.finite import FiniteCampaign


@pytest.fixture(scope="module")
def users(campaign: FiniteCampaign) -> pl.DataFrame:
    return campaign.log(400, seed=9).select("user", "step", "state")


@pytest.mark.parametrize(
    "pricing", [None, Pricing(((0.2,), (1.5,)), (0.4, 0.6)), Pricing.at(np.inf)], ids=["own", "mixed", "cheapest"]
)
def test_decisions_are_those_of_a_table(plan: Plan, users: pl.DataFrame, pricing: Pricing | None) -> None:
    policy = plan.policy if pricing is None else replace(plan.policy, pricing=pricing)
    priced = replace(plan, policy=policy)
    together, _ = priced.allocate(users, seed=3)
    decider = Decider(priced, seed=3).warm()
    one_by_one = [decider.decide(row) for row in users.iter_rows(named=True)]
    assert [decision.action for decision in one_by_one] == together["action"].to_list()
    for name in ("propensity", "expected_reward", "expected_cost"):
        found = [getattr(decision, name) for decision in one_by_one]
        np.testing.assert_allclose(found, together[name], rtol=1e-5, atol=1e-6)
    assert {decision.prices for decision in one_by_one} == set(policy.pricing.prices)


def test_probabilities_are_by_label_and_sum_to_one(plan: Plan, users: pl.DataFrame) -> None:
    decision = Decider(plan).decide(users.row(0, named=True))
    assert tuple(decision.probabilities) == plan.catalogue.labels
    assert sum(decision.probabilities.values()) == pytest.approx(1.0, abs=1e-12)
    assert decision.probabilities[str(decision.action)] == decision.propensity


def test_what_is_odd_is_taken_as_in_a_table(plan: Plan) -> None:
    rows = [
        {"user": "u1", "step": 0},
        {"user": "u2", "step": 1, "state": None},
        {"user": "u3", "step": 1, "state": "never seen"},
        {"user": "u4", "step": 0, "state": "s0", "colour": "red"},
    ]
    decider = Decider(plan)
    for row in rows:
        frame = pl.DataFrame([row]).with_columns(state=pl.lit(row.get("state"), dtype=pl.String))
        (table,) = plan.allocate(frame)[0].iter_rows(named=True)
        decision = decider.decide(row)
        assert decision.action == table["action"]
        # A table is planned in single precision: its rounding, 1e-8 or so, counts over the temperature, 0.002 here.
        assert decision.propensity == pytest.approx(table["propensity"], abs=1e-5)


def test_actions_that_are_ruled_out_are_never_given(plan: Plan, users: pl.DataFrame) -> None:
    decider = Decider(plan)
    mask = np.array([True, False, True, False])
    for row in users.head(50).iter_rows(named=True):
        decision = decider.decide(row, mask)
        assert plan.catalogue.labels.index(str(decision.action)) in (0, 2)
        assert decision.probabilities[plan.catalogue.labels[1]] == 0


@pytest.mark.parametrize("row", [{"step": 0}, {"user": None, "step": 0}, {"user": True, "step": 0}])
def test_nobody_is_not_decided_for(plan: Plan, row: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="needs a 'user'"):
        Decider(plan).decide(row)


@pytest.mark.parametrize("step", [None, 7, -1, "soon"])
def test_a_step_outside_of_the_campaign_is_refused(plan: Plan, step: object) -> None:
    with pytest.raises(ModelError, match="step"):
        Decider(plan).decide({"user": 1, "step": step, "state": "s0"})


def test_loading_and_deciding_import_no_optimiser_and_no_training(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    code = """
import sys
from redenvelope import Decider, Plan
plan = Plan.load("plan")
Decider(plan).warm().decide({"user": 1, "step": 0, "state": "s0"})
import polars as pl
plan.allocate(pl.DataFrame({"user": [1], "step": [0], "state": ["s0"]}))
training = ("redenvelope.models.training", "redenvelope.models.fit")
names = ("optax", "redenvelope.fitting", "redenvelope.learning", *training)
print([name for name in sys.modules if name.startswith(names)])
"""
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path)
    assert printed.strip() == "[]"

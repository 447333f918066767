"""After a roll-out of a plan with several budgets: each is compared by its name, by what counts against it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from redenvelope import Budget, Plan
from redenvelope.campaign.costs import charges_of
from redenvelope.log.ab_test import Arm, read_arm
from redenvelope.plan.certificate import BudgetFigure
from redenvelope.plan.rollout_check import compare_arms

BUDGETS = (
    Budget("money", per_user=4.0),
    Budget("pushes", count=("push",), per_user=1.0),
    Budget("first week", column="cost", steps=(0,), per_user=2.0),
    Budget("new", column="points", where="segment == 'new'", per_user=1.0),
)


def table(prefix: str, seed: int, users: int = 2_000) -> pl.DataFrame:
    """Two decisions a user, with all that the budgets look at."""
    random = np.random.default_rng(seed)
    rows = 2 * users
    return pl.DataFrame(
        {
            "user": np.repeat([f"{prefix}{number}" for number in range(users)], 2),
            "step": np.tile([0, 1], users),
            "action": random.choice(["none", "push", "mail"], size=rows),
            "reward": random.random(rows),
            "cost": random.random(rows) * 3,
            "points": random.random(rows),
            "segment": np.repeat(random.choice(["new", "old"], size=users), 2),
        }
    )


def truth(arm: pl.DataFrame) -> dict[str, float]:
    """The mean a user of each budget, by hand."""
    users = arm["user"].n_unique()
    sums = {
        "money": arm["cost"].sum(),
        "pushes": (arm["action"] == "push").sum(),
        "first week": arm.filter(pl.col("step") == 0)["cost"].sum(),
        "new": arm.filter(pl.col("segment") == "new")["points"].sum(),
    }
    return {name: total / users for name, total in sums.items()}


def read(arm: pl.DataFrame) -> Arm:
    return read_arm(arm, charges=lambda frame: charges_of(frame, BUDGETS, frozenset({"segment"}), False))


@pytest.fixture(scope="module")
def several(plan: Plan) -> Plan:
    """A plan that promised of each budget what the tables hold, and a little room."""
    promised = truth(table("a", 1))
    cost = plan.certificate.cost
    figures = tuple(
        BudgetFigure(name, mean * 1.1, replace(cost, estimate=mean, standard_error=0.02), 0.1, "binding", mean)
        for name, mean in promised.items()
    )
    certificate = replace(plan.certificate, budgets=figures)
    return replace(plan, certificate=certificate, record=replace(plan.record, budgets=BUDGETS))


def test_every_budget_is_summed_by_what_counts_against_it() -> None:
    arm, means = read(table("a", 1)), truth(table("a", 1))
    assert {name: float(own.mean()) for name, own in arm.charged.items()} == pytest.approx(means)
    # Only the cost itself: it is in the table already.
    assert charges_of(table("a", 1), BUDGETS[:1], frozenset(), False) == {}


def test_each_is_held_to_its_own_promise(several: Plan) -> None:
    content = compare_arms((read(table("a", 1)), read(table("b", 2))), several, 0.95, None, None)
    kept = content["promise"]
    assert kept["status"] == "kept"
    costs = {row["budget"]: row for row in kept["promises"] if row["what"] == "cost"}
    assert set(costs) == {budget.name for budget in BUDGETS}
    assert {row["verdict"] for row in costs.values()} == {"as promised"}
    assert all(f"the cost of {name} is at most" in kept["sentence"] for name in costs)
    gaps = truth(table("b", 2))
    for name, own in truth(table("a", 1)).items():
        assert content["difference"]["costs"][name]["estimate"] == pytest.approx(own - gaps[name])


def test_one_that_is_broken_breaks_the_promise_by_its_name(several: Plan) -> None:
    pushed = table("a", 1).with_columns(action=pl.lit("push"))
    kept = compare_arms((read(pushed), read(table("b", 2))), several, 0.95, None, None)["promise"]
    assert kept["status"] == "contradicted"
    assert kept["sentence"].startswith("the cost of pushes is at least 2, above the budget of")
    assert ";" not in kept["sentence"], "only what was broken is named"
    assert {row["budget"]: row["verdict"] for row in kept["promises"] if row["what"] == "cost"}["pushes"] == "more"


def test_what_a_table_does_not_tell_is_said_and_left_open(several: Plan) -> None:
    arms = (read(table("a", 1).drop("action", "segment")), read(table("b", 2)))
    content = compare_arms(arms, several, 0.95, None, None)
    assert content["promise"]["status"] == "open"
    assert "the cost of pushes is unknown: the table has no column 'action'" in content["promise"]["sentence"]
    assert any("'new' is not compared: the table has no column 'segment'" in said for said in content["findings"])
    assert set(content["difference"]["costs"]) == {"money", "first week"}
    odd = read(table("a", 1).with_columns(points=pl.lit("many")))
    assert odd.unknown == {"new": "the column 'points' is not a number in 4,000 rows"}

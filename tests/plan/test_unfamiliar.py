"""What training never saw, or hardly, is counted and named whenever one decides."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Decider, FitSettings, Plan, fit, log_from_frame
from tests.program import run_here as run
from tests.quick_programs import quick_programs
from tests.two_step_plan import QUICK

USERS = 1_200


def table(seed: int) -> pl.DataFrame:
    """One step: two actions, a city with a hundred rare labels, an age, and the day of the campaign."""
    generator = np.random.default_rng(seed)
    action = generator.integers(0, 2, USERS)
    cities = [f"village {number}" for number in range(100)]
    city = np.where(
        generator.uniform(size=USERS) < 0.1, generator.choice(cities, USERS), generator.choice(["Lyon", "Oslo"], USERS)
    )
    return pl.DataFrame(
        {
            "customer": np.arange(USERS) + 10_000 * seed,
            "step": 0,
            "action": action,
            "propensity": 0.5,
            "reward": generator.normal(1 + action * (city == "Lyon"), 0.5),
            "cost": action * generator.uniform(0.8, 1.2, USERS),
            "city": city,
            "age": generator.uniform(18, 80, USERS).round(1),
        }
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    from redenvelope.log.columns import ColumnMap

    columns = ColumnMap({"user": "customer"})
    with quick_programs():
        made = fit(log_from_frame(table(1), columns), budget=0.5, settings=FitSettings(neural=QUICK))
    assert made.columns == columns  # remembered by the log, and so by the plan
    return made


def test_rare_is_told_apart_from_unseen_and_outside_is_counted(plan: Plan, tmp_path: Path) -> None:
    (city,) = plan.policy.encoder.categories
    assert city.labels == ("Lyon", "Oslo")
    assert len(city.rare) > 20
    users = table(2).select("customer", "step", "city", "age")
    odd = users.with_columns(
        city=pl.when(pl.int_range(pl.len()) < 7).then(pl.lit("Atlantis")).otherwise("city"),
        age=pl.when(pl.int_range(pl.len()) < 3).then(pl.lit(230.0)).otherwise("age"),
    )
    odd.write_csv(tmp_path / "users.csv")
    plan.save(tmp_path / "plan", {})
    result = run("allocate", tmp_path / "plan", tmp_path / "users.csv", "--out", tmp_path / "out.csv", "--json")
    assert result.returncode == 0, result.stderr
    found = {finding["rule"]: finding for finding in json.loads(result.stdout)["findings"]}
    never = ~odd["city"].is_in([*city.labels, *city.rare, "Atlantis"])
    assert found["serving_unseen_label"]["count"] == 7 + int(never.sum())
    assert found["serving_rare_label"]["count"] == int(odd["city"].is_in(list(city.rare)).sum())
    assert "fewer than 10 users" in found["serving_rare_label"]["message"]
    (age,) = plan.policy.encoder.numbers
    outside = ((odd["age"] < age.low) | (odd["age"].cast(pl.Float32) > age.high)).sum()
    assert found["serving_outside"]["count"] == outside >= 3
    assert found["serving_outside"]["examples"][0] == "230"


def test_a_decider_names_and_counts_what_it_never_saw(plan: Plan) -> None:
    decider, (city,) = Decider(plan), plan.policy.encoder.categories
    usual = decider.decide({"user": 1, "step": 0, "city": "Lyon", "age": 40})
    rare = decider.decide({"user": 1, "step": 0, "city": city.rare[0], "age": 40})
    odd = decider.decide({"user": 1, "step": 0, "city": "Atlantis", "age": 230})
    assert (usual.unfamiliar, rare.unfamiliar, set(odd.unfamiliar)) == ((), (), {"city", "age"})
    decider.decide({"user": 2, "step": 0, "city": "Lyon", "age": -5})
    assert decider.unfamiliar == {"city": 1, "age": 2}


def test_an_evaluation_names_them_too(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan", {})
    later = table(3).with_columns(age=pl.col("age") + 500, city=pl.col("city").replace("Oslo", "Oulu"))
    later.write_parquet(tmp_path / "later.parquet")
    result = run("evaluate", tmp_path / "plan", tmp_path / "later.parquet", "--json")
    assert result.returncode in (0, 3), result.stderr
    found = {(finding["rule"], finding["column"]) for finding in json.loads(result.stdout)["drift"]}
    assert {("serving_outside", "age"), ("drift_number", "age"), ("drift_category", "city")} == found


def test_numbers_in_dress_are_read_when_deciding(plan: Plan) -> None:
    decider = Decider(plan)
    plain = decider.decide({"user": 1, "step": 0, "city": "Lyon", "age": 47.5})
    assert decider.decide({"user": 1, "step": 0, "city": "Lyon", "age": "47,5"}) == plain
    users = pl.DataFrame({"user": [1], "step": [0], "city": ["Lyon"], "age": ["47,5"]})
    decisions, findings = plan.allocate(users)
    assert findings == ()
    assert decisions["expected_reward"][0] == pytest.approx(plain.expected_reward, rel=1e-5)

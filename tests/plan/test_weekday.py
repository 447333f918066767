"""A campaign in which only weekends matter: whoever makes dates relative earns it, weeks later as well."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, Decider, FitSettings, Plan, fit, log_from_frame
from redenvelope.serve.active_plan import DecisionQuery, LoadedPlan
from tests.quick_programs import quick_programs
from tests.two_step_plan import QUICK

BUDGET = 2 / 7
LIFT = 0.8  # what a coupon adds at a weekend; on other days it adds nothing
OPTIMUM = LIFT * 2 / 7  # a coupon for everybody at weekends costs 2/7 a user: the budget


def users(start: date, count: int, seed: int) -> pl.DataFrame:
    """Users with the day of their one decision, evenly over eight weeks, and the day that they joined."""
    random = np.random.default_rng(seed)
    sent = [start + timedelta(days=int(day)) for day in random.integers(56, size=count)]
    joined = [day - timedelta(days=int(days)) for day, days in zip(sent, random.integers(1, 300, count), strict=True)]
    return pl.DataFrame({"user": np.arange(count) + 10_000 * seed, "sent_on": sent, "joined_on": joined})


def logged(count: int = 4_000) -> pl.DataFrame:
    random, frame = np.random.default_rng(7), users(date(2024, 1, 1), count, 1)
    coupon = random.random(count) < 0.5
    weekend = (frame["sent_on"].dt.weekday() >= 6).to_numpy()
    bought = random.random(count) < 0.1 + LIFT * (coupon & weekend)
    action = np.where(coupon, "coupon", "none")
    return frame.with_columns(
        action=pl.Series(action), propensity=pl.lit(0.5), reward=pl.Series(bought), cost=pl.Series(coupon * 1.0)
    )


def made(dates: str) -> Plan:
    columns = ColumnMap(time="sent_on", dates=dates)
    with quick_programs():
        return fit(
            log_from_frame(logged(), columns), budget=BUDGET, settings=FitSettings(neural=QUICK, explore=0.0)
        ).with_source("log", columns, "2024-03-01")


def gain(plan: Plan, asked: pl.DataFrame) -> tuple[float, float]:
    """What a plan truly adds a user to doing nothing, and what it costs, by the probabilities it decides with."""
    decisions, _ = plan.allocate(asked)
    given = pl.when(pl.col("action") == "coupon").then("propensity").otherwise(1 - pl.col("propensity"))
    chance = decisions.select(given)["propensity"].to_numpy()
    weekend = (asked["sent_on"].dt.weekday() >= 6).to_numpy()
    return float(LIFT * (chance * weekend).mean()), float(chance.mean())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return made("relative")


@pytest.fixture(scope="module")
def later() -> pl.DataFrame:
    """Whom to decide for in autumn: no day of the log comes again."""
    return users(date(2024, 9, 2), 3_000, 2).with_columns(step=pl.lit(0))


def test_weekends_are_found_and_kept_to_weeks_later(plan: Plan, later: pl.DataFrame) -> None:
    assert plan.certificate.is_certified
    earned, cost = gain(plan, later)
    # 1,600 users check a cost whose error is then 0.02: 1.6 of them stay unspent, a tenth of the budget.
    assert earned > 0.8 * OPTIMUM
    assert cost < BUDGET + 3 * 0.45 / np.sqrt(3_000)
    _, findings = plan.allocate(later)
    assert findings == ()


@pytest.mark.slow
def test_without_dates_only_their_share_of_the_coupons_meets_a_weekend(later: pl.DataFrame) -> None:
    earned, _ = gain(made("leave-out"), later)
    assert earned < 0.4 * OPTIMUM


def test_tables_rows_and_the_service_decide_alike(plan: Plan, later: pl.DataFrame) -> None:
    asked = later.head(60)
    decisions, _ = plan.allocate(asked)
    decider, used = Decider(plan), LoadedPlan(plan)
    states, _ = plan.policy.encoder.encode_frame(asked)
    for number, row in enumerate(asked.iter_rows(named=True)):
        assert decider.decide(row).action == decisions["action"][number]
        written = {"sent_on": str(row["sent_on"]), "joined_on": str(row["joined_on"])}  # as JSON holds it
        np.testing.assert_array_equal(used.encode([DecisionQuery(row["user"], 0, written, [])]), states[[number]])

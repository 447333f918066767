"""A cap per user: what is cut, what is certified with it, and that the service enforces it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import FitSettings, Log, Plan, UsageError, evaluate_plan, fit, log_from_frame, two_step
from redenvelope.campaign.costs import capped_log
from redenvelope.cli.serving import capped_by_plan
from redenvelope.plan.reprice import reprice
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK

CAP = 8.0


def with_whales() -> Log:
    """The two-step campaign, in which 6 of 6,000 users cost 100 more at their first step."""
    frame = two_step().log(6_000, seed=4)
    whale = (pl.col("user") % 1_000 == 17) & (pl.col("step") == pl.col("step").min())
    return log_from_frame(frame.with_columns(cost=pl.col("cost") + 100.0 * whale))


def test_costs_are_cut_where_a_user_reaches_the_cap() -> None:
    rows = {"user": [1, 1, 1, 2, 2], "step": [0, 1, 2, 0, 1], "cost": [3.0, 4.0, 2.0, 9.0, 0.5]}
    frame = pl.DataFrame(rows).with_columns(
        action=pl.Series(["a", "b", "a", "b", "a"]),
        propensity=0.5,
        reward=pl.Series([0.0, 1.0, 0.0, 1.0, 0.0]),
        x=pl.col("cost") % 2,
    )
    log = log_from_frame(frame)
    assert capped_log(log, None) is log
    assert capped_log(log, 5.0).cost.tolist() == [3.0, 2.0, 0.0, 5.0, 0.0]
    both = replace(log, charged=(("first", log.cost), ("second", 2 * log.cost)))
    assert [values.tolist() for _, values in capped_log(both, 5.0).charged] == [[3, 2, 0, 5, 0], [5, 0, 0, 5, 0]]
    random = np.random.default_rng(2).exponential(size=len(log))
    sums = log.sums_by_user(capped_log(replace(log, cost=random), 0.7).cost)
    assert sums == pytest.approx(np.minimum(log.sums_by_user(random), 0.7))


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, Plan]:
    """Without and with a cap, of the same log."""
    log, settings = with_whales(), FitSettings(neural=QUICK)
    with quick_programs():
        plain = fit(log, budget=BUDGET, settings=settings)
        return plain, fit(log, budget=BUDGET, settings=replace(settings, most_per_user=CAP))


def test_whales_are_refused_and_certified_with_a_cap(plans: tuple[Plan, Plan], tmp_path: Path) -> None:
    plain, capped = (plan.certificate for plan in plans)
    assert not plain.is_certified
    assert "concentrated" in {reason.rule for reason in plain.reasons}
    assert capped.is_certified and capped.most_per_user == CAP
    assert capped.sentence().endswith("if no user may cost more than 8.")
    again = Plan.load(plans[1].save(tmp_path / "plan", {}))
    assert again.certificate == capped
    assert reprice(again, budget=0.9 * BUDGET).certificate.most_per_user == CAP


def test_other_logs_are_cut_at_the_same_cap(plans: tuple[Plan, Plan]) -> None:
    found = evaluate_plan(plans[1], with_whales())
    assert found["certificate"] == {"status": "certified", "verified": True}
    assert found["logged"]["cost"] < 8


def test_a_ladder_may_bound_costs_for_any_tail(plans: tuple[Plan, Plan]) -> None:
    ladder = plans[1].ladder
    assert ladder.largest is None  # cut at the cap, costs are tame enough for the usual bounds
    _, usual = ladder.bounds(0.95)
    _, wide = ladder.for_any_tail(CAP / 0.25**2).bounds(0.95)
    assert (wide[0] == usual[0]).all()  # a cap bounds costs, not rewards
    assert (wide[1] > usual[1] + 7 * CAP * 16 * np.log(40) / (3 * ladder.users)).all()


def test_where_few_decide_in_spite_of_a_cap_the_bound_holds_for_any_tail() -> None:
    """Everybody's first action costs 1, and that of 6 users of 20,000 the cap of 100: one of them decides the estimate,
    and the bound by empirical Bernstein certifies a budget that leaves room for it."""
    generator, users = np.random.default_rng(3), 20_000
    action = generator.integers(2, size=users)
    frame = pl.DataFrame(
        {
            "user": np.arange(users),
            "step": 0,
            "action": np.array(["none", "coupon"])[action],
            "propensity": 0.5,
            "reward": (generator.random(users) < 0.2 + 0.3 * action).astype(float),
            "cost": action * np.where(np.arange(users) % 3_333 == 5, 500.0, 1.0),
            "x": generator.normal(size=users),
        }
    )
    with quick_programs():
        plan = fit(log_from_frame(frame), budget=1.6, settings=FitSettings(neural=QUICK, most_per_user=100.0))
    assert plan.ladder.largest == 200.0  # the cap, by a weight of at most 2
    assert plan.certificate.is_certified and plan.certificate.cost.estimator == "per_decision"
    # The slack alone is 7 · 200 · ln 40 / (3 · 7,999) = 0.215.
    assert plan.certificate.cost.upper > plan.certificate.cost.estimate + 0.215
    assert evaluate_plan(plan, log_from_frame(frame))["certificate"]["verified"] is True


def test_the_service_takes_the_cap_or_a_smaller_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert capped_by_plan({"": "12"}, None) == {"": "12"}
    assert capped_by_plan({}, CAP) == {"": "8"}
    assert "--user-cap 8" in capsys.readouterr().err
    assert capped_by_plan({"budget": "7.5"}, CAP) == {"budget": "7.5"}
    with pytest.raises(UsageError, match="certified for at most 8 per user"):
        capped_by_plan({"": "8.01"}, CAP)


def test_a_cap_is_an_amount() -> None:
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(UsageError, match="above 0"):
            FitSettings(most_per_user=wrong)

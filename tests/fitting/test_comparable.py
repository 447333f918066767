"""A plan is judged on logs that tell what it decides by, or not at all."""

from __future__ import annotations

import polars as pl
import pytest

from redenvelope import FiniteCampaign, LogError, Plan, evaluate_plan, log_from_frame
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]


@pytest.fixture(scope="module")
def frame(campaign: FiniteCampaign) -> pl.DataFrame:
    return campaign.log(1_000, seed=11).with_columns(pl.col("user") + 50_000)


def test_a_feature_that_the_log_lacks_is_named(plan: Plan, frame: pl.DataFrame) -> None:
    lacking = log_from_frame(frame.drop("state").with_columns(other=pl.col("user") % 7))
    with pytest.raises(LogError, match=r"evaluate_feature_missing .column state.*no column 'state'"):
        evaluate_plan(plan, lacking, 0.95, all_users=True)
    numbers = log_from_frame(frame.with_columns(state=pl.col("state").str.slice(1).cast(pl.Int64)))
    with pytest.raises(LogError, match=r"evaluate_feature_kind .column state"):
        evaluate_plan(plan, numbers, 0.95, all_users=True)


def test_a_feature_that_reading_left_out_is_said(plan: Plan, frame: pl.DataFrame) -> None:
    content = evaluate_plan(plan, log_from_frame(frame.with_columns(state=pl.lit("s0"))), 0.95, all_users=True)
    (finding,) = content["lacking"]
    assert (finding["rule"], finding["column"], finding["severity"]) == (
        "evaluate_feature_left_out",
        "state",
        "warning",
    )
    assert "every value is s0" in finding["message"]
    assert evaluate_plan(plan, log_from_frame(frame), 0.95, all_users=True)["lacking"] == []


def test_steps_that_the_plan_does_not_know_are_refused(plan: Plan, frame: pl.DataFrame) -> None:
    later = log_from_frame(frame.with_columns(pl.col("step") + 1))
    with pytest.raises(LogError, match=r"evaluate_steps.*1,000 row.*0 to 1"):
        evaluate_plan(plan, later, 0.95, all_users=True)
    gaps = log_from_frame(frame.with_columns(pl.col("step") * 2))
    with pytest.raises(LogError, match=r"fit_step_gap"):
        evaluate_plan(plan, gaps, 0.95, all_users=True)

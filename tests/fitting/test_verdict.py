"""What another log says of a certificate: confirmed, contradicted or undecided, and what has drifted."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from redenvelope import Encoder, FiniteCampaign, Log, Plan, UsageError, evaluate_plan, log_from_frame
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.fitting.evaluate import drift_findings, judge
from redenvelope.log.log import split_fold


def figure(lower: float, upper: float) -> Estimate:
    return Estimate((lower + upper) / 2, lower, upper, 0.1, "marginalised")


ANY = figure(0.0, 9.0)


@pytest.mark.parametrize(
    ("bounds", "status", "words"),
    [
        ((9.8, 10.2), "contradicted", "the cost is at least 9.8, above the budget of 2.929"),
        ((2.0, 2.9), "confirmed", "the cost is at most 2.9, within the budget of 2.929"),
        ((2.5, 3.5), "undecided", "the cost is between 2.5 and 3.5: too few users to say"),
    ],
)
def test_a_budget_is_judged_by_both_bounds(plan: Plan, bounds: tuple[float, float], status: str, words: str) -> None:
    verdict = judge(plan.certificate, ANY, [figure(*bounds)], 100, ())
    assert verdict.status == status
    assert words in verdict.message
    against = Reason("thin_overlap", Weight.REFUSAL, "too few are alike")
    assert judge(plan.certificate, ANY, [figure(*bounds)], 100, (against,)).status == "undecided"


def test_a_target_is_judged_by_the_reward(plan: Plan) -> None:
    asked = replace(plan.certificate, target_reward=4.0)
    assert judge(asked, figure(4.1, 5.0), [ANY], 100, ()).status == "confirmed"
    assert judge(asked, figure(3.0, 3.9), [ANY], 100, ()).status == "contradicted"
    assert judge(asked, figure(3.0, 4.9), [ANY], 100, ()).status == "undecided"


def test_a_log_too_small_to_show_effects_of_the_past_decides_nothing(plan: Plan, log: Log) -> None:
    verdict = evaluate_plan(plan, log.select(np.arange(len(log.users)) < 60), 0.95, all_users=True)["verdict"]
    assert verdict["status"] == "undecided"
    assert "too few rows of each step and action to tell whether earlier steps matter" in verdict["message"]


def test_users_who_made_the_plan_are_left_out_by_their_ids(plan: Plan, log: Log) -> None:
    content = evaluate_plan(plan, log, 0.95)
    assert content["users"] == plan.certificate.users
    assert content["left_out"] == len(log.users) - plan.certificate.users
    assert content["verdict"]["status"] == "confirmed"
    everybody = evaluate_plan(plan, log, 0.95, all_users=True)
    assert (everybody["users"], everybody["left_out"]) == (len(log.users), 0)
    trained = log.select(split_fold(log.keys, plan.record.parts, plan.record.seed) == 0)
    with pytest.raises(UsageError, match="--all-users"):
        evaluate_plan(plan, trained, 0.95)


def test_a_world_that_has_become_dear_contradicts(plan: Plan, campaign: FiniteCampaign) -> None:
    frame = campaign.log(6_000, seed=77)
    same = evaluate_plan(plan, log_from_frame(frame), 0.95)
    assert same["verdict"]["status"] != "contradicted"
    dear = evaluate_plan(plan, log_from_frame(frame.with_columns(pl.col("cost") * 3)), 0.95)
    assert dear["verdict"]["status"] == "contradicted"
    assert dear["verdict"]["cost"]["lower"] > plan.certificate.budget


def test_features_that_have_moved_are_named() -> None:
    generator = np.random.default_rng(0)

    def table(day: float, labels: tuple[str, ...]) -> Log:
        users = 400
        columns = {
            "user": np.arange(users),
            "step": np.zeros(users, dtype=int),
            "action": generator.choice(["a", "b"], users),
            "propensity": np.full(users, 0.5),
            "reward": generator.uniform(size=users),
            "cost": generator.uniform(size=users),
            "day": day + generator.normal(0, 5, users),
            "age": generator.normal(40, 10, users),
            "city": generator.choice(labels, users),
        }
        return log_from_frame(pl.DataFrame(columns))

    before = table(100.0, ("x", "y"))
    encoder = Encoder.fit(before)
    assert drift_findings(encoder, encoder.encode(before), before.features) == ()
    after = table(142.0, ("x", "z"))
    found = drift_findings(encoder, encoder.encode(after), after.features)
    assert {(finding.rule, finding.column) for finding in found if finding.column != "age"} == {
        ("drift_number", "day"),
        ("serving_outside", "day"),
        ("drift_category", "city"),
    }
    (day,) = (finding for finding in found if finding.rule == "drift_number")
    # 42 days of a standard deviation of 5, both known to a few percent from 400 users.
    assert float(re.search(r"([\d.]+) standard deviations", day.message)[1]) == pytest.approx(8.0, abs=0.8)  # type: ignore[index]

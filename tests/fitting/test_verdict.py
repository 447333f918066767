"""What another log says of a certificate: confirmed, contradicted or undecided, and what has drifted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Encoder, FiniteCampaign, Log, Plan, UsageError, evaluate_plan, log_from_frame
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.fitting.evaluate import drift_findings, judge
from redenvelope.log.log import split_fold
from redenvelope.plan.record import MadeWith


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


def test_users_who_made_the_plan_are_left_out(plan: Plan, log: Log) -> None:
    content = evaluate_plan(plan, log, 0.95)
    assert content["users"] == plan.certificate.users
    assert content["left_out"] == len(log.users) - plan.certificate.users
    assert content["verdict"]["status"] == "confirmed"
    assert content["left_out_note"] == f"{content['left_out']:,} users were left out: the plan was made with them"
    everybody = evaluate_plan(plan, log, 0.95, all_users=True)
    assert (everybody["users"], everybody["left_out"]) == (len(log.users), 0)
    trained = log.select(split_fold(log.keys, plan.record.parts, plan.record.seed) == 0)
    with pytest.raises(UsageError, match="all_users=True"):
        evaluate_plan(plan, trained, 0.95)


def test_new_users_are_not_taken_for_those_who_made_the_plan(
    plan: Plan, log: Log, campaign: FiniteCampaign, tmp_path: Path
) -> None:
    frame = campaign.log(6_000, seed=77)
    other = evaluate_plan(plan, log_from_frame(frame), 0.95)
    # The same ids, 0 to 5,999, and other rows.
    made = plan.record.folds["train"].users + plan.record.folds["tune"].users
    assert (other["users"], other["left_out"]) == (6_000, 0)
    assert other["left_out_note"].startswith(f"{made:,} users have ids of users that the plan was made with, but other")
    new = evaluate_plan(plan, log_from_frame(frame.with_columns(pl.col("user") + 10_000)), 0.95)
    assert (new["users"], new["left_out"], new["left_out_note"]) == (6_000, 0, "")
    # Half new users, half of the plan's own log: only those are left out who made the plan, whoever the others are.
    old = campaign.log(6_000, seed=4).filter(pl.col("user") < 3_000)
    both = pl.concat([old, frame.filter(pl.col("user") < 3_000).with_columns(pl.col("user") + 10_000)])
    opened = Plan.load(plan.save(tmp_path / "plan", {}))
    mixed = evaluate_plan(opened, log_from_frame(both), 0.95)
    checked = split_fold(log.keys, plan.record.parts, plan.record.seed)[:3_000] == 2
    assert mixed["left_out"] == 3_000 - int(checked.sum())
    # A plan of an earlier version has no list of its users.
    older = replace(plan, record=replace(plan.record, made_with=None))
    assert "the plan has no list of its users" in evaluate_plan(older, log, 0.95)["left_out_note"]


def test_rows_that_many_users_share_say_nothing() -> None:
    """Nine of ten users got nothing and did nothing, in both logs: the others tell that these are other people."""

    def table(seed: int) -> Log:
        rng = np.random.default_rng(seed)
        action = rng.random(2_000) < 0.1
        reward = np.where(action, rng.random(2_000), 0.0)
        columns = {"user": np.arange(2_000), "step": 0, "action": action.astype(int), "propensity": 0.5 - 0.4 * action}
        return log_from_frame(pl.DataFrame(columns | {"reward": reward, "cost": reward, "x": rng.random(2_000)}))

    made = MadeWith.of(table(0))
    assert made is not None
    known, same = made.among(table(0))
    assert known.all() and same
    known, same = made.among(table(1))
    assert known.all() and not same


def test_a_mixture_of_prices_is_one_policy(plan: Plan, log: Log) -> None:
    shares = plan.policy.pricing.shares
    assert len(shares) == 2, "or this test says nothing"
    content = evaluate_plan(plan, log, 0.95)
    targets = [(row["estimator"], row["target"]) for row in content["estimates"]]
    assert len(targets) == len(set(targets))
    own = {row["target"]: row for row in content["estimates"] if row["estimator"] == plan.certificate.cost.estimator}
    # The certificate's own users: the same estimates, and the same error of the mixture, paired by user.
    assert own["cost"]["estimate"] == pytest.approx(plan.certificate.cost.estimate, rel=1e-6)
    assert own["reward"]["estimate"] == pytest.approx(plan.certificate.reward.estimate, rel=1e-6)
    assert own["cost"]["standard_error"] == pytest.approx(plan.certificate.cost.standard_error, rel=1e-3)


def test_an_estimate_beyond_what_was_logged_is_no_figure(plan: Plan, log: Log) -> None:
    """Propensities of a fifth: weighted costs are 5 and 25 times too large, more than any logged one."""
    content = evaluate_plan(plan, replace(log, propensity=log.propensity / 5), 0.95)
    rows = {row["estimator"]: row for row in content["estimates"] if row["target"] == "cost"}
    told = rows["per_decision"]
    assert [told[name] for name in ("estimate", "lower", "upper", "standard_error")] == [None] * 4
    assert "impossible_estimate" in [reason["rule"] for reason in told["reasons"]]
    assert rows["self_normalised_per_decision"]["estimate"] > 0


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

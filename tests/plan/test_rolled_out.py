"""After a roll-out: plans whose truth is known, run in a simulator, beside what they promised."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope.errors import LogError, UsageError
from redenvelope.log.ab_test import read_arm, read_both_arms
from redenvelope.plan.plan import Plan
from redenvelope.plan.rollout_check import compare_arms, compare_with_promise
from redenvelope.simulate.finite import FiniteCampaign
from tests.program import run_here as run
from tests.two_step_plan import true_value

USERS = 4_000


def table(totals: np.ndarray, prefix: str) -> pl.DataFrame:
    """Users with totals [outcomes, users] in two rows each, as steps give them."""
    reward, cost = totals
    rows = pl.DataFrame(
        {"user": [f"{prefix}{place}" for place in range(len(cost))], "reward": reward / 2, "cost": cost / 2}
    )
    return pl.concat([rows.with_columns(step=pl.lit(step)) for step in (0, 1)])


@pytest.fixture(scope="module")
def arms(plan: Plan, campaign: FiniteCampaign) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Users who followed the plan, and users as logged."""
    shares = plan.policy.pricing.shares
    runs = [
        campaign.run(partial(plan.policy.probabilities, row=row), round(share * USERS), 70 + row).totals
        for row, share in enumerate(shares)
    ]
    followed = np.concatenate(runs, axis=1)
    log = campaign.log(USERS, seed=77).group_by("user").agg(pl.col("reward").sum(), pl.col("cost").sum())
    return table(followed, "a"), table(np.stack([log["reward"].to_numpy(), log["cost"].to_numpy()]), "b")


def test_what_a_plan_does_is_what_it_promised(
    plan: Plan, campaign: FiniteCampaign, arms: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    first, second = (read_arm(arm) for arm in arms)
    content = compare_arms((first, second), plan, 0.99, 0.5, 2.0)
    truth, today = true_value(campaign, plan), campaign.uniform()
    for name in ("reward", "cost"):
        gap, exact = content["difference"][name], getattr(truth, name) - getattr(today, name)
        assert gap["lower"] < exact < gap["upper"]
    worth = content["difference"]["worth"]
    assert worth["lower"] < 2 * (truth.reward - today.reward) - (truth.cost - today.cost) < worth["upper"]
    promise = content["promise"]
    assert promise["status"] in ("kept", "open")
    assert [row["what"] for row in promise["promises"]] == ["reward", "cost", "reward_difference", "cost_difference"]
    assert {row["verdict"] for row in promise["promises"]} == {"as promised"}
    assert content["findings"] == [] and promise["notes"] == []


def test_a_plan_that_breaks_its_budget_is_found_out(plan: Plan, arms: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    dearer = read_arm(arms[0].with_columns(cost=pl.col("cost") * 1.2))
    kept = compare_with_promise(plan, dearer, read_arm(arms[1]), 0.95)
    assert kept.status == "contradicted"
    assert "above the budget" in kept.sentence
    verdicts = {row.what: row.verdict for row in kept.promises}
    assert verdicts["cost"] == verdicts["cost_difference"] == "more"
    few = arms[0].filter(pl.col("user").is_in([f"a{place}" for place in range(30)]))
    # So many users who cost the very budget can tell neither.
    at_budget = few.with_columns(cost=pl.col("cost") * (30 * plan.certificate.budget / pl.col("cost").sum()))
    assert compare_with_promise(plan, read_arm(at_budget), read_arm(arms[1]), 0.95).status == "open"
    asked = replace(plan, certificate=replace(plan.certificate, target_reward=99.0))
    assert compare_with_promise(asked, dearer, read_arm(arms[1]), 0.95).status == "contradicted"


def test_a_campaign_that_is_not_over_is_said(plan: Plan, arms: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    begun = read_arm(arms[0].filter(pl.col("step") == 0))
    (note,) = compare_with_promise(plan, begun, read_arm(arms[1]), 0.95).notes
    assert "2 steps and its arm has 1" in note


def test_the_command_compares_and_its_exit_code_tells(
    plan: Plan, arms: tuple[pl.DataFrame, pl.DataFrame], tmp_path: Path
) -> None:
    plan.save(tmp_path / "plan", {})
    both = pl.concat([arm.with_columns(arm=pl.lit(name)) for arm, name in zip(arms, ("plan", "today"), strict=True)])
    both.write_parquet(tmp_path / "both.parquet")
    arms[0].with_columns(cost=pl.col("cost") * 1.2).write_csv(tmp_path / "dear.csv")
    arms[1].write_csv(tmp_path / "today.csv", separator=";", decimal_comma=True)
    good = run("compare", tmp_path / "both.parquet", "--arm", "arm", "--plan", tmp_path / "plan", "--json")
    assert good.returncode == 0, good.stderr
    assert [arm["name"] for arm in json.loads(good.stdout)["arms"]] == ["plan", "today"]
    options = ("--plan", tmp_path / "plan", "--currency", "EUR", "--audience", 50_000)
    bad = run("compare", tmp_path / "dear.csv", tmp_path / "today.csv", *options)
    assert bad.returncode == 3, bad.stderr
    shown = " ".join(bad.stdout.split())
    assert "above the budget of 2.929" in shown
    assert "For 50,000 users that is" in shown
    wrong = run("compare", tmp_path / "dear.csv", tmp_path / "dear.csv")
    assert wrong.returncode == 2
    assert "in both arms, such as" in wrong.stderr and "such as 'a0'" in wrong.stderr


def test_what_is_wrong_with_the_arms_is_said(arms: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    both = pl.concat([arm.with_columns(group=pl.lit(name)) for arm, name in zip(arms, "AB", strict=True)])
    with pytest.raises(UsageError, match="name the one that followed the plan, such as --first 'A'"):
        read_both_arms(both, "group")
    first, second = read_both_arms(both, "group", "B")
    assert (first.name, second.name) == ("B", "A")
    with pytest.raises(UsageError, match="did you mean 'group'"):
        read_both_arms(both, "gruop")
    with pytest.raises(UsageError, match="in both arms"):
        read_both_arms(both.with_columns(user=pl.col("user").str.slice(1)), "group", "A")
    with pytest.raises(LogError, match="cost"):
        read_arm(both.drop("cost"))
    with pytest.raises(LogError, match="lots"):
        read_arm(both.with_columns(cost=pl.col("cost").cast(pl.String).replace(str(both["cost"][0]), "lots")))
    (note,) = read_arm(pl.concat([arms[0], arms[0].head(3)])).notes
    assert "3 rows with the user and step of another" in note
    content = compare_arms((first, second), None, 0.95, 0.9, None)
    assert "with a random assignment that happens once in" in content["findings"][0]

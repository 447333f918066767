"""A control group: the same users in tables, one at a time and at every seed, marked, and left out of the next log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Cache, Campaign, FitSettings, Plan, Rule, UsageError, fit, log_from_frame
from redenvelope.errors import LogError, PlanError
from redenvelope.log.log import Log
from redenvelope.plan.decide import ACTION_STREAM, Decider
from redenvelope.policies.pricing import Pricing
from redenvelope.randomness import fraction, user_keys
from redenvelope.report.sections import rules_sentences
from redenvelope.simulate.finite import FiniteCampaign
from tests.program import run_here
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK

SHARE = 0.05


@pytest.fixture(scope="module")
def held(log: Log, stages: Path) -> Plan:
    """The small plan, of a campaign with a control group."""
    settings, campaign = FitSettings(neural=QUICK), Campaign(holdout=SHARE)
    with quick_programs():
        return fit(log, budget=BUDGET, campaign=campaign, settings=settings, cache=Cache(stages), audience=1_000)


@pytest.fixture(scope="module")
def users(campaign: FiniteCampaign) -> pl.DataFrame:
    return campaign.log(4_000, seed=9).select("user", "step", "state")


def test_the_share_is_held_out_for_good_and_gets_the_cheapest_action(held: Plan, users: pl.DataFrame) -> None:
    one, other = (held.allocate(users, seed=seed)[0] for seed in (0, 1))
    assert one["holdout"].to_list() == other["holdout"].to_list()
    steps = one.group_by("user").agg(pl.col("holdout").n_unique())
    assert steps["holdout"].max() == 1  # in both steps or in none
    control, rest = one.filter("holdout"), one.filter(~pl.col("holdout"))
    # 4,000 users: the share is known to 0.0034, one standard error.
    assert control["user"].n_unique() / 4_000 == pytest.approx(SHARE, abs=0.011)
    assert set(control["action"].cast(pl.String)) == {held.catalogue.labels[0]}
    assert set(control["propensity"]) == {1.0}
    assert rest["action"].n_unique() > 1


def test_everybody_else_gets_what_the_plan_gives_without_it(plan: Plan, held: Plan, users: pl.DataFrame) -> None:
    assert held.certificate.cost == plan.certificate.cost
    decided, _ = held.allocate(users, seed=3)
    without, _ = plan.allocate(users, seed=3)
    assert "holdout" not in without.columns
    rest = ~decided["holdout"]
    assert decided.drop("holdout").filter(rest).equals(without.filter(rest))


def test_it_is_independent_of_other_draws(held: Plan) -> None:
    """The two draws of 20,000 users are uncorrelated within four standard errors of 0.007."""
    frame = pl.DataFrame({"user": range(20_000), "step": 0, "state": "s0"})
    marks, keys = held.allocate(frame)[0]["holdout"].to_numpy(), user_keys(frame["user"])
    for seed in (0, 1, 2):
        drawn = [fraction(keys, ACTION_STREAM, seed, step) for step in (0, 1)]
        drawn.append(Pricing(((0.2,), (1.5,)), (0.5, 0.5)).drawn(keys, seed))
        assert np.abs([np.corrcoef(marks, one)[0, 1] for one in drawn]).max() < 0.028


def test_one_user_at_a_time_is_as_in_a_table(held: Plan, users: pl.DataFrame) -> None:
    some = users.head(300)
    together, decider = held.allocate(some)[0], Decider(held)
    decided = [decider.decide(row) for row in some.iter_rows(named=True)]
    assert [one.holdout for one in decided] == together["holdout"].to_list()
    assert [one.action for one in decided] == together["action"].to_list()
    place = together["holdout"].to_list().index(True)
    why = decider.explain(some.row(place, named=True))
    assert why.holdout and "control group" in str(why) and "chance" not in str(why)
    assert held.explain(some.row(place, named=True)).as_dict()["holdout"] is True


def test_the_cheapest_is_the_cheapest_that_is_eligible(held: Plan, users: pl.DataFrame) -> None:
    labels = held.catalogue.labels
    listed = users.with_columns(eligible=pl.lit([labels[2], labels[1]]))
    decided, _ = held.allocate(listed)
    assert set(decided.filter("holdout")["action"].cast(pl.String)) == {labels[1]}
    rule = Rule((labels[0],), only_where="step >= 1")
    ruled, _ = replace(held, policy=replace(held.policy, rules=(rule,))).allocate(users)
    control = ruled.filter("holdout").group_by("step").agg(pl.col("action").unique())
    assert dict(control.iter_rows()) == {0: [labels[1]], 1: [labels[0]]}


def test_it_is_kept_repriced_and_hashed(held: Plan, users: pl.DataFrame, tmp_path: Path) -> None:
    held.save(tmp_path / "plan", {})
    again = Plan.load(tmp_path / "plan")
    assert again.policy.holdout == again.reprice(budget=BUDGET * 0.9).policy.holdout == SHARE
    assert again.allocate(users)[0].equals(held.allocate(users)[0])
    forged = replace(held, policy=replace(held.policy, holdout=0.5))
    forged.save(tmp_path / "forged", {})
    with pytest.raises(PlanError, match="certificate is not this policy's"):
        Plan.load(tmp_path / "forged")


def test_sums_count_those_who_follow_the_plan(held: Plan) -> None:
    assert held.totals is not None
    assert held.totals.audience == 950
    assert held.totals.cost == pytest.approx(950 * held.certificate.cost.estimate)
    assert "950 of 1,000 users" in " ".join(rules_sentences(held))


def test_the_next_log_leaves_them_out(held: Plan, campaign: FiniteCampaign, tmp_path: Path) -> None:
    frame = campaign.log(2_000, seed=5)
    decided = held.allocate(frame.select("user", "step", "state"))[0]
    marked = frame.join(decided.select("user", "step", "holdout"), on=["user", "step"])
    rest, count = marked.filter(~pl.col("holdout")).drop("holdout"), int(marked["holdout"].sum())
    wanted = log_from_frame(rest)
    marked.write_csv(tmp_path / "log.csv")
    for given in (
        log_from_frame(marked),
        log_from_frame(marked.with_columns(pl.col("holdout").cast(pl.Int8))),
        log_from_frame(marked.rename({"holdout": "control"}), {"holdout": "control"}),
        log_from_frame(pl.read_csv(tmp_path / "log.csv", infer_schema=False)),
    ):
        assert given.features.names == wanted.features.names
        np.testing.assert_array_equal(given.cost, wanted.cost)
        (finding,) = (each for each in given.findings if each.rule == "holdout_left_out")
        assert finding.count == count
    with pytest.raises(UsageError, match="true or false in every row"):
        log_from_frame(marked.with_columns(control=pl.lit("maybe")).drop("holdout"), {"holdout": "control"})
    with pytest.raises(LogError, match="file_no_rows"):
        log_from_frame(marked.with_columns(holdout=True))
    other = log_from_frame(frame.with_columns(holdout=pl.col("user") % 7))  # a feature of that name, as before
    assert "holdout" in other.features.names
    with pytest.raises(UsageError, match="rename it"):
        Campaign(holdout=0.1).check(other)


def test_a_lake_is_decided_and_read_the_same(held: Plan, campaign: FiniteCampaign, tmp_path: Path) -> None:
    held.save(tmp_path / "plan", {})
    frame = campaign.log(1_200, seed=6)
    (tmp_path / "users").mkdir()
    for place, part in enumerate(frame.partition_by("step")):
        part.select("user", "step", "state").write_parquet(tmp_path / "users" / f"{place}.parquet")
    done = run_here("allocate", "plan", "users", "--out", "decisions", "--parts", "2", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    decided = pl.read_parquet(tmp_path / "decisions" / "*.parquet").sort("user", "step")
    wanted = held.allocate(frame.select("user", "step", "state"))[0].sort("user", "step")
    assert decided.equals(wanted)
    assert f'"held_out": {wanted["holdout"].sum()}' in done.stdout
    marked = frame.join(wanted.select("user", "step", "holdout"), on=["user", "step"])
    (tmp_path / "lake").mkdir()
    for place, part in enumerate(marked.partition_by("holdout")):  # one of the files holds nobody else
        part.write_parquet(tmp_path / "lake" / f"{place}.parquet")
    found = run_here("audit", "lake", "--work", "work", "--parts", "2", "--json", folder=tmp_path)
    alone = run_here("audit", "log.parquet", "--json", folder=_written(marked, tmp_path))
    assert found.returncode == alone.returncode == 0, found.stderr + alone.stderr
    assert '"holdout_left_out"' in found.stdout and '"holdout_left_out"' in alone.stdout
    users = int((~wanted["holdout"]).sum() / 2)
    assert f'"users": {users}' in found.stdout and f'"users": {users}' in alone.stdout


def _written(frame: pl.DataFrame, folder: Path) -> Path:
    frame.write_parquet(folder / "log.parquet")
    return folder


def test_compare_takes_the_plans_users_and_the_control_group(held: Plan, tmp_path: Path) -> None:
    held.save(tmp_path / "plan", {})
    chance = np.random.default_rng(3)
    frame = pl.DataFrame({"user": range(4_000), "step": 0, "state": "s0"})
    decided, _ = held.allocate(frame)
    paid = np.where(decided["holdout"], 0.7, 1.4) + chance.normal(0, 0.1, 4_000)
    marked = decided.with_columns(reward=pl.Series(3 * paid), cost=pl.Series(paid))
    folder = _written(marked.select("user", "reward", "cost", "holdout"), tmp_path)
    done = run_here("compare", "log.parquet", "--plan", "plan", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    assert '"name": "plan"' in done.stdout and '"name": "held out"' in done.stdout
    assert "no gain over it was promised" in done.stdout and "reward_difference" not in done.stdout
    assert "Find out who is missing" not in done.stdout
    said = held.compare(marked.select("user", "reward", "cost", "holdout").to_pandas())
    assert said == json.loads(done.stdout)
    lost = marked.filter(~pl.col("holdout") | (pl.col("user") % 2 == 0))  # half of the control group is missing
    missing = run_here("compare", "log.parquet", "--plan", "plan", folder=_written(lost, tmp_path))
    assert "Find out who is missing" in missing.stdout.replace("\n", " ")
    without = run_here("compare", "log.parquet", folder=_written(marked.drop("holdout"), tmp_path))
    assert without.returncode == 2 and "--arm COLUMN" in without.stderr
    same = run_here("compare", "log.parquet", folder=_written(marked.filter("holdout"), tmp_path))
    assert same.returncode == 2 and "the same in all rows" in same.stderr


@pytest.mark.parametrize("share", [1, 1.0, -0.1, True, "0.05", float("nan"), None])
def test_a_share_that_is_none_is_refused(share: object) -> None:
    with pytest.raises(UsageError, match="holdout"):
        Campaign(holdout=share)  # type: ignore[arg-type]
    if share is not None:
        with pytest.raises(UsageError, match="holdout"):
            Campaign.of({"holdout": share})
    assert Campaign.of({"holdout": 0.05}).holdout == 0.05

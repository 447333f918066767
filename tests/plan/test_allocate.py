from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope.errors import ModelError, UsageError
from redenvelope.log.columns import ColumnMap
from redenvelope.plan import allocate as users_table
from redenvelope.plan.allocate import allocate_file
from redenvelope.plan.plan import Plan
from redenvelope.randomness import user_keys
from redenvelope.simulate.finite import FiniteCampaign


@pytest.fixture(scope="module")
def users(campaign: FiniteCampaign) -> pl.DataFrame:
    return campaign.log(4_000, seed=9).select("user", "step", "state")


def test_a_decision_depends_on_nobody_else(plan: Plan, users: pl.DataFrame) -> None:
    together, _ = plan.allocate(users, seed=1)
    shuffled, _ = plan.allocate(users.sample(fraction=1.0, shuffle=True, seed=5), seed=1)
    assert shuffled.sort("user", "step").equals(together)
    alone, _ = plan.allocate(users[17:18], seed=1)
    assert alone.equals(together[17:18])
    assert not plan.allocate(users, seed=2)[0]["action"].equals(together["action"])


def test_propensities_are_those_of_the_policy_and_of_the_draw(plan: Plan, users: pl.DataFrame) -> None:
    decisions, _ = plan.allocate(users, seed=0)
    pricing = plan.policy.pricing
    rows = np.stack([plan.policy.probabilities(users, row) for row in range(len(pricing.shares))])
    probabilities = rows[pricing.drawn(user_keys(users["user"]), 0), np.arange(len(users))]
    place = decisions["action"].replace_strict({label: i for i, label in enumerate(plan.catalogue.labels)}).to_numpy()
    # Two programs, for one price and for two: values of about 4, rounded to 24 bits, are divided by the temperature.
    rounding = 4 * 2.0**-23 / plan.policy.specification.temperature
    np.testing.assert_allclose(decisions["propensity"], probabilities[np.arange(len(users)), place], rtol=rounding)
    shares = np.bincount(place, minlength=4) / len(users)
    expected = probabilities.mean(axis=0)
    # A frequency over n draws has an error of at most √(p (1 − p) / n); four of them.
    assert (np.abs(shares - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(users)) + 1e-12).all()


def test_decisions_joined_with_outcomes_are_a_log(plan: Plan, users: pl.DataFrame) -> None:
    from redenvelope.log.read import log_from_frame

    decisions, _ = plan.allocate(users, seed=0)
    outcomes = pl.DataFrame({"reward": np.arange(len(users)) % 2, "cost": np.arange(len(users)) % 3})
    joined = decisions.drop("expected_reward", "expected_cost").hstack(outcomes).hstack(users.select("state"))
    assert len(log_from_frame(joined)) == len(users)


def test_what_is_odd_about_a_table_is_reported(plan: Plan, users: pl.DataFrame) -> None:
    _, findings = plan.allocate(users.with_columns(state=pl.lit("s99")))
    assert [finding.rule for finding in findings] == ["serving_unseen_label"]


def test_what_cannot_be_decided_is_refused(plan: Plan, users: pl.DataFrame) -> None:
    with pytest.raises(ModelError, match="row 1: step 7 is not a step"):
        plan.allocate(users.filter(step=0).with_columns(step=pl.lit(7)))
    with pytest.raises(UsageError, match="no column 'user'"):
        plan.allocate(users.drop("user"))
    with pytest.raises(ModelError, match="none of the 1 features"):
        plan.allocate(users.drop("state"))
    with pytest.raises(ModelError, match="row 3: 2 row"):
        plan.allocate(pl.concat([users[:4], users[2:3]]))
    with pytest.raises(ModelError, match="row 1: the user is missing"):
        plan.allocate(users.with_columns(user=pl.lit(None, dtype=pl.Int64)))


def test_files_are_decided_in_parts(
    plan: Plan, users: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.write_parquet(tmp_path / "users.parquet")
    users.write_csv(tmp_path / "users.csv")
    summary = allocate_file(plan, tmp_path / "users.parquet", tmp_path / "whole.parquet", seed=0)
    monkeypatch.setattr(users_table, "ROWS_AT_ONCE", 999)
    allocate_file(plan, tmp_path / "users.parquet", tmp_path / "parts.parquet", seed=0)
    allocate_file(plan, tmp_path / "users.csv", tmp_path / "csv.parquet", seed=0)
    whole, parts, from_csv = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("whole", "parts", "csv"))
    assert parts.equals(whole)
    assert from_csv["action"].equals(whole["action"])
    assert summary.users == len(users) == sum(summary.actions.values())
    assert whole.columns == ["user", "step", "action", "propensity", "expected_reward", "expected_cost"]


def test_bad_files_are_refused(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UsageError, match="damaged"):
        allocate_file(plan, tmp_path / "bad.parquet", tmp_path / "out.parquet", seed=0)
    with pytest.raises(UsageError, match="no such file"):
        allocate_file(plan, tmp_path / "missing.parquet", tmp_path / "out.parquet", seed=0)
    with pytest.raises(UsageError, match=r"\.parquet or \.csv"):
        allocate_file(plan, tmp_path / "bad.parquet", tmp_path / "out.xlsx", seed=0)
    assert not (tmp_path / "out.parquet").exists()


def test_ids_with_leading_zeros_stay_apart(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user,step,state\n00012,0,s0\n12,0,s0\n", encoding="utf-8")
    allocate_file(plan, tmp_path / "users.csv", tmp_path / "out.parquet", seed=0)
    assert pl.read_parquet(tmp_path / "out.parquet")["user"].to_list() == ["00012", "12"]


def test_the_logs_own_column_names_are_remembered(plan: Plan, users: pl.DataFrame, tmp_path: Path) -> None:
    named = plan.with_source("log.parquet", ColumnMap({"user": "customer", "step": "wave"}), "2024-05-01")
    users.rename({"user": "customer", "step": "wave"}).write_parquet(tmp_path / "theirs.parquet")
    users.write_parquet(tmp_path / "ours.parquet")
    results = []
    for name in ("theirs", "ours"):
        allocate_file(named, tmp_path / f"{name}.parquet", tmp_path / f"{name}-out.parquet", seed=0)
        results.append(pl.read_parquet(tmp_path / f"{name}-out.parquet"))
    # Decisions come back under the names of the table that was given.
    assert results[0].columns[:3] == ["customer", "wave", "action"]
    assert results[0].rename({"customer": "user", "wave": "step"}).equals(results[1])
    own = named.allocate(users.rename({"user": "customer"}), 0)[0]
    assert own.columns[:2] == ["customer", "step"]
    reloaded = Plan.load(named.save(tmp_path / "plan"))
    assert reloaded.columns == named.columns
    assert plan.columns == ColumnMap()


def test_names_given_by_hand_win_and_must_be_there(plan: Plan, users: pl.DataFrame, tmp_path: Path) -> None:
    users.rename({"user": "who"}).write_csv(tmp_path / "users.csv")
    out = tmp_path / "out.parquet"
    allocate_file(plan, tmp_path / "users.csv", out, 0, ColumnMap({"user": "who"}))
    assert pl.read_parquet(out)["action"].equals(plan.allocate(users, 0)[0]["action"])
    with pytest.raises(UsageError, match=r"no column 'customer'.*named for 'user'"):
        allocate_file(plan, tmp_path / "users.csv", out, 0, ColumnMap({"user": "customer"}))

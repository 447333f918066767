"""A plan that decides by what happened before: the two-step problem without the column that tells it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import (
    ColumnMap,
    Decider,
    FiniteCampaign,
    FitSettings,
    LocalEngine,
    ModelError,
    Plan,
    Pricing,
    allocate_folder,
    fit,
    log_from_frame,
)
from tests.program import run_here as run
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK


def hidden(frame: pl.DataFrame) -> pl.DataFrame:
    """The table without its state, and with a feature that says nothing."""
    return frame.drop("state").with_columns((pl.col("user") % 7).alias("lucky"))


@pytest.fixture(scope="module")
def forgetful(campaign: FiniteCampaign) -> Plan:
    log = log_from_frame(hidden(campaign.log(6_000, seed=4)))
    with quick_programs():
        return fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK, temperature=0.0))


@pytest.fixture(scope="module")
def table(campaign: FiniteCampaign) -> pl.DataFrame:
    return hidden(campaign.log(300, seed=9))


def test_a_complete_table_ends_without_a_history(plan: Plan) -> None:
    assert not plan.needs_history


def test_the_past_earns_what_the_column_would(forgetful: Plan, campaign: FiniteCampaign) -> None:
    assert forgetful.needs_history
    problem, price = campaign.problem, campaign.optimum(BUDGET).dual
    assert price is not None

    def decide(frame: pl.DataFrame) -> np.ndarray:
        step = int(frame["step"][0])
        asked = frame.select("user", "step").with_columns(pl.lit(3).alias("lucky"))
        if step == 0:
            return policy.probabilities(asked)
        sent = frame["state"].str.slice(1).cast(pl.Int64) - 1
        past = pl.DataFrame(
            {
                "user": frame["user"],
                "step": np.zeros(len(frame), int),
                "action": [campaign.actions[place] for place in sent],
                "reward": problem.rewards[0, sent.to_numpy()],
                "cost": problem.costs[0, 0, sent.to_numpy()],
            }
        )
        return policy.probabilities(asked, history=past)

    for dual in (0.9 * price, 1.1 * price):
        policy = replace(forgetful.policy, pricing=Pricing.at(dual))
        found = campaign.value(decide)
        # The bandit that knows the truth earns 0.976 of the optimum at this budget.
        assert found.reward > 0.99 * campaign.optimum(found.cost).reward


def test_one_by_one_decides_as_a_table(forgetful: Plan, table: pl.DataFrame, tmp_path: Path) -> None:
    again = Plan.load(forgetful.save(tmp_path / "plan", {}))
    users = table.select("user", "step", "lucky")
    together, _ = again.allocate(users, seed=3, history=table)
    decider = Decider(again, seed=3).warm()
    past = {user: rows.to_dicts() for (user,), rows in table.group_by("user")}
    alone = [decider.decide(row, history=past[row["user"]]) for row in users.iter_rows(named=True)]
    assert [decision.action for decision in alone] == together["action"].to_list()
    for name in ("propensity", "expected_reward", "expected_cost"):
        np.testing.assert_allclose([getattr(one, name) for one in alone], together[name], rtol=1e-5, atol=1e-6)


def test_a_log_tells_its_own_past(forgetful: Plan, table: pl.DataFrame) -> None:
    log = forgetful.recoded(log_from_frame(table))
    values = forgetful.policy.values(log).probabilities[:, 0]
    asked = forgetful.policy.probabilities(table.sort("user", "step"), history=table)
    np.testing.assert_allclose(values, asked, atol=1e-5)


def test_without_a_past_it_says_what_to_do(forgetful: Plan, table: pl.DataFrame) -> None:
    users = table.select("user", "step", "lucky")
    forgetful.allocate(users.filter(pl.col("step") == 0))
    with pytest.raises(ModelError, match=r"300 users past the campaign's first step"):
        forgetful.allocate(users)
    with pytest.raises(ModelError, match="past the campaign's first"):
        Decider(forgetful).decide({"user": 1, "step": 1, "lucky": 2})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_command_takes_a_past(
    forgetful: Plan,
    table: pl.DataFrame,
    tmp_path: Path,
    suffix: str,
) -> None:
    mapped = forgetful.with_source("log.csv", ColumnMap({"user": "customer", "reward": "active"}), "2024-01-01")
    folder = mapped.save(tmp_path / "plan", {})
    named = table.rename({"user": "customer", "reward": "active"})
    users, past, out = (tmp_path / f"{name}{suffix}" for name in ("users", "past", "out"))
    now = named.filter(pl.col("step") == 1).select("customer", "step", "lucky")
    for frame, path in ((now, users), (named.drop("propensity"), past)):
        frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
    arguments = ("allocate", folder, users, "--out", out)
    refused = run(*arguments)
    assert refused.returncode == 2 and "300 users past the campaign's first step" in refused.stderr
    assert run(*arguments, "--history", past).returncode == 0
    written = pl.read_csv(out) if suffix == ".csv" else pl.read_parquet(out)
    expected, _ = forgetful.allocate(table.filter(pl.col("step") == 1), history=table)
    assert written["action"].to_list() == expected["action"].to_list()


def test_a_past_of_any_size_is_divided_with_its_users(forgetful: Plan, table: pl.DataFrame, tmp_path: Path) -> None:
    """Users and past in files of their own, in other orders and types: every part finds the past of its users."""
    later = table.filter(pl.col("step") == 1)
    for name, rows in (("users", later.select("user", "step", "lucky")), ("past", table.filter(pl.col("step") == 0))):
        (tmp_path / name).mkdir()
        mixed = rows.sample(fraction=1.0, shuffle=True, seed=1)
        mixed[:100].write_parquet(tmp_path / name / "a.parquet")
        mixed[100:].with_columns(pl.col("user").cast(pl.Int32)).write_parquet(tmp_path / name / "b.parquet")
    said = {"engine": LocalEngine(1), "parts": 4}
    allocate_folder(forgetful, tmp_path / "users", tmp_path / "out", 5, history=tmp_path / "past", **said)
    decided = pl.concat([pl.read_parquet(file) for file in sorted((tmp_path / "out").glob("*.parquet"))])
    expected, _ = forgetful.allocate(later, 5, table)
    assert decided.sort("user").equals(expected.sort("user"))


@pytest.mark.slow
def test_history_can_be_forbidden(campaign: FiniteCampaign) -> None:
    log = log_from_frame(hidden(campaign.log(2_000, seed=5)))
    assert not fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK, history="none")).needs_history

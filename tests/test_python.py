"""What Python can do as directly as the command line: tables, paths and dicts in, words out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import (
    Budget,
    Campaign,
    ColumnMap,
    Decider,
    FitSettings,
    LogError,
    Plan,
    UsageError,
    audit_log,
    fit,
    log_from_frame,
    two_step,
)
from redenvelope.log.rules import RULES
from redenvelope.wording import command_has, for_reader, interval, speaking_to_commands
from tests.program import COMMANDS, run_here
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK, plan, stages

__all__ = ["plan", "stages"]

OWN_NAMES = {"user": "customer", "reward": "earned", "cost": "paid"}


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return two_step().log(400, seed=4)


def test_a_frame_a_path_and_a_log_give_the_same_plan(frame: pl.DataFrame, tmp_path: Path) -> None:
    own = frame.rename(OWN_NAMES)
    own.write_csv(tmp_path / "log.csv")
    sources = (own, own.to_pandas(), str(tmp_path / "log.csv"), tmp_path / "log.csv")
    audits = [audit_log(source, columns=OWN_NAMES) for source in sources]
    audits.append(audit_log(log_from_frame(own, OWN_NAMES)))
    assert len({str(audit.logged_cost) for audit in audits}) == 1
    # A fit stops at its own checks only after it has read the log.
    for source in sources:
        with pytest.raises(LogError, match="fit_few_users"):
            fit(source, budget=3, columns=OWN_NAMES)
        with pytest.raises(LogError, match="fit_few_users"):
            fit(source, budget=3, campaign={"columns": OWN_NAMES})


def test_a_pandas_frame_needs_no_pyarrow() -> None:
    script = """
import sys
sys.modules["pyarrow"] = None
import pandas as pd
from redenvelope import log_from_frame, two_step
frame = two_step().log(50, seed=1).to_dict(as_series=False)
print(log_from_frame(pd.DataFrame(frame)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "50 users" in done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budget": -1}, "0 or more, not -1"),
        ({"budget": "5"}, "a number, not '5'"),
        ({"budget": float("nan")}, "a number, not nan"),
        ({"budget": True}, "a number, not True"),
        ({"budget": 3, "audience": 0}, "an audience"),
        ({"budget": 3, "audience": "5"}, "an audience"),
        ({"budget": 3, "seeds": 1}, "did you mean seed?"),
        ({"budget": 3, "seed": -1}, "the seed"),
        ({"budget": 3, "campaign": "no.toml"}, "no such campaign file"),
        ({"budget": 3, "campaign": {"budgets": []}}, "did you mean [[budget]]?"),
        ({"budget": 3, "settings": {"seed": 1}}, "settings must be FitSettings"),
        ({"budget": 3, "temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"budget": 3, "explore": True}, "explore must be a number, not True"),
        ({"budget": 3, "confidence": None}, "confidence must be a number, not None"),
        ({"budget": 3, "campaign": 7}, "must be a Campaign"),
        ({"budget": 3, "columns": {"person": "x"}}, "'person' is not a role"),
        ({"budget": 3, "columns": "user=x"}, "must be a ColumnMap"),
        ({}, "either budget=…, the mean cost"),
    ],
)
def test_arguments_are_refused_before_the_log_is_read(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        fit("there/is/no/such/log.parquet", **given)  # type: ignore[arg-type]
    assert said in str(refused.value)


def test_what_is_no_plan_no_user_and_no_budget_is_refused(plan: Plan) -> None:
    with pytest.raises(UsageError, match="by the path of its folder, not by 3"):
        Decider(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a mapping of names to values, such as a dict, not a str"):
        plan.explain("17")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="read_parquet"):
        plan.allocate("users.parquet")
    with pytest.raises(UsageError, match="budgets must be a list of Budget"):
        Campaign(budgets=Budget("all", per_user=2.5))  # type: ignore[arg-type]
    assert Campaign(budgets=[Budget("all", per_user=2.5)]).budgets == (Budget("all", per_user=2.5),)  # type: ignore[arg-type]
    assert FitSettings(seed=np.int64(3)) == FitSettings(seed=3)  # type: ignore[arg-type]


def test_a_campaign_is_a_path_or_the_same_entries_in_a_dict(tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").write_text('audience = 7\n[[budget]]\nname = "all"\nper_user = 2.5\n')
    entries = {"audience": 7, "budget": [{"name": "all", "per_user": 2.5}]}
    assert Campaign.of(tmp_path / "campaign.toml") == Campaign.of(entries) == Campaign.from_toml(entries)
    with pytest.raises(UsageError, match="audience"):
        Campaign.of(entries | {"audience": 0})


def test_every_way_to_name_columns_means_the_same() -> None:
    entries = {"user": "customer", "eligible": "could_get", "time": "at", "missing_cost": 0.0, "ignore": ["id"]}
    pairs = "user=customer,eligible=could_get,time=at,missing_cost=0,ignore=id"
    assert ColumnMap.of(entries) == ColumnMap.parse(pairs)
    assert ColumnMap.parse("user=customer,eligible=could_get", "id").reading("at", missing_cost=0) == ColumnMap.of(
        entries
    )


def test_a_decider_opens_a_plan_and_a_plan_takes_another_budget(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan", {"report.html": b""})
    row = {"user": 17, "step": 0, "state": "s0"}
    assert Decider(str(tmp_path / "plan")).decide(row) == Decider(plan).decide(row)
    again = plan.reprice(budget=2.8, audience=1_000)
    assert again.certificate.budget == 2.8
    assert again.totals is not None
    assert again.totals.audience == 1_000
    with pytest.raises(UsageError, match="not 'much'"):
        plan.reprice(budget="much")  # type: ignore[arg-type]


def test_objects_print_as_a_reader_wants_them(frame: pl.DataFrame, plan: Plan) -> None:
    audit = audit_log(frame)
    for shown in (audit, plan.certificate, plan):
        said, page = str(shown), shown._repr_html_()
        assert "np.float" not in said
        assert "(estimate=" not in said
        assert page.startswith("<div>")
        assert page.endswith("</div>")
    assert str(audit).startswith("400 users, 800 rows, 2 steps, 4 actions")
    assert str(plan.certificate).startswith("Certified: on ")
    assert f"budget of {BUDGET:.4g}" in str(plan)


def test_a_plan_of_several_budgets_prints_each(plan: Plan) -> None:
    from dataclasses import replace

    own = plan.certificate.budgets[0]
    several = replace(plan.certificate, budgets=(replace(own, name="money"), replace(own, name="pushes", budget=1.5)))
    said = str(replace(plan, certificate=several))
    assert "money 2.93, pushes 1.5" in said.replace("2.929", "2.93")
    assert "costs, money" in said
    assert "costs, pushes" in said


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((3.0, 3.18), "3.00 to 3.18"),
        ((-3.0, 2.5), "−3.0 to 2.5"),
        ((0.067, 0.0785), "0.0670 to 0.0785"),
        ((999.0, 1001.0), "999 to 1,001"),
        ((-np.inf, 3.12), "−∞ to 3.12"),
        ((1e-9, 2.0), "1e−09 to 2"),
    ],
)
def test_the_ends_of_an_interval_have_equally_many_decimals(ends: tuple[float, float], said: str) -> None:
    assert interval(*ends) == said


# Remedies in the language of who reads them

SAID = "leave it out with --ignore notes, name it with --columns user=a,cost=b; or --estimate-propensity; or --time."


def test_remedies_name_arguments_in_python_and_options_in_commands() -> None:
    assert for_reader(SAID) == (
        'leave it out with columns={"ignore": "notes"}, name it with columns={"user": "a", "cost": "b"}; or '
        'estimate_propensity=True; or columns={"time": …}.'
    )
    assert for_reader("confirm with --known-before tier; or --missing-cost 0") == (
        'confirm with known_before=("tier",); or columns={"missing_cost": 0}'
    )
    assert for_reader("--columns user=a,cost=b --time sent --estimate-propensity") == (
        'columns={"user": "a", "cost": "b", "time": "sent"}, estimate_propensity=True'
    )
    with speaking_to_commands():
        assert for_reader(SAID) == SAID
        command_has(["--columns", "--estimate-propensity"])
        assert "--columns ignore=notes" in for_reader(SAID)
        assert "--columns time=…" in for_reader(SAID)
        command_has(["--budget"])
        assert for_reader("cap it with --most-per-user") == "cap it with fit --most-per-user"
    assert "--" not in for_reader(SAID)


def test_no_error_of_python_names_an_option_of_a_command(frame: pl.DataFrame) -> None:
    with pytest.raises(LogError) as refused:
        fit(frame.drop("propensity"), budget=3)
    assert "--" not in str(refused.value)
    assert "estimate_propensity=True" in str(refused.value)


@pytest.mark.parametrize("command", ["audit", "fit", "evaluate", "compare"])
def test_every_remedy_names_options_that_its_command_has(command: str) -> None:
    own = {option for each in COMMANDS[(command,)].params for option in each.opts}
    fitting = {"--work", "--known-before", "--estimate-propensity"}  # said of steps that only some commands take
    with speaking_to_commands():
        command_has(own)
        for name, rule in RULES.items():
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", for_reader(rule.remedy)))
            assert named - fitting <= own, (name, named - own)
    assert command == "compare" or "--estimate-propensity" in own


def test_compare_advises_what_it_takes(tmp_path: Path, frame: pl.DataFrame) -> None:
    # Days in the place of steps are fine; costs that are missing are not.
    days = pl.lit("2024-01-0") + (pl.col("step") + 1).cast(pl.String)
    odd = frame.with_columns(step=days, cost=pl.when(pl.col("cost") > 3).then(None).otherwise("cost"))
    for name in ("a", "b"):
        odd.with_columns(pl.col("user") + 1_000 * (name == "b")).write_csv(tmp_path / f"{name}.csv")
    refused = run_here("compare", "a.csv", "b.csv", folder=tmp_path)
    assert refused.returncode == 2
    (advised,) = set(re.findall(r"--columns [^\s;]+", refused.stderr))
    assert advised == "--columns missing_cost=0"
    done = run_here("compare", "a.csv", "b.csv", *advised.split(), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_frame_with_its_own_names_becomes_decisions_with_these_names() -> None:
    frame = two_step().log(3_000, seed=4).rename(OWN_NAMES | {"action": "offer"})
    columns = OWN_NAMES | {"action": "offer"}
    with quick_programs():
        plan = fit(frame, columns=columns, campaign={"audience": 500}, budget=BUDGET, neural=QUICK)
        decisions, _ = plan.allocate(frame.filter(step=0).select("customer", "step", "state"))
    assert decisions.columns[:4] == ["customer", "step", "offer", "propensity"]
    assert plan.totals is not None
    assert plan.totals.audience == 500
    assert plan.explain({"customer": 17, "step": 0, "state": "s0"}).user == 17

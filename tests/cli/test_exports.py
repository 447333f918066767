"""What people bring, from the export to a plan: at most one refusal each, which says what to paste."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from redenvelope import ColumnMap, log_from_frame
from tests.program import run, run_here
from tests.shop import EXPORTS, campaign, exported
from tests.two_step_plan import small_models

__all__ = ["small_models"]

PLAIN = "user=customer_id,step=week,action=coupon,propensity=probability,reward=revenue,cost=redeemed_amount"
SAME = ("german", "times", "redeemed", "cities", "dates", "lists", "workbook")
"""Exports of the same decisions with the same outcomes, however they are written."""
OUTCOMES = ("users", "rows", "steps", "actions", "overlap", "logged_reward", "logged_cost", "carry_over")
BUDGET = 2


def pasted(export: Path) -> list[str]:
    """The options that the one refusal of an export says to give."""
    refused = run_here("audit", export, "--json")
    assert refused.returncode == 2
    (error,) = (found for found in json.loads(refused.stdout)["findings"] if found["severity"] == "error")
    line = error["remedy"].rpartition(": ")[2]
    # On a terminal the line is in one piece, so that it can be pasted.
    assert line in run_here("audit", export).stdout
    return shlex.split(line)


def audited(export: Path, *options: str) -> dict[str, Any]:
    result = run_here("audit", export, *options, "--json")
    assert result.returncode == 0, result.stdout
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The audit of the campaign as a table that needs nothing but names."""
    path = tmp_path_factory.mktemp("plain") / "log.parquet"
    campaign(1_000).write_parquet(path)
    return audited(path, "--columns", PLAIN)


@pytest.mark.parametrize("name", EXPORTS)
def test_one_line_to_paste_makes_a_log_of_it(name: str, plain: dict[str, Any], tmp_path: Path) -> None:
    export = exported(name, tmp_path, users=1_000)
    found = audited(export, *pasted(export))
    assert found["status"] == "fit"
    if name in SAME:
        assert {key: found[key] for key in OUTCOMES} == {key: plain[key] for key in OUTCOMES}
    waves = 2 if name.startswith("wave") else 1
    assert (found["users"], found["rows"], found["steps"]) == (1_000, 3_000 * waves, 3)
    assert found["propensity_source"] == ("estimated" if name == "unlogged" else "logged")


def test_estimated_propensities_are_those_that_were_drawn_by(tmp_path: Path) -> None:
    table = campaign(3_000)
    roles = dict(pair.split("=") for pair in PLAIN.split(",") if not pair.startswith("propensity"))
    log = log_from_frame(table.drop("probability"), ColumnMap(roles), estimate_propensity=True)
    truth = table.sort("customer_id", "week")["probability"].to_numpy()
    # From 3,000 rows of either kind a frequency errs by 0.01; features that tell nothing add about as much.
    assert abs(log.propensity - truth).mean() < 0.03


def users_of(export: Path) -> pl.DataFrame:
    """Whom to decide for, in the export's own words: the first week of everybody, as far as it was known before."""
    if export.is_dir():
        return pl.read_parquet(export / "week=1" / "part-0.parquet").filter(pl.col("mailing") == 0)
    if export.suffix == ".parquet":
        return pl.read_parquet(export).filter(pl.col("week") == 0)
    if export.suffix == ".xlsx":
        table = pl.read_excel(export, infer_schema_length=None)
    else:
        text = export.read_text(encoding="utf-8-sig")
        table = pl.read_csv(export, separator=";" if ";" in text[:200] else ",", infer_schema=False)
    own = table.columns[0]
    return table.unique(own, keep="first", maintain_order=True)


def decided(export: Path, plan: Path, line: list[str], program: Any) -> None:
    """Decide by a plan for the users of an export, and write its report anew."""
    roles = dict(pair.split("=", 1) for pair in line[1].split(","))
    known = users_of(export).drop([roles[role] for role in ("action", "propensity", "reward", "cost") if role in roles])
    known = known.with_columns(pl.lit(0).alias(roles.get("step", "step")))
    folder = export.parent
    german = export.suffix == ".csv" and ";" in export.read_text(encoding="utf-8-sig")[:200]
    known.write_csv(folder / "users.csv", separator=";") if german else known.write_parquet(folder / "users.parquet")
    users = folder / ("users.csv" if german else "users.parquet")
    result = program("allocate", plan, users, "--out", folder / "decisions.csv", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["decisions"] == len(known)
    assert [found for found in told["findings"] if found["severity"] == "error"] == []
    written = pl.read_csv(folder / "decisions.csv")
    assert set(written[roles["action"]]) <= {"none", "2 € coupon", "5 € coupon"}
    assert program("report", plan, "--out", folder / "page.html").returncode == 0


def test_a_german_export_becomes_decisions(tmp_path: Path, small_models: None) -> None:
    export = exported("german", tmp_path, users=900)
    line, plan = pasted(export), tmp_path / "plan"
    made = run_here("fit", export, *line, "--budget", BUDGET, "--out", plan, "--json")
    assert made.returncode in (0, 3), made.stderr
    certificate = json.loads(made.stdout)["certificate"]
    assert certificate["cost"]["estimate"] <= BUDGET
    decided(export, plan, line, run_here)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where finished stages are kept: exports of one campaign train one model."""
    return tmp_path_factory.mktemp("stages")


@pytest.mark.slow  # half a minute each, and a few seconds where the same campaign was trained on before
@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_becomes_a_plan_and_decisions(name: str, shared: Path, tmp_path: Path) -> None:
    export, plan = exported(name, tmp_path, users=1_500), tmp_path / "plan"
    line = pasted(export)
    kept = {"env": os.environ | {"REDENVELOPE_CACHE": str(shared)}}
    made = run("fit", export, *line, "--budget", BUDGET, "--out", plan, "--json", **kept)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["certificate"]["cost"]["upper"] <= BUDGET
    decided(export, plan, line, run)


@pytest.mark.slow
def test_a_pandas_frame_becomes_a_plan_and_decisions(small_models: None) -> None:
    pandas = pytest.importorskip("pandas")
    from redenvelope import Decider, fit
    from redenvelope.fitting.settings import FitSettings

    table = campaign(1_500)
    frame = pandas.DataFrame(table.to_dict(as_series=False))
    roles = dict(pair.split("=") for pair in PLAIN.split(","))
    plan = fit(log_from_frame(frame, ColumnMap(roles)), budget=BUDGET, settings=FitSettings())
    users = frame[frame.week == 0].drop(columns=["coupon", "probability", "revenue", "redeemed_amount"])
    decisions, findings = plan.allocate(users)
    assert len(decisions) == 1_500 and not [found for found in findings if found.severity == "error"]
    one = users.iloc[0].to_dict()
    row = {"user": one.pop("customer_id"), "step": one.pop("week"), **one}
    assert Decider(plan).warm().decide(row).action == decisions["action"][0]

"""A column that is the reward in ten text tiers, through the real commands: asked about, left out, or said known."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from redenvelope import two_step
from redenvelope.cli import app
from tests.two_step_plan import BUDGET, small_models

__all__ = ["small_models"]


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frame = two_step().log(4_000, seed=3)
    edges = np.quantile(frame["reward"], np.arange(1, 10) / 10)
    labels = [f"tier {number * 7 % 11}" for number in np.searchsorted(edges, frame["reward"])]
    path = tmp_path_factory.mktemp("tiers") / "log.parquet"
    frame.with_columns(tier=pl.Series(labels)).write_parquet(path)
    return path


def run(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_the_audit_asks_and_takes_an_answer(tiers: Path) -> None:
    code, content = run("audit", tiers)
    assert code == 0
    (finding,) = (finding for finding in content["findings"] if finding["column"] == "tier")
    assert finding["rule"] in ("feature_suspected_leak", "feature_tells_action")
    assert "--ignore tier" in finding["remedy"] and "--known-before tier" in finding["remedy"]
    _, answered = run("audit", tiers, "--known-before", "tier")
    assert [leak["known"] for leak in answered["leaks"]] == [True]
    _, without = run("audit", tiers, "--ignore", "tier")
    assert without["leaks"] == []
    said = CliRunner().invoke(app, ["audit", str(tiers)])
    assert "fit for use, not for a certificate" in said.stdout
    wrong = tiers.with_name("wrong.parquet")
    pl.read_parquet(tiers).with_columns(propensity=0.9).write_parquet(wrong)
    said = CliRunner().invoke(app, ["audit", str(wrong), "--ignore", "tier"])
    assert "fit for use, not for a certificate: propensity_miscalibrated" in said.stdout


def test_no_plan_is_certified_until_the_column_is_left_out_or_said_to_be_known(
    tiers: Path, tmp_path: Path, small_models: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDENVELOPE_CACHE", str(tmp_path / "stages"))  # what was known before trains no other model
    made = partial(run, "fit", tiers, "--budget", BUDGET, "--method", "bandit", "--history", "none")
    code, asked = made("--out", tmp_path / "asked")
    assert code == 3
    (refusal,) = (rule for rule in asked["certificate"]["rules"] if rule["weight"] == "refusal")
    assert refusal["rule"] == "suspected_leak"
    assert "'tier'" in asked["certificate"]["reasons"][0]
    code, known = made("--out", tmp_path / "known", "--known-before", "tier")
    assert code == 0
    assert {"rule": "said_known", "weight": "warning"} in known["certificate"]["rules"]
    code, without = made("--out", tmp_path / "without", "--ignore", "tier")
    assert code == 0
    assert not any("tier" in reason for reason in without["certificate"]["reasons"])


def test_a_slip_in_a_name_is_asked_back(tiers: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(tiers), "--known-before", "teir"])
    assert "'teir' is not a feature of this log; did you mean 'tier'" in str(result.exception)

"""What a fit refuses because of the log, the audit refuses in the same words."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from redenvelope import LogError, audit_log, fit, inspect_log, read_log
from tests.log.files import good_log, many_users, put
from tests.program import run_here as run

REFUSED = {
    "few users": good_log().head(90),
    "too few to check on": good_log(),
    "a gap": many_users().filter((pl.col("user") != 5) | (pl.col("step") != 1)),
    "few users and a gap": good_log().filter((pl.col("user") != 5) | (pl.col("step") != 1)),
    "huge rewards": put(many_users(), "reward", {7: 1e39}),
    "a tiny propensity": put(many_users(), "propensity", {7: 1e-160}),
    "far steps": put(many_users(), "step", {3: 2 * 10**9}),
}


def refusals(path: Path) -> list[str]:
    """What the audit has against a log."""
    inspection = inspect_log(path)
    findings = inspection.findings if inspection.log is None else audit_log(inspection.log).findings
    return [str(finding) for finding in findings if finding.severity == "error"]


@pytest.mark.parametrize("name", REFUSED)
def test_the_audit_refuses_what_a_fit_refuses(name: str, tmp_path: Path) -> None:
    REFUSED[name].write_parquet(tmp_path / "log.parquet")
    said = refusals(tmp_path / "log.parquet")
    assert said
    with pytest.raises(LogError) as refusal:
        fit(read_log(tmp_path / "log.parquet"), budget=1.0)
    assert str(refusal.value).splitlines() == said


def test_and_says_so_by_its_exit_code(tmp_path: Path) -> None:
    REFUSED["few users and a gap"].write_csv(tmp_path / "log.csv")
    result = run("audit", tmp_path / "log.csv", "--json")
    assert result.returncode == 2
    found = json.loads(result.stdout)
    assert found["status"] == "refused"
    errors = [finding["rule"] for finding in found["findings"] if finding["severity"] == "error"]
    assert errors == ["fit_step_gap", "fit_few_users"]
    fitted = run("fit", tmp_path / "log.csv", "--budget", 1, "--out", tmp_path / "plan")
    assert fitted.returncode == 2
    for finding in found["findings"][:2]:
        assert finding["message"] in fitted.stderr


def test_a_log_that_is_large_enough_is_fit_for_use(tmp_path: Path) -> None:
    many_users().write_parquet(tmp_path / "log.parquet")
    assert refusals(tmp_path / "log.parquet") == []

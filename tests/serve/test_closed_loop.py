"""The exported log of a served campaign is audited, fitted and certified again without a hand on it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from redenvelope.cli import app
from tests.serve.conftest import make_plan
from tests.serve.test_pacing import campaign


@pytest.mark.slow
def test_the_log_of_a_served_campaign_makes_the_next_plan(tmp_path: Path) -> None:
    url, out = f"sqlite:///{tmp_path}/l.db", tmp_path / "log.parquet"
    make_plan(tmp_path / "plan", explore=0.3)  # what is never tried cannot be learned from
    spent, earned = asyncio.run(campaign(tmp_path / "plan", url, 6_000, 300_000, (1.0, 1.0), paced=True))
    runner = CliRunner()
    assert runner.invoke(app, ["ledger", "verify", url]).exit_code == 0
    exported = runner.invoke(app, ["ledger", "export", url, "--out", str(out), "--json"])
    assert json.loads(exported.output)["rows"] == 12_000
    audited = runner.invoke(app, ["audit", str(out), "--json"])
    assert audited.exit_code == 0
    found = json.loads(audited.output[audited.output.index("{") :])
    assert found["logged_cost"]["estimate"] == pytest.approx(spent / 100 / 6_000, rel=1e-9)
    assert found["logged_reward"]["estimate"] == pytest.approx(earned / 6_000, rel=1e-9)
    fitted = runner.invoke(app, ["fit", str(out), "--budget", "0.5", "--out", str(tmp_path / "next"), "--json"])
    assert fitted.exit_code == 0, fitted.output

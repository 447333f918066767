"""Budgets as the commands take them: by name, as totals, and what is no budget."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from redenvelope import Campaign, UsageError
from redenvelope.cli import app
from redenvelope.cli.options import named_budgets

PLAN: Any = SimpleNamespace(
    certificate=SimpleNamespace(budgets=[SimpleNamespace(name="coupons"), SimpleNamespace(name="a = b")])
)


def test_budgets_have_names_or_are_the_first() -> None:
    assert named_budgets(PLAN, None, None, None) is None
    assert named_budgets(PLAN, ["4"], None, None) == {"coupons": 4.0}
    assert named_budgets(PLAN, ["coupons=4", "a = b=0.5"], None, None) == {"coupons": 4.0, "a = b": 0.5}
    assert named_budgets(PLAN, ["a = b=1"], ["coupons=5000"], 1000) == {"a = b": 1.0, "coupons": 5.0}
    for odd, message in (
        (["coupons=x"], "not a plain number of 0 or more, .*or NAME=NUMBER"),
        (["-1"], "plain number of 0 or more"),
        (["4", "coupons=3"], "'coupons' is given twice"),
    ):
        with pytest.raises(UsageError, match=message):
            named_budgets(PLAN, odd, None, None)
    with pytest.raises(UsageError, match="needs audience"):
        named_budgets(PLAN, None, ["5000"], None)


def test_the_campaign_with_rules_is_simulated_with_its_file(tmp_path: Path) -> None:
    out = tmp_path / "log.parquet"
    asked = ["simulate", "envelopes-rules", "--users", "50", "--out", str(out), "--json"]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["rows"] == 250
    campaign = Campaign.from_toml(tmp_path / "campaign.toml")
    assert [budget.name for budget in campaign.budgets] == ["money", "envelopes"]
    assert len(campaign.rules) == 2
    assert CliRunner().invoke(app, asked).exit_code == 0, "its own file may be written again"
    (tmp_path / "campaign.toml").write_text('ignore = ["age"]\n', encoding="utf-8")
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code != 0
    assert (tmp_path / "campaign.toml").read_text(encoding="utf-8") == 'ignore = ["age"]\n'

"""Plans that earlier versions wrote, kept as they were: they open, and decide as they did then."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from redenvelope import Plan
from redenvelope.plan.storage import FORMAT

KEPT = Path(__file__).parent / "kept"
FOLDERS = sorted(folder for folder in KEPT.iterdir() if folder.is_dir())


def test_a_plan_of_this_format_and_of_the_one_before_is_kept() -> None:
    assert {f"format-{number}" for number in (FORMAT - 1, FORMAT)} <= {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_opens_decides_as_it_did_and_is_written_anew(folder: Path, tmp_path: Path) -> None:
    # Beside each plan: users, and what the version that wrote the plan decided for them with the seed 3.
    wanted = pl.read_csv(folder.with_suffix(".csv"))
    plan = Plan.load(folder)
    assert plan.certificate.is_certified
    plan.save(tmp_path / "plan", {})
    for opened in (plan, Plan.load(tmp_path / "plan")):
        found, _ = opened.allocate(wanted.select("user", "step", "state"), seed=3)
        assert found["action"].to_list() == wanted["action"].to_list()
        for name in ("propensity", "expected_cost"):
            # Written with six decimals; another processor rounds in another order.
            assert (found[name] - wanted[name]).abs().max() < 1e-4
    assert re.search(f'"format": {FORMAT},', (tmp_path / "plan" / "plan.json").read_text(encoding="utf-8"))
    assert plan.reprice(budget=2.5).certificate.budget == 2.5

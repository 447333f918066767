"""A fit on a terminal: a line a stage, and no reason told twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from redenvelope.report.plan_view import StageView, show_plan
from tests.report.plans import certificate, plan, record


def test_a_stage_is_told_once_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with StageView(enabled=True) as view:
        for figure in ("", "epoch 3 of 30", "learning without a model: 5 of 40 steps", "30 epochs; reward dose"):
            view.tell("model", figure)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("model (")
    assert line.endswith("s): 30 epochs; reward dose")


@pytest.mark.parametrize("status", ["certified", "refused"])
def test_reasons_are_told_once(status: str, capsys: pytest.CaptureFixture[str]) -> None:
    checked = certificate(status=status, reasons=("overlap is thin", "one user carries 8 % of all weight"))
    show_plan(plan(certificate=checked, record=record() | {"comparison": []}), Path("plan"))
    shown = capsys.readouterr().out
    assert shown.count("overlap is thin") == shown.count("one user carries 8 % of all weight") == 1


def test_warnings_of_the_audit_are_shown_with_their_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    content = record() | {"comparison": []}
    finding = {"severity": "warning", "message": "the budget does not bind", "remedy": "ask for less"}
    content["audit"] = content["audit"] | {"findings": [finding] * 8}
    show_plan(plan(record=content), Path("plan"))
    shown = capsys.readouterr().out
    assert shown.count("the budget does not bind → ask for less") == 6
    assert "and 2 more" in shown

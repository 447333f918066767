"""A fit on a terminal: a line a stage, and no reason told twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from redenvelope.audit.audit import verdicts
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.log.findings import Severity
from redenvelope.progress import Stages
from redenvelope.report.terminal import StageView, show_plan
from tests.report.plans import audit, certificate, finding, plan, record


def test_a_stage_is_told_once_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with StageView(enabled=True) as view:
        stages = Stages(view.tell)
        stages.begin("model")
        stages.going_on("model", 3, 30, "epoch")
        stages.going_on("model", 30, 30, "epoch")
        stages.finish("model", "30 epochs; the best was 28 of 30")
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("model (")
    assert line.endswith("s): 30 epochs; the best was 28 of 30")


@pytest.mark.parametrize("status", ["certified", "refused"])
def test_reasons_are_told_once(status: str, capsys: pytest.CaptureFixture[str]) -> None:
    thin = Reason("thin_overlap", Weight.WARNING if status == "certified" else Weight.REFUSAL, "overlap is thin")
    heavy = Reason("heavy_weight", Weight.WARNING, "one user carries 8 % of all weight")
    show_plan(plan(certificate=certificate(status=status, reasons=(thin, heavy))), Path("plan"))
    shown = capsys.readouterr().out
    assert shown.count("overlap is thin") == shown.count("one user carries 8 % of all weight") == 1


def test_warnings_of_the_audit_are_shown_with_their_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    slack = [finding(f"budget {number} does not bind", remedy="ask for less") for number in range(8)]
    mended = finding("a column was mended", severity=Severity.REPAIRED)
    show_plan(plan(record=record(audit=replace(audit(), findings=(*slack, slack[0], mended)))), Path("plan"))
    shown = capsys.readouterr().out
    assert shown.count("does not bind → ask for less") == 6
    assert shown.count("budget 0 does not bind → ask for less") == 1
    assert "and 2 more" in shown
    assert "a column was mended" not in shown


def test_the_audit_and_the_comparison_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a table as wide as it likes to be
    show_plan(plan(), Path("plan"))
    shown = capsys.readouterr().out
    for sentence in verdicts(audit()):
        assert sentence in shown
    assert "one more unit of budget per user buys" in shown
    (row,) = (line for line in shown.splitlines() if line.startswith("│ plan "))
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1:] == [
        "3.65 ± 0.10",  # two digits of the smallest error
        "2.97 ± 0.10",
        "−4.19 (−4.29 to −4.09)",
        "+0.16 (+0.06 to +0.26)",
    ]
    (logged,) = (line for line in shown.splitlines() if line.startswith("│ logged "))
    assert [cell.strip() for cell in logged.strip("│").split("│")][3:] == ["", ""]

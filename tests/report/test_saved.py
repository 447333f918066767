"""A plan is saved before it is drawn: no drawing can lose it."""

from pathlib import Path

import pytest

from redenvelope import Plan
from redenvelope.report import page
from redenvelope.report.page import save_with_report
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]


def test_a_plan_comes_with_its_report(plan: Plan, tmp_path: Path) -> None:
    save_with_report(plan, tmp_path / "plan")
    assert "<svg" in (tmp_path / "plan" / "report.html").read_text()
    Plan.load(tmp_path / "plan")


def test_a_report_that_cannot_be_drawn_loses_no_plan(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(plan: Plan) -> str:
        raise RuntimeError("the drawing library gave up")

    monkeypatch.setattr(page, "render_report", fail)
    save_with_report(plan, tmp_path / "plan")
    assert Plan.load(tmp_path / "plan").certificate == plan.certificate
    told = (tmp_path / "plan" / "report.html").read_text()
    assert "redenvelope report" in told and f"{plan.certificate.budget:.4g}" in told
    assert "the drawing library gave up" in capsys.readouterr().err

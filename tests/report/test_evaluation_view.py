"""An evaluation on a terminal: the verdict first, notes told once, refused rows marked."""

from __future__ import annotations

from typing import Any

import pytest

from redenvelope.report.terminal import show_evaluation

OVER = {"status": "contradicted", "message": "the cost is at least 9.8, the budget 4"}


def _reason(weight: str, message: str) -> dict[str, str]:
    return {"rule": "any", "weight": weight, "message": message}


def _row(estimator: str, target: str, estimate: float, *reasons: Any) -> dict[str, Any]:
    figures = {"estimate": estimate, "lower": estimate - 1, "upper": estimate + 1}
    return {"estimator": estimator, "target": target, "reasons": list(reasons)} | figures


def _content(*rows: dict[str, Any], verified: bool | None = True) -> dict[str, Any]:
    return {
        "users": 1_234,
        "left_out": 17,
        "left_out_note": "17 users were left out: the plan was made with them",
        "verdict": OVER | {"budgets": [OVER]},
        "drift": [{"column": "sent [at]", "message": "its mean has moved", "remedy": "leave it out"}],
        "advice": {"do": "refit", "reasons": ["the log contradicts the certificate", "sent [at] has moved"]},
        "confidence": 0.95,
        "logged": {"reward": 3.0, "cost": 4.0},
        "estimates": list(rows),
        "certificate": {"status": "certified", "verified": verified, "note": "this log does not hold the fold"},
    }


def test_the_verdict_comes_first_and_a_note_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    thin = _reason("refusal", "overlap is thin: after step 3 few are left")
    show_evaluation(
        _content(
            _row("importance", "reward", 5.0, thin),
            _row("importance", "cost", 6.0, thin, _reason("warning", "one user is heavy")),
            _row("doubly_robust", "reward", 5.5),
            _row("doubly_robust", "cost", 6.5),
        )
    )
    shown = capsys.readouterr().out
    assert shown.startswith("Contradicted: the cost is at least 9.8, the budget 4.")
    assert "17 users were left out" in shown
    assert "Refit the plan with a newer log: the log contradicts the certificate; sent [at] has moved." in shown
    assert "! sent [at]: its mean has moved → leave it out" in shown
    assert "Certificate: certified, verified again on this log." in shown
    assert shown.count("overlap is thin") == shown.count("one user is heavy") == 1
    (importance,) = (line for line in shown.splitlines() if "importance" in line)
    assert "5 (4 to 6)" in importance and "6 (5 to 7)" in importance and "[1][2]" in importance
    (robust,) = (line for line in shown.splitlines() if "doubly_robust" in line)
    assert "[1]" not in robust
    assert "[1] refusal: overlap is thin" in shown and "[2] warning: one user is heavy" in shown
    assert "must not be relied on" in shown


def test_a_warning_about_refusals_is_no_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    worded = _reason("warning", "refusal: in words alone")
    show_evaluation(_content(*(_row("direct", target, 2.0, worded) for target in ("reward", "cost"))))
    shown = capsys.readouterr().out
    assert "[1] warning: refusal: in words alone" in shown
    assert "must not be relied on" not in shown


def test_a_fold_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    show_evaluation(_content(*(_row("direct", target, 2.0) for target in ("reward", "cost")), verified=None))
    shown = capsys.readouterr().out
    assert "this log does not hold the fold" in shown
    assert "must not be relied on" not in shown

"""A plan with its report in one folder: saved first and drawn afterwards, so that no drawing can lose a plan."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from redenvelope.errors import UsageError
from redenvelope.files import replacing
from redenvelope.plan.plan import Plan

__all__ = ["save_with_report", "write_report"]


def save_with_report(plan: Plan, folder: Path) -> None:
    """Save a plan with a page in plain words, then draw its report in the page's place.

    If it cannot be drawn, the plan and the plain page stand.
    """
    plan.save(folder, {"report.html": _plain_page(plan).encode()})
    try:
        from redenvelope.report.page import render_report

        page = render_report(plan).encode()
    except Exception as error:  # whatever goes wrong in drawing, the plan is what counts
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        print(
            f"the plan is saved, but its report could not be drawn ({said}); try `redenvelope report {folder}` again",
            file=sys.stderr,
        )
        return
    plan.save(folder, {"report.html": page})


def write_report(plan: Plan, path: Path) -> Path:
    """Write a plan's report to a file of its own."""
    from redenvelope.report.page import render_report

    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: the report is written as .html; choose that ending")
    page = render_report(plan).encode()
    with replacing(path) as file:
        file.write(page)
    return path


def _plain_page(plan: Plan) -> str:
    """What there is to read until a report is drawn."""
    reasons = "".join(f"<li>{escape(reason.message)}</li>" for reason in plan.certificate.notes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Spending plan</title></head><body>'
        f"<p>{escape(plan.certificate.sentence())}</p><ul>{reasons}</ul>"
        "<p>The report with its charts was not drawn: <code>redenvelope report</code> draws it.</p></body></html>\n"
    )

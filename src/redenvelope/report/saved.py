"""A plan with its report in one folder: saved first and drawn afterwards, so that no drawing can lose a plan."""

from __future__ import annotations

import sys
from pathlib import Path

from redenvelope.plan.plan import Plan

__all__ = ["save_with_report"]


def save_with_report(plan: Plan, folder: Path) -> None:
    """Save a plan, then draw its report and save the two together; if it cannot be drawn, the plan stands without."""
    plan.save(folder)
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

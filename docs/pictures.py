"""Take the pictures of the report that the documentation shows, from a real plan in a real browser.

Run `make pictures` (about two minutes: a campaign is simulated and a plan made), or `python docs/pictures.py --plan
PLAN` for a plan that is there. Needs chromium and playwright, as the browser tests do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redenvelope import EnvelopeCampaign, Plan, fit, log_from_frame
from redenvelope.log.columns import ColumnMap
from redenvelope.plan.money import Money
from redenvelope.report.page import render_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES = Path(__file__).parent / "images"
USERS, BUDGET, SEED = 8_000, 4.0, 0
DESK: dict[str, Any] = {"viewport": {"width": 1000, "height": 1320}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 1320}, "is_mobile": True, "has_touch": True}


def example_plan() -> Plan:
    """The plan of the simulated campaign."""
    return fit(log_from_frame(EnvelopeCampaign().log(USERS, SEED)), budget=BUDGET)


def take(browser: Browser, page: Path, name: str, options: dict[str, Any], part: str | None = None) -> None:
    """One picture: what a window shows, or one section."""
    context = browser.new_context(**options)
    window = context.new_page()
    window.goto(page.as_uri())
    path = IMAGES / f"{name}.png"
    if part is None:
        window.screenshot(path=path)
    else:
        window.locator(part).screenshot(path=path)
    context.close()
    print(f"{path}: {path.stat().st_size // 1024} kB")


def main() -> None:
    """All pictures."""
    parser = argparse.ArgumentParser(description="Take the pictures of the report.")
    parser.add_argument("--plan", type=Path, help="a plan folder; without, one is made")
    given = parser.parse_args().plan
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium is not installed (apt-get install chromium)")
    plan = Plan.load(given) if given else example_plan()
    plan = plan.with_source("envelopes.parquet", ColumnMap(), "2024-02-10").with_money(Money("EUR", 50_000, 12.0))
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        page.write_text(render_report(plan), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        take(browser, page, "report", DESK)
        take(browser, page, "report-dark", DESK | {"color_scheme": "dark"})
        take(browser, page, "report-phone", PHONE)
        take(browser, page, "report-who", DESK, "#who")
        take(browser, page, "report-examples", DESK, "#examples")
        browser.close()


if __name__ == "__main__":
    main()

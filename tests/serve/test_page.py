"""The page in a real browser while a simulated campaign runs: light, dark, phone, keyboard, and without the network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from redenvelope import Plan
from redenvelope.ledger.records import Fund
from redenvelope.plan.reprice import reprice
from redenvelope.serve.admission import Tokens, new_token
from redenvelope.serve.settings import PacingSettings, ServeSettings
from tests.report.test_browser import DESK, PHONE, browser
from tests.serve.coupons import LABELS, Coupons
from tests.serve.running import Running, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/l.db"
    settings = ServeSettings(audience=200, pacing=PacingSettings(every=10))
    with running(folder, url, total=9_000, settings=settings) as found:
        crowd(found, 0, 30)
        yield found


def crowd(served: Running, first: int, last: int) -> None:
    """Users who walk in, and what comes of it: half redeem twice as often as the log said."""
    world, chance = Coupons(), np.random.default_rng(first)
    for row in world.users(last, 3).to_dicts()[first:]:
        _, one = served.decide(f"r{row['user']}", row["user"], {"taste": row["taste"], "city": row["city"]})
        reward, amount = world.happen(row, LABELS.index(one["action"]), 0, chance, 2.0)
        served.settle(one["decision_id"], amount, reward)


def opened(browser: Browser, served: Running, **options: object) -> tuple[Page, list[str]]:
    """The page, and whatever its console said, failed with or asked anybody else for."""
    page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(60_000)
    own, heard = f"http://127.0.0.1:{served.port}/", list[str]()
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url) if not request.url.startswith(own) else None)
    page.goto(own)
    page.locator("main").wait_for()
    return page, heard


@pytest.mark.parametrize("options", [DESK, DESK | {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_it_shows_the_campaign_in_silence(browser: Browser, served: Running, options: dict[str, object]) -> None:
    page, heard = opened(browser, served, **options)
    budget = served.ask("GET", "/v1/campaign")[1]["budgets"][0]
    assert f"{budget['spent'] / 100:,.2f}" in page.locator("#budgets").inner_text()
    for chart in ("#price-chart", "#frontier", "#budgets svg"):
        box = page.locator(chart).bounding_box()
        assert box is not None
        assert box["width"] > 250
    assert page.locator("#given tr").count() == 1 + len(LABELS)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    assert heard == []
    if folder := os.environ.get("REDENVELOPE_SCREENSHOTS"):
        name = f"{options.get('color_scheme', 'light')}-{options['viewport']['width']}.png"  # type: ignore[index]
        page.screenshot(path=Path(folder) / name, full_page=True)
    page.context.close()


def test_it_follows_while_the_campaign_runs(browser: Browser, served: Running) -> None:
    page, heard = opened(browser, served, **DESK)
    before = page.locator("#pace").inner_text()
    crowd(served, 30, 60)
    page.wait_for_function("(before) => document.getElementById('pace').textContent !== before", arg=before)
    page.wait_for_function("() => document.getElementById('pace').textContent.startsWith('60 of 200')")
    assert "what the plan expects" in page.locator("#why").inner_text()
    assert heard == []
    page.context.close()


def test_a_keyboard_gets_from_a_budget_to_a_command(browser: Browser, served: Running, folder: Path) -> None:
    page, heard = opened(browser, served, **DESK)
    campaign = served.ask("GET", "/v1/campaign")[1]
    slider = page.locator("#budget")
    slider.focus()
    slider.press("End")
    most = campaign["frontier"][-1]
    assert float(page.locator("#buys-cost").inner_text()) == pytest.approx(most["cost"], rel=5e-3)
    assert float(page.locator("#buys-reward").inner_text()) == pytest.approx(most["reward"], rel=5e-3)
    slider.press("Home")
    least = campaign["frontier"][0]
    assert float(page.locator("#buys-cost").inner_text()) == pytest.approx(least["cost"], abs=5e-3)
    for _ in range(5):
        slider.press("ArrowRight")
    command = page.locator("#command").inner_text()
    assert command.startswith("redenvelope reprice PLAN --budget ")
    # The page shows what that command would certify.
    row, budget = campaign["frontier"][5], float(command.split()[4])
    again = reprice(Plan.load(folder), budget=row["budget"]).certificate
    assert budget == pytest.approx(row["budget"], rel=1e-5)
    assert (row["cost"], row["reward"]) == (again.cost.estimate, again.reward.estimate)
    assert row["price"] == (again.dual if np.isfinite(again.dual) else None)
    shown = [page.locator(f"#buys-{name}").inner_text() for name in ("budget", "cost", "reward")]
    assert [float(text) for text in shown] == pytest.approx([budget, row["cost"], row["reward"]], rel=5e-3)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('copy').textContent !== 'Copy'")
    assert heard == []
    page.context.close()


def test_it_asks_for_a_token(browser: Browser, folder: Path, tmp_path: Path) -> None:
    secret, line = new_token("watcher", ["read"])
    (tmp_path / "tokens").write_text(line)
    url = f"sqlite:///{tmp_path}/l.db"
    with running(folder, url, tokens=Tokens.read(tmp_path / "tokens")) as served:
        page = browser.new_context(**DESK).new_page()  # type: ignore[arg-type]
        page.set_default_timeout(60_000)
        page.goto(f"http://127.0.0.1:{served.port}/")
        page.locator("#token").fill(secret)
        assert not page.locator("main").is_visible()
        page.locator("#token").press("Enter")
        page.locator("main").wait_for()
        assert not page.locator("#access").is_visible()
        page.context.close()


def test_it_shows_each_of_several_budgets(browser: Browser, two_budgets: Path, tmp_path: Path) -> None:
    settings = ServeSettings(audience=200, pacing=PacingSettings(every=10))
    funds = [Fund("coupons", 9_000, 0), Fund("messages", 160, 0)]
    with running(two_budgets, f"sqlite:///{tmp_path}/l.db", settings=settings, funds=funds) as served:
        crowd(served, 0, 20)
        page, heard = opened(browser, served, **DESK)
        campaign = served.ask("GET", "/v1/campaign")[1]
        money, messages = campaign["budgets"]
        assert messages["spent"] > 0
        said = page.locator("#budgets").inner_text()
        assert f"{money['spent'] / 100:,.2f} (" in said
        assert f"{messages['spent']} (" in said
        assert "The price of messages is" in page.locator("#why").inner_text()
        assert page.locator("#price-chart path").count() == 2
        page.locator("#along").select_option("messages")
        page.locator("#budget").focus()
        page.locator("#budget").press("End")
        most = campaign["frontiers"]["messages"][-1]
        assert float(page.locator("#buys-cost").inner_text()) == pytest.approx(most["cost"], rel=5e-3)
        assert "--budget messages=" in page.locator("#command").inner_text()
        assert heard == []
        page.context.close()

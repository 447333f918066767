"""The page in a real browser: drawn without a word on the console, notes under the pointer, phone, dark and paper."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from redenvelope import render_report
from redenvelope.plan.reprice import budget_points
from redenvelope.wording import number
from tests.conftest import BROWSER_SKIPPED
from tests.report.plans import CHARTS, LABELS, LONG, plan

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DESK = {"viewport": {"width": 1000, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
MARKS = '[role="graphics-symbol"][aria-label]:is([aria-roledescription="point"], [aria-roledescription="bar"])'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium; none is ever downloaded."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip(f"{BROWSER_SKIPPED}: chromium is not installed (apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(f"{BROWSER_SKIPPED}: playwright is not installed (pip install playwright)")
    with sync_playwright() as playwright:
        # Root may not start a sandboxed chromium; the only page it opens is the one made here.
        started = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_report(plan()), encoding="utf-8")
    return path.as_uri()


def opened(browser: Browser, address: str, unfolded: bool = True, **options: object) -> tuple[Page, list[str]]:
    """The page, and whatever its console said, failed with or asked the network for."""
    page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(10_000)
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url) if request.url != address else None)
    page.goto(address)
    if unfolded:
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    return page, heard


@pytest.mark.parametrize("options", [DESK, DESK | {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_every_chart_is_drawn_in_silence(browser: Browser, address: str, options: dict[str, object]) -> None:
    page, heard = opened(browser, address, **options)
    figures = page.locator("figure")
    assert figures.count() == CHARTS
    for figure in figures.all():
        drawing = figure.locator("svg").locator("visible=true")
        assert drawing.count() == 1
        box = drawing.bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 100
        assert drawing.locator(MARKS).count() > 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    assert heard == []
    page.context.close()


def test_pointing_at_a_mark_of_any_chart_says_what_it_is(browser: Browser, address: str) -> None:
    page, heard = opened(browser, address, **DESK)
    note = page.locator("#note")
    assert not note.is_visible()
    for figure in page.locator("figure").all():
        mark = figure.locator("svg").locator("visible=true").locator(MARKS).last  # drawn last, so nothing covers it
        mark.scroll_into_view_if_needed()
        mark.hover()
        assert note.is_visible()
        assert note.inner_text() == mark.get_attribute("aria-label")
        box = note.bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 1000
        assert 0 <= box["y"] <= box["y"] + box["height"] <= 800
    page.mouse.move(2, 2)
    assert not note.is_visible()
    assert heard == []
    page.context.close()


def test_pointing_at_a_legend_shows_the_labels_in_full(browser: Browser, address: str) -> None:
    page, _ = opened(browser, address, **DESK)
    legend = page.locator('#who svg [aria-roledescription="legend"]').first
    legend.scroll_into_view_if_needed()
    label = legend.locator("text").nth(LABELS.index(LONG))
    assert (label.text_content() or "").endswith("…")
    label.hover()
    assert page.locator("#note").inner_text() == ", ".join(LABELS)
    page.context.close()


def test_a_finger_gets_the_same_words(browser: Browser, address: str) -> None:
    page, heard = opened(browser, address, **PHONE)
    mark = page.locator("#frontier svg").locator("visible=true").first.locator(MARKS).last
    mark.scroll_into_view_if_needed()
    mark.tap()
    assert page.locator("#note").inner_text() == mark.get_attribute("aria-label")
    assert heard == []
    page.context.close()


def test_colours_follow_the_reader_and_paper_is_white(browser: Browser, address: str) -> None:
    seen = {}
    for name, options in (("light", DESK), ("dark", DESK | {"color_scheme": "dark"})):
        page, _ = opened(browser, address, **options)
        seen[name] = _look(page)
        page.emulate_media(media="print")
        seen[f"{name} on paper"] = _look(page)
        assert not page.locator("nav").is_visible()
        page.context.close()
    assert seen["light"]["background"] > 230 > 60 > seen["dark"]["background"]
    assert seen["light"]["ink"] < 60 < 200 < seen["dark"]["ink"]
    assert seen["light"]["marks"] != seen["dark"]["marks"]
    assert seen["dark on paper"] == seen["light on paper"]
    assert seen["light on paper"]["background"] > 230


def _look(page: Page) -> dict[str, object]:
    """Mean brightness (0 to 255) of background and ink, and the colours of the frontier's marks."""
    seen: dict[str, object] = page.evaluate(
        """(marks) => {
          const brightness = (colour) =>
            colour.match(/[\\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part) / 3, 0);
          const style = getComputedStyle(document.body);
          const drawn = [...document.querySelectorAll(`#frontier .wide ${marks}`)];
          return {
            background: brightness(style.backgroundColor),
            ink: brightness(style.color),
            marks: drawn.map((mark) => getComputedStyle(mark).fill),
          };
        }""",
        MARKS,
    )
    return seen


def test_it_prints_on_few_pages(browser: Browser, address: str, tmp_path: Path) -> None:
    page, _ = opened(browser, address, **DESK)
    printed = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert 1 <= _pages(printed) <= 11
    page.context.close()


def test_the_first_half_alone_is_printed_while_the_second_is_folded(browser: Browser, address: str) -> None:
    page, _ = opened(browser, address, unfolded=False, **DESK)
    assert 1 <= _pages(page.pdf(format="A4")) <= 5
    page.context.close()


def _pages(printed: bytes) -> int:
    return printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ")


def test_the_slider_shows_other_budgets_and_where_they_stand(browser: Browser, address: str) -> None:
    page, heard = opened(browser, address, unfolded=False, **DESK)
    slider, reward = page.get_by_label("Try another budget"), page.locator('[data-part="2"]')
    ring = page.locator("#budget-chart .wide circle.here")
    before = reward.inner_text(), slider.get_attribute("aria-valuetext"), ring.get_attribute("cx")
    diamond = page.locator(f'#budget-chart .wide {MARKS}[aria-label^="this plan"]').bounding_box()
    here = ring.bounding_box()
    assert here is not None and diamond is not None
    middle = here["x"] + here["width"] / 2, here["y"] + here["height"] / 2
    assert middle == pytest.approx((diamond["x"] + diamond["width"] / 2, diamond["y"] + diamond["height"] / 2), abs=1)
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    after = reward.inner_text(), slider.get_attribute("aria-valuetext"), ring.get_attribute("cx")
    points = list(budget_points(plan()))
    own = [point.budget for point in points].index(plan().certificate.budget)
    assert (before[0], after[0]) == (number(points[own].reward), number(points[own + 5].reward))
    assert after[1] != before[1]
    assert float(after[2] or 0) > float(before[2] or 0)
    assert heard == []
    page.context.close()


def test_words_are_explained_to_whoever_tabs_to_them_and_links_open_what_is_folded(
    browser: Browser, address: str
) -> None:
    page, heard = opened(browser, address, unfolded=False, **DESK)
    term = page.locator("#summary a.term").first
    term.focus()
    note = page.locator("#note")
    assert note.inner_text() == page.locator(f"#{term.get_attribute('aria-describedby')}").text_content()
    page.keyboard.press("Escape")
    assert not note.is_visible()
    assert not page.locator("#glossary dl").is_visible()
    term.click()
    assert page.locator("#glossary dl").is_visible()
    assert heard == []
    page.context.close()


def test_on_a_phone_no_table_of_the_first_half_is_cut(browser: Browser, address: str) -> None:
    page, _ = opened(browser, address, unfolded=False, **PHONE)
    cut = page.evaluate(
        """() => [...document.querySelectorAll("section:not(#checks) .scroll")]
          .filter((part) => part.scrollWidth > part.clientWidth + 1).map((part) => part.ariaLabel)"""
    )
    assert cut == []
    page.context.close()


@pytest.mark.parametrize("options", [DESK, DESK | {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_nothing_bars_screen_readers_and_keyboards(browser: Browser, address: str, options: dict[str, object]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=f"{BROWSER_SKIPPED}: axe is missing")
    for unfolded in (False, True):
        page, _ = opened(browser, address, unfolded=unfolded, **options)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.context.close()

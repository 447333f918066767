"""The pages that come from the code are current, links lead somewhere, and examples in Python run."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import redenvelope

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def _generator():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["log.md", "commands.md", "api.md", "json.md", "notebook.md", "errata-tests.md"])
def test_reference_pages_are_current(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == _generator().PAGES[name](), "run: python docs/generate.py"


def test_the_public_surface_changes_only_on_purpose() -> None:
    listed = json.loads((ROOT / "docs" / "reference" / "surface.json").read_text(encoding="utf-8"))
    found = json.loads(_generator().PAGES["surface.json"]())
    gone, new = ([*_entries(one) - _entries(other)] for one, other in ((listed, found), (found, listed)))
    assert not gone and not new, (
        f"gone: {sorted(gone)}; new: {sorted(new)}. docs/stability.md says what may change when. If this is meant, "
        "say it in CHANGELOG.md and run: python docs/generate.py"
    )


def _entries(value: object, before: str = "") -> set[str]:
    """Every leaf with the names that lead to it."""
    if isinstance(value, dict):
        return {leaf for name, item in value.items() for leaf in _entries(item, f"{before} › {name}")}
    return {f"{before} › {item}" for item in value} if isinstance(value, list) else {f"{before} = {value}"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    # The blocks of a page are one script, run in an empty folder; test_documents.py runs what needs tables,
    # serve/test_client.py what needs a service, and test_mlflow.py what needs a registry.
    if page.name in ("lake.md", "clients.md", "mlflow.md"):
        return
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if blocks:
        subprocess.run([sys.executable, "-c", "\n".join(blocks)], check=True, cwd=tmp_path, timeout=900)


def test_every_public_name_has_its_entry() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (\w+)$", page, flags=re.MULTILINE)) == sorted(redenvelope.__all__)


def test_every_page_can_be_found_in_the_menu() -> None:
    menu = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert menu == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    reached, ahead = {index}, [index]
    while ahead:
        page = ahead.pop()
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve()
            if found.is_relative_to(ROOT / "docs") and found not in reached:
                reached.add(found)
                ahead.append(found)
    assert reached == set((ROOT / "docs").rglob("*.md"))


def test_the_site_builds_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    found = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in found["docs"]}
    assert len(places) == len(list((ROOT / "docs").rglob("*.md")))


def test_every_anchor_exists() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            text = (page.parent / target).read_text(encoding="utf-8") if target else page.read_text(encoding="utf-8")
            assert anchor in {_anchor(title) for title in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}, anchor


def _anchor(title: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-")


def test_every_test_that_the_documentation_names_exists() -> None:
    named = [name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text("utf-8"))]
    assert named
    for path, function in named:
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{function}"

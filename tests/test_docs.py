"""The pages that come from the code are current, and what the README tells to type works."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def _generator():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["log.md", "commands.md"])
def test_reference_pages_are_current(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == _generator().PAGES[name](), "run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    # The blocks of a page are one script, run in an empty folder.
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if blocks:
        subprocess.run([sys.executable, "-c", "\n".join(blocks)], check=True, cwd=tmp_path, timeout=900)


def test_every_test_that_the_documentation_names_exists() -> None:
    named = [name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text("utf-8"))]
    assert named
    for path, function in named:
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{function}"

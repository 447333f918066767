"""A wheel and an sdist that pass twine's check and work in an empty environment: the commands of `make dist`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*given: object, folder: Path = ROOT) -> str:
    done = subprocess.run(list(map(str, given)), cwd=folder, capture_output=True, text=True, timeout=1_800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_is_built_installs_in_an_empty_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    wheel, sdist = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix != ".whl")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    names = zipfile.ZipFile(wheel).namelist()
    assert "redenvelope/py.typed" in names and not any(name.startswith("tests") for name in names)
    for built in (wheel, sdist):
        python = tmp_path / f"empty{built.suffix}" / "bin"
        run(sys.executable, "-m", "venv", "--clear", python.parent)
        run(python / "pip", "install", "--quiet", "--disable-pip-version-check", built)
        assert "redenvelope " in run(python / "redenvelope", "--version", folder=tmp_path)
        run(python / "redenvelope", "simulate", "two-step", "--users", "50", "--out", "log.csv", folder=tmp_path)
        said = run(python / "python", "-c", MISSING, folder=tmp_path)
        assert "pip install 'redenvelope[client]'" in said


MISSING = """
try:
    import redenvelope.client
except ModuleNotFoundError as error:
    print(error)
"""

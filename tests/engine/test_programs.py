"""Compiled programs are kept where they may be, and never stand in anybody's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from redenvelope.engine import programs

ASK = """
from redenvelope.engine.programs import keep_programs
keep_programs()
import jax, jax.numpy as jnp
print(float(jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x))(jnp.arange(64.0))))
"""


def answer(cache: Path | str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = kept | {"REDENVELOPE_CACHE": str(cache)}
    return subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=environment, timeout=120)


def kept_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_kept_found_and_compiled_anew_where_damaged(tmp_path: Path) -> None:
    first = answer(tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    programs_kept = kept_in(tmp_path)
    assert programs_kept
    assert programs_kept[0].parent.stat().st_mode & 0o077 == 0
    for number, path in enumerate(programs_kept):
        path.write_bytes(path.read_bytes()[: 20 * (number % 2)])  # empty, or cut as by a kill
    again = answer(tmp_path)
    assert (again.returncode, again.stderr, again.stdout) == (0, "", first.stdout)


def test_a_cache_that_cannot_be_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", "off", tmp_path / "file" / "below"):
        found = answer(place)
        assert (found.returncode, found.stderr) == (0, "")
    assert kept_in(tmp_path) == [tmp_path / "file"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDENVELOPE_CACHE", str(tmp_path))
    return tmp_path


def test_nothing_is_run_from_where_others_may_write(environment: Path) -> None:
    place = environment / "programs" / programs._kind_of_machine()
    place.mkdir(parents=True)
    place.chmod(0o777)
    programs.keep_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_what_the_user_said_stays(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    programs.keep_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    assert list(environment.iterdir()) == []


def test_the_oldest_go_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "older", "oldest")):
        path = tmp_path / name
        path.write_bytes(b"0123456789")
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    programs.make_room(tmp_path, most_bytes=25)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "older"]

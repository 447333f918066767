"""Compiled programs are kept where they may be, and never stand in anybody's way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from redenvelope.engine import programs
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.randomness import fold

LAYOUT = StateLayout((), 1, 0, 0, (), 0.5)

ASK = """
from redenvelope.engine.programs import keep_programs
keep_programs()
import jax, jax.numpy as jnp
print(float(jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x))(jnp.arange(64.0))))
"""


def answer(cache: Path | str, ask: str = ASK) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = kept | {"REDENVELOPE_CACHE": str(cache)}
    return subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=environment, timeout=120)


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


def test_whoever_decides_keeps_what_is_compiled(tmp_path: Path) -> None:
    engine = "from redenvelope.plan.decide import DecisionEngine; DecisionEngine(None)"  # of no policy yet
    found = answer(tmp_path, f"{engine}\n{ASK.split('keep_programs()')[1]}")
    assert (found.returncode, found.stderr) == (0, "")
    assert kept_in(tmp_path)


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


# What was traced is kept beside what was compiled.


class Pair(NamedTuple):
    """A tree of somebody else's: its name does not say what is in it."""

    one: NDArray[np.float32]
    other: NDArray[np.float32]


def scaled(times: int, arrays: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    TRACED.append(times)
    return arrays["a"].sum(), {name: times * array for name, array in arrays.items()}


def summed(pair: Pair) -> jax.Array:
    TRACED.append(0)
    return pair.one + pair.other


TRACED: list[int] = []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    TRACED.clear()
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def traced_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.traced"))


def test_a_new_process_traces_nothing_again(folder: Path) -> None:
    arrays = {"a": np.arange(3.0, dtype=np.float32)}
    for _ in range(2):  # a new wrapper knows nothing of the last one, as in a new process
        total, found = programs.kept(scaled, static=1)(2, arrays)
        assert (float(total), np.asarray(found["a"]).tolist()) == (3.0, [0.0, 2.0, 4.0])
    assert TRACED == [2]
    # Another static argument, and another shape, are other programs.
    programs.kept(scaled, static=1)(3, arrays)
    programs.kept(scaled, static=1)(2, {"a": np.zeros(4, np.float32)})
    assert TRACED == [2, 3, 2]
    assert len(traced_files(folder)) == 3


def test_what_is_damaged_is_traced_again(folder: Path) -> None:
    arrays = {"a": np.ones(2, np.float32)}
    programs.kept(scaled, static=1)(2, arrays)
    (path,) = traced_files(folder)
    for content in (b"", path.read_bytes()[:100], b"\x00" * 4_000):
        path.write_bytes(content)
        assert float(programs.kept(scaled, static=1)(2, arrays)[0]) == 2.0
    assert TRACED == [2] * 4


def test_what_may_hide_something_is_not_kept(folder: Path) -> None:
    pair = Pair(np.ones(2, np.float32), np.ones(2, np.float32))
    for _ in range(2):
        assert np.asarray(programs.kept(summed)(pair)).tolist() == [2.0, 2.0]
    assert (TRACED, traced_files(folder)) == ([0, 0], [])


@pytest.mark.parametrize("hidden", [np.ones(2), lambda: None, Pair(np.ones(1), np.ones(1)), object(), {1, 2}])
def test_only_what_words_tell_apart_is_described(hidden: object) -> None:
    with pytest.raises(programs.UndescribedError):
        list(programs.described(("known", hidden)))


def test_values_that_differ_are_described_differently() -> None:
    values = [1, 1.0, True, "1", None, (1,), [1], (1, 1), ((1,), 1), 0.1, np.float32(0.1), {"a": 1}, {"b": 1}, fold]
    described = {"\n".join(programs.described(value)) for value in values}
    assert len(described) == len(values)
    layouts = [replace(LAYOUT, static_numbers=numbers) for numbers in (1, 2)]
    assert len({"\n".join(programs.described(layout)) for layout in layouts}) == 2

"""Files in, a folder of decisions out: the same decisions whatever the parts, and everybody exactly once."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from redenvelope import ColumnMap, FiniteCampaign, LocalEngine, ModelError, Plan, UsageError, allocate_folder
from redenvelope.plan.allocate import allocate_file
from tests.program import PROGRAM, run

ONE = LocalEngine(1)


@pytest.fixture(scope="module")
def users(campaign: FiniteCampaign) -> pl.DataFrame:
    return campaign.log(3_000, seed=9).select("user", "step", "state").sample(fraction=1.0, shuffle=True, seed=2)


@pytest.fixture(scope="module")
def folder(users: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The users in three files, in no order."""
    place = tmp_path_factory.mktemp("users")
    users[:2_500].write_parquet(place / "a.parquet", row_group_size=700)
    users[2_500:2_600].with_columns(pl.col("user").cast(pl.Int32)).write_parquet(place / "b.parquet")
    users[2_600:].write_parquet(place / "c.parquet")
    return place


def decisions(out: Path, user: str = "user") -> pl.DataFrame:
    """All that was written, with `user` for the name of the users' column in it."""
    together = pl.concat([pl.read_parquet(file) for file in sorted(out.glob("*.parquet"))]).rename({user: "user"})
    return together.with_columns(pl.col("user").cast(pl.Int64), pl.col("step").cast(pl.Int64)).sort("user", "step")


def expected(plan: Plan, users: pl.DataFrame) -> pl.DataFrame:
    return plan.allocate(users, 3)[0].with_columns(pl.col("step").cast(pl.Int64)).sort("user", "step")


@pytest.mark.parametrize("parts", [1, 8, 64])
def test_any_number_of_parts_decides_the_same(
    plan: Plan, users: pl.DataFrame, folder: Path, tmp_path: Path, parts: int
) -> None:
    out = tmp_path / "out"
    summary = allocate_folder(plan, folder, out, 3, parts=parts, engine=ONE)
    assert decisions(out).equals(expected(plan, users))
    users.write_parquet(tmp_path / "all.parquet")
    whole = allocate_file(plan, tmp_path / "all.parquet", tmp_path / "all-decided.parquet", 3)
    assert (summary.users, summary.actions) == (whole.users, whole.actions)
    assert summary.expected_cost == pytest.approx(whole.expected_cost, rel=1e-12)
    manifest = json.loads((out / "manifest.json").read_text())
    assert sum(file["rows"] for file in manifest["files"]) == manifest["decisions"] == len(users)
    assert sorted(file["file"] for file in manifest["files"]) == sorted(path.name for path in out.glob("*.parquet"))
    assert not (out / ".work").exists()


@pytest.mark.parametrize("odd", [None, "text", 0, -1, 10**9, {}])
def test_a_manifest_that_was_changed_is_not_believed(plan: Plan, folder: Path, tmp_path: Path, odd: object) -> None:
    out = tmp_path / "out"
    first = allocate_folder(plan, folder, out, 3, parts=4, engine=ONE)
    held = (out / "manifest.json").read_bytes()
    (out / "manifest.json").write_text(json.dumps(json.loads(held) | {"files_of": odd}))
    assert allocate_folder(plan, folder, out, 3, parts=4, engine=ONE) == first
    assert (out / "manifest.json").read_bytes() == held


def test_a_second_run_does_only_what_is_missing(plan: Plan, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = allocate_folder(plan, folder, out, 3, parts=4, engine=ONE)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert allocate_folder(plan, folder, out, 3, parts=4, engine=_Never()) == first
    gone = out / "decisions-00002-of-00004.parquet"
    held = gone.read_bytes()
    gone.unlink()
    assert allocate_folder(plan, folder, out, 3, parts=4, engine=ONE) == first
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert {name for name in before if before[name] != after[name]} == {gone.name}
    assert gone.read_bytes() == held


def test_a_run_that_breaks_off_goes_on(plan: Plan, users: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    """Broken off after any number of parts, of slices and of decisions, it ends with everybody decided once."""
    out, broken = tmp_path / "out", 0
    for lasting in range(1, 30):
        try:
            allocate_folder(plan, folder, out, 3, parts=8, engine=_Breaking(lasting))
            break
        except _BrokenOffError:
            broken += 1
            done = decisions(out) if list(out.glob("*.parquet")) else None
            assert done is None or not done.select("user", "step").is_duplicated().any()
            assert not (out / "manifest.json").exists()
    assert broken > 3
    assert decisions(out).equals(expected(plan, users))


def test_other_questions_need_another_folder(plan: Plan, folder: Path, tmp_path: Path) -> None:
    out, changing = tmp_path / "out", tmp_path / "users"
    shutil.copytree(folder, changing)
    allocate_folder(plan, changing, out, 3, parts=2, engine=ONE)
    with pytest.raises(UsageError, match="with different seed; choose another folder"):
        allocate_folder(plan, changing, out, 4, parts=2, engine=ONE)
    pl.read_parquet(changing / "b.parquet")[:7].write_parquet(changing / "b.parquet")
    with pytest.raises(UsageError, match=r"different inputs \(.*b\.parquet has changed since\)"):
        allocate_folder(plan, changing, out, 3, parts=2, engine=ONE)


def test_nobody_is_decided_for_twice(plan: Plan, users: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "users"
    shutil.copytree(folder, again)
    # Written as a decimal number it is the same user.
    users[7:8].with_columns(pl.col("user").cast(pl.Float64)).write_parquet(again / "d.parquet")
    with pytest.raises(ModelError, match=r"row 8 of a\.parquet and row 1 of d\.parquet share a user and step"):
        allocate_folder(plan, again, tmp_path / "out", 3, parts=8, engine=ONE)


def test_files_that_do_not_fit_together_are_refused(plan: Plan, users: pl.DataFrame, tmp_path: Path) -> None:
    place = tmp_path / "users"
    place.mkdir()
    users[:50].write_parquet(place / "a.parquet")
    users[50:90].drop("state").write_parquet(place / "b.parquet")
    with pytest.raises(Exception, match="columns_differ"):
        allocate_folder(plan, place, tmp_path / "out", engine=ONE)
    with pytest.raises(UsageError, match="there is no column 'who'"):
        allocate_folder(plan, place, tmp_path / "out", columns=ColumnMap({"user": "who"}), engine=ONE)
    with pytest.raises(UsageError, match="written to a folder"):
        allocate_folder(plan, place, tmp_path / "out.parquet", engine=ONE)
    with pytest.raises(UsageError, match="power of two"):
        allocate_folder(plan, place, tmp_path / "other", parts=3, engine=ONE)


def test_text_files_too(plan: Plan, users: pl.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    named = users.rename({"user": "customer"})
    named[:1_000].write_csv(tmp_path / "users" / "a.csv")
    named[1_000:].write_csv(tmp_path / "users" / "b.csv")
    columns = ColumnMap({"user": "customer"})
    allocate_folder(plan, tmp_path / "users", tmp_path / "out", 3, columns, parts=2, engine=ONE)
    assert decisions(tmp_path / "out", user="customer").equals(expected(plan, users))


def test_an_address_is_read_like_a_file(plan: Plan, users: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    address = f"file://{(folder / 'a.parquet').absolute()}"
    allocate_folder(plan, address, tmp_path / "out", 3, parts=2, engine=ONE)
    assert decisions(tmp_path / "out").equals(expected(plan, users[:2_500]))
    with pytest.raises(UsageError, match="there is no Parquet here"):
        allocate_folder(plan, f"file://{tmp_path}/nothing.parquet", tmp_path / "other", engine=ONE)


@pytest.mark.slow
def test_the_command_killed_at_ten_moments(plan: Plan, users: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    """Killed for good, the driver is started again until it ends by itself."""
    plan.save(tmp_path / "plan", {})
    out, moments = tmp_path / "out", random.Random(5)
    command = ["allocate", tmp_path / "plan", folder, "--out", out, "--seed", 3, "--parts", 64, "--json"]
    began = time.monotonic()
    run(*command[:4], tmp_path / "whole", *command[5:])
    lasts = time.monotonic() - began
    for _ in range(10):
        with subprocess.Popen([*PROGRAM, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            time.sleep(moments.uniform(0.3, 1.0) * lasts)
            child.send_signal(signal.SIGKILL)
        done = list(out.glob("*.parquet"))
        assert not done or not decisions(out).select("user", "step").is_duplicated().any()
    ended = run(*command)
    assert ended.returncode == 0, ended.stderr
    assert decisions(out).equals(expected(plan, users))
    assert json.loads(ended.stdout)["decisions"] == len(users)


class _BrokenOffError(Exception):
    pass


@dataclass
class _Breaking:
    """An engine that breaks off in the middle of the work on its last part."""

    lasting: int

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            self.lasting -= 1
            result = work(part)
            if self.lasting < 0:
                raise _BrokenOffError
            yield result


class _Never:
    """An engine that must not be asked."""

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        raise AssertionError("there is nothing left to do")

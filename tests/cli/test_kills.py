"""SIGKILL at any moment of a command that writes: the old output stands or the new one, and nothing besides."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from redenvelope.plan.plan import Plan
from redenvelope.simulate.finite import FiniteCampaign
from tests.two_step_plan import campaign, log, plan

__all__ = ["campaign", "log", "plan"]

PROGRAM = [sys.executable, "-c", "from redenvelope.cli import main; main()"]


@pytest.fixture
def place(plan: Plan, campaign: FiniteCampaign, tmp_path: Path) -> Path:
    """A folder in which everything that commands write is there already."""
    plan.save(tmp_path / "plan", {"report.html": b"old"})
    campaign.log(1_000, seed=2).write_parquet(tmp_path / "log.parquet")
    campaign.log(3_000, seed=3).select("user", "step", "state").write_parquet(tmp_path / "users.parquet")
    plan.save(tmp_path / "other", {"report.html": b"old"})
    pl.DataFrame({"old": [1]}).write_parquet(tmp_path / "decisions.parquet")
    (tmp_path / "page.html").write_text("<html>old</html>")
    return tmp_path


COMMANDS = {
    "reprice": ["reprice", "plan", "--budget", "2.5", "--out", "other"],
    "report": ["report", "plan", "--out", "page.html"],
    "own report": ["report", "other", "--out", "other/report.html"],
    "allocate": ["allocate", "plan", "users.parquet", "--out", "decisions.parquet"],
    "simulate": ["simulate", "two-step", "--users", "2000", "--out", "log.parquet"],
    "fit": ["fit", "log.parquet", "--budget", "2.9", "--out", "other"],
}


def check(place: Path, names: set[str]) -> None:
    """Everything opens, and nothing is there that was not."""
    Plan.load(place / "plan")
    Plan.load(place / "other")
    assert len(pl.read_parquet(place / "log.parquet")) in (2_000, 4_000)
    assert len(pl.read_parquet(place / "decisions.parquet")) in (1, 6_000)
    assert (place / "page.html").read_text().rstrip().endswith("</html>")
    assert {path.name for path in place.iterdir()} == names
    assert len(list((place / "other").iterdir())) == 6


def kill_at_random(place: Path, command: list[str], kills: int, seed: int) -> None:
    draws = random.Random(seed)
    names = {path.name for path in place.iterdir()}
    start = time.perf_counter()
    subprocess.run([*PROGRAM, *command], cwd=place, capture_output=True, timeout=600, check=False)
    whole = time.perf_counter() - start
    check(place, names)
    for _ in range(kills):
        process = subprocess.Popen(
            [*PROGRAM, *command], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # What is written is written at the end: moments there are drawn more often.
        time.sleep(whole * draws.betavariate(4, 1) * 1.05)
        process.kill()
        process.wait()
        time.sleep(0.05)  # the child dies with its parent, but not in the same instant
        check(place, names)


@pytest.mark.parametrize("name", ["reprice", "allocate"])
def test_a_few_kills(place: Path, name: str) -> None:
    kill_at_random(place, COMMANDS[name], kills=3, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_many_kills(place: Path, name: str) -> None:
    kill_at_random(place, COMMANDS[name], kills=10 if name == "fit" else 40, seed=1)


def test_outputs_are_checked_before_the_work(place: Path) -> None:
    """Where a plan cannot be written, it is said at once and in words."""
    (place / "mine").mkdir()
    (place / "mine" / "plan.json").write_text('{"name": "my own"}')
    (place / "mine" / "thesis.docx").write_text("years")
    (place / "file").write_text("text")
    for out, word in (("mine", "not a plan"), ("file", "not a folder"), ("file/plan", "folder"), ("", "--out")):
        result = subprocess.run(
            [*PROGRAM, "fit", "log.parquet", "--budget", "2.9", "--out", out],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 2, result.stderr
        assert word in result.stderr
        assert "Traceback" not in result.stderr
    assert sorted(path.name for path in (place / "mine").iterdir()) == ["plan.json", "thesis.docx"]
    shutil.rmtree(place / "mine")

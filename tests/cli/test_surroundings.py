"""Small disks, read-only disks, odd campaign files, one processor or two: through the real command."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from redenvelope import FiniteCampaign, Plan
from tests.program import run, run_here
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]


def assert_said(result: subprocess.CompletedProcess[str], word: str) -> None:
    assert result.returncode == 2, result.stderr
    assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 12


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one and a half megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1536k", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_the_old_files_stand(plan: Plan, campaign: FiniteCampaign, small_disk: Path) -> None:
    outside = small_disk.parent
    plan.save(outside / "plan", {})
    users = outside / "users.parquet"
    campaign.log(2_000, seed=3).select("user", "step", "state").write_parquet(users)
    for name in ("log.parquet", "decisions.parquet"):
        pl.DataFrame({"old": [1]}).write_parquet(small_disk / name)
    (small_disk / "page.html").write_text("old")
    (small_disk / "ballast").write_bytes(bytes(1_200_000))
    before = sorted(path.name for path in small_disk.iterdir())
    commands: tuple[tuple[object, ...], ...] = (
        ("simulate", "two-step", "--users", 100_000, "--out", small_disk / "log.parquet"),
        ("simulate", "two-step", "--users", 100_000, "--out", small_disk / "log.csv"),
        ("report", outside / "plan", "--out", small_disk / "page.html"),
        ("allocate", outside / "plan", users, "--out", small_disk / "decisions.parquet"),
        ("fit", users, "--budget", 2.9, "--out", small_disk / "plan"),
        ("demo", "--out", small_disk / "demo"),
    )
    for command in commands:
        program = run if "simulate" in command else run_here
        assert_said(program(*command), "No space left on device")
    assert sorted(path.name for path in small_disk.iterdir()) == before
    assert (small_disk / "page.html").read_text() == "old"
    assert pl.read_parquet(small_disk / "log.parquet").columns == ["old"]


def test_a_disk_that_fills_up_while_writing_leaves_the_old_file(small_disk: Path) -> None:
    pl.DataFrame({"old": [1]}).write_parquet(small_disk / "log.csv")
    before = (small_disk / "log.csv").read_bytes()
    assert_said(run("simulate", "two-step", "--users", 100_000, "--out", small_disk / "log.csv"), "No space left")
    assert (small_disk / "log.csv").read_bytes() == before
    assert [path.name for path in small_disk.iterdir()] == ["log.csv"]


def test_a_read_only_disk_is_said(plan: Plan, small_disk: Path) -> None:
    plan.save(small_disk / "plan", {})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_said(run_here("report", small_disk / "plan", "--out", small_disk / "page.html"), "Read-only file system")
    assert_said(
        run_here("reprice", small_disk / "plan", "--budget", 2, "--out", small_disk / "plan"), "Read-only file system"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 5_000 + b"]" * 5_000,
        b"x = " + b"9" * 10_000,
        b"\xff\xfe",
        b"[columns]\nuser = 5",
        b"[columns",
        bytes(2**20 + 1),
    ],
)
def test_an_odd_campaign_file_is_refused(campaign: FiniteCampaign, tmp_path: Path, content: bytes) -> None:
    campaign.log(50, seed=1).write_parquet(tmp_path / "log.parquet")
    (tmp_path / "campaign.toml").write_bytes(content)
    assert_said(run_here("audit", tmp_path / "log.parquet"), "campaign.toml")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")  # the program begins anew at once
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2, reason="needs two processors")
def test_the_same_plan_whatever_the_number_of_processors(campaign: FiniteCampaign, tmp_path: Path) -> None:
    campaign.log(2_000, seed=1).write_parquet(tmp_path / "log.parquet")
    fresh = {name: value for name, value in os.environ.items() if not name.endswith(("_THREADS", "_FLAGS"))}
    hashes = set()
    for number, processors in enumerate(({0}, {0, 1}, {1}, {0, 1})):
        out = tmp_path / f"plan{number}"
        threads = {"POLARS_MAX_THREADS": "4"} if number == 3 else {}
        result = run(
            *("fit", tmp_path / "log.parquet", "--budget", 2.9, "--out", out),
            preexec_fn=lambda own=processors: os.sched_setaffinity(0, own),
            env=fresh | threads,
        )
        assert result.returncode in (0, 3), result.stderr
        files = sorted(path for path in out.iterdir() if path.name != "report.html")
        hashes.add(tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in files))
    assert len(hashes) == 1


def test_a_seed_beyond_all_bounds_is_refused(tmp_path: Path) -> None:
    result = run_here("simulate", "two-step", "--seed", 2**63, "--out", tmp_path / "log.csv")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_json_holds_no_number_that_json_has_not(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan", {})
    result = run_here("reprice", tmp_path / "plan", "--budget", 0.0001, "--out", tmp_path / "cheap", "--json")
    assert result.returncode == 3
    json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert run_here("report", tmp_path / "cheap", "--out", tmp_path / "page.html").returncode == 0

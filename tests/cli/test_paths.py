"""Names that no file can have, links in a circle, pipes, other plans' files: refused in words before the work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from redenvelope import FiniteCampaign, Plan
from tests.program import run_here
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]

LONG = "x" * 300


@pytest.fixture
def place(plan: Plan, campaign: FiniteCampaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with plans and tables in it."""
    monkeypatch.chdir(tmp_path)
    plan.save("plan", {"report.html": b"its own"})
    plan.save("other", {"report.html": b"another's"})
    campaign.log(1_000, seed=2).write_parquet("log.parquet")
    campaign.log(20, seed=3).select("user", "step", "state").write_parquet("users.parquet")
    Path("circle").symlink_to("circle")
    Path("circle.csv").symlink_to("circle.csv")
    os.mkfifo("pipe.csv")
    return tmp_path


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    def seen() -> dict[str, bytes]:
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}

    before = seen()
    yield
    assert seen() == before


def refused(*arguments: str) -> str:
    """What a command line says that is refused; in this process, because many would take long to start."""
    result = run_here(*arguments)
    assert result.returncode == 2, result.stderr
    said = result.stderr
    assert "Traceback" not in said
    assert len(said) < 1_500
    return said


FIT, SIMULATE = ("fit", "log.parquet", "--budget", "2.9"), ("simulate", "two-step", "--users", "20")
ALLOCATE, REPORT, REPRICE = (
    ("allocate", "plan", "users.parquet"),
    ("report", "plan"),
    ("reprice", "plan", "--budget", "2"),
)


@pytest.mark.parametrize(
    ("command", "out", "said"),
    [
        (FIT, LONG, "too long"),
        (REPRICE, LONG, "too long"),
        (SIMULATE, f"{LONG}.csv", "too long"),
        (ALLOCATE, f"{LONG}.csv", "too long"),
        (ALLOCATE, "d/" * 3_000 + "x.csv", "too long"),
        (REPORT, f"{LONG}.html", "too long"),
        (("demo", "--users", "600"), LONG, "too long"),
        (FIT, "circle", "symbolic links"),
        (SIMULATE, "circle.csv", "symbolic links"),
        (ALLOCATE, "circle/x.csv", "cannot be written"),
        (FIT, "log.parquet/plan", "cannot be written"),
        (ALLOCATE, "pipe.csv", "is a pipe"),
        (SIMULATE, "pipe.csv", "is a pipe"),
        (FIT, "pipe.csv", "not a folder"),
        (FIT, "", "names no file"),
        (SIMULATE, " ", "names no file"),
        (ALLOCATE, "users.parquet", "is the table that is read"),
        (ALLOCATE, "./plan/../users.parquet", "is the table that is read"),
        (ALLOCATE, "other/frontier.parquet", "a file of the plan"),
        (SIMULATE, "other/frontier.parquet", "a file of the plan"),
        (REPORT, "other/report.html", "a file of the plan"),
        (ALLOCATE, "plan/new.parquet", "the plan's own folder"),
        (("simulate", "two-step", "--users", "1000000000000"), "x.csv", "GiB of memory"),
        (("simulate", "envelopes", "--users", str(10**30)), "x.csv", "GiB of memory"),
        (("demo", "--population", str(10**14)), "demo", "GiB of memory"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_work(
    place: Path, command: tuple[str, ...], out: str, said: str
) -> None:
    with unchanged(place):
        assert said in refused(*command, "--out", out)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("audit", ""), "names no file"),
        (("frontier", ""), "names no file"),
        (("evaluate", "plan", " "), "names no file"),
        (("allocate", "plan", "", "--out", "d.csv"), "names no file"),
        (("allocate", "plan", "users.parquet", "--history", "", "--out", "d.csv"), "names no file"),
        (("audit", "pipe.csv"), "is a pipe"),
        (("audit", "circle.csv"), "symbolic links"),
        (("audit", "log.parquet", "--campaign", "pipe.csv"), "not a regular file"),
        (("frontier", "circle"), "symbolic links"),
        (("frontier", "log.parquet"), "a file, not a plan folder"),
        (("frontier", "plan", "--budget", "inf"), "not a plain number"),
        (("frontier", "plan", "--reward", "nan"), "must be a number"),
        (("evaluate", "plan", "log.parquet", "--confidence", "nan"), "confidence must be"),
        (("reprice", "plan", "--budget-total", "1", "--audience", "9" * 400, "--out", "new"), "less than or equal"),
        (("reprice", "plan", "--budget", "inf", "--out", "new"), "not a plain number"),
        ((*FIT, "--temperature", "1e-300", "--out", "new"), "temperature must be"),
    ],
)
def test_an_input_that_cannot_be_is_refused(place: Path, line: tuple[str, ...], said: str) -> None:
    with unchanged(place):
        assert said in refused(*line)


def test_a_folder_that_cannot_be_listed_is_refused(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    def broken(self: Path, pattern: str) -> Iterator[Path]:
        raise OSError(22, "Invalid argument", "/proc/1/task")

    monkeypatch.setattr(Path, "rglob", broken)
    assert "cannot be read completely" in refused("audit", str(place))


def test_a_demo_that_was_stopped_can_be_started_again_and_a_log_of_others_stays(place: Path) -> None:
    Path("demo").mkdir()
    pl.DataFrame({"mine": [1]}).write_parquet("demo/campaign.parquet")
    with unchanged(place):
        assert "the demo did not write it" in refused("demo", "--out", "demo")
    from redenvelope.simulate.envelopes import EnvelopeCampaign

    EnvelopeCampaign().log(3, 0).write_parquet("demo/campaign.parquet")
    # It goes on to where too few users end it.
    assert "fit_few_users" in refused("demo", "--users", "200", "--out", "demo")

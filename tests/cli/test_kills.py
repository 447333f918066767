"""SIGKILL at any moment of a command that writes: the old output stands or the new one, and nothing besides.

`REDENVELOPE_KILLS=50 python -m pytest -m slow -s tests/cli/test_kills.py` kills every command so often and counts.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from redenvelope import FiniteCampaign, Plan, PlanError
from redenvelope.plan import storage as store
from tests.program import PROGRAM, run_here
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]


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
    "fit": ["fit", "log.parquet", "--budget", "2.9", "--method", "bandit", "--history", "none", "--out", "other"],
}
OUTPUTS = {
    "reprice": "other/plan.json",
    "report": "page.html",
    "own report": "other/plan.json",
    "allocate": "decisions.parquet",
    "simulate": "log.parquet",
    "fit": "other/plan.json",
}


OWN = ("weights.safetensors", "frontier.parquet", "certificate.json", "ladder.json", "report.html")
MANIFEST = {"format": store.FORMAT, "policy": {}, "record": {}}
REPLACING = """
import json, os, sys
from pathlib import Path
from redenvelope.plan.storage import replace_files
plans = [(bytes.fromhex(own), {name: bytes.fromhex(content) for name, content in files.items()})
         for own, files in json.loads(Path("plans.json").read_text())]
for line in sys.stdin:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("ended", flush=True)
        continue
    replace_files(Path("other"), *plans[0])
    print(os.getpid(), flush=True)
    while True:
        for manifest, files in reversed(plans):
            replace_files(Path("other"), manifest, files)
"""
"""For every line that it reads, a new process that replaces one plan by the other until it is killed."""


def check(place: Path, names: set[str]) -> None:
    """Everything opens, and nothing is there that was not."""
    Plan.load(place / "plan")
    Plan.load(place / "other")
    assert len(pl.read_parquet(place / "log.parquet")) in (2_000, 4_000)
    assert len(pl.read_parquet(place / "decisions.parquet")) in (1, 6_000)
    assert (place / "page.html").read_text().rstrip().endswith("</html>")
    assert {path.name for path in place.iterdir()} == names
    left = {path.name for path in (place / "other").iterdir()} - {*OWN, "plan.json"}
    # What waited for its name when its writer was killed is read from there, and tidied up by the next writer.
    assert all(name.endswith(".waiting") for name in left), left


def kill_at_random(place: Path, name: str, kills: int, seed: int) -> str:
    """Kill a command again and again; returns how often the output was the old one, and the new one."""
    draws, command, out = random.Random(seed), COMMANDS[name], place / OUTPUTS[name]
    names = {path.name for path in place.iterdir()}
    run_here(*command, folder=place)  # its programs are compiled now, as those that are killed have them
    start = time.perf_counter()
    subprocess.run([*PROGRAM, *command], cwd=place, capture_output=True, timeout=600, check=False)
    whole = time.perf_counter() - start
    check(place, names)
    new = caught = 0
    for _ in range(kills):
        _older(place)
        before = hashlib.sha256(out.read_bytes()).digest()
        process = subprocess.Popen(
            [*PROGRAM, *command], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # What is written is written at the end: moments there are drawn more often.
        time.sleep(whole * draws.betavariate(4, 1))
        caught += process.poll() is None
        process.kill()
        process.wait()
        time.sleep(0.05)  # the child dies with its parent, but not in the same instant
        check(place, names)
        new += hashlib.sha256(out.read_bytes()).digest() != before
    return (
        f"{name}: {kills} kills, {caught} before it had ended, the older output {kills - new} times, the new one {new} "
        "times, 0 lost, 0 half"
    )


def _older(place: Path) -> None:
    """Older outputs, so that a new one can be told from them."""
    files = {name: (place / "plan" / name).read_bytes() for name in OWN if name != "report.html"}
    content = json.loads((place / "plan" / "plan.json").read_text())
    plain = {key: value for key, value in content.items() if key not in ("seal", "files")}
    files["report.html"] = b"older"
    store.replace_files(place / "other", store.sealed(plain, files), files)
    (place / "page.html").write_text("<html>old</html>")
    pl.DataFrame({"old": [1]}).write_parquet(place / "decisions.parquet")


def test_a_few_kills(place: Path) -> None:
    kill_at_random(place, "reprice", kills=2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_many_kills(place: Path, name: str) -> None:
    print(kill_at_random(place, name, kills=int(os.environ.get("REDENVELOPE_KILLS", "50")), seed=1))


def test_many_kills_of_a_process_that_does_nothing_but_replace(place: Path) -> None:
    """Where every moment is one of writing: killed anywhere between two plans, one of the two is there, whole."""
    folder, draws = place / "other", random.Random(2)
    plans = []
    for number in range(2):
        files = {name: (place / "plan" / name).read_bytes() for name in OWN} | {"report.html": b"of %d" % number}
        plans.append((store.sealed({**MANIFEST, "package": str(number)}, files), files))
    (place / "plans.json").write_text(
        json.dumps([[own.hex(), {name: content.hex() for name, content in files.items()}] for own, files in plans])
    )
    met = set()
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", REPLACING], cwd=place, **streams) as started:  # type: ignore[call-overload]
        for _ in range(int(os.environ.get("REDENVELOPE_KILLS", "12"))):
            started.stdin.write("begin\n")
            replacing = int(started.stdout.readline())  # it has begun
            time.sleep(draws.uniform(0, 0.1))
            os.kill(replacing, signal.SIGKILL)
            assert started.stdout.readline() == "ended\n"
            try:
                found, files = store.read_files(folder)
            except PlanError:
                pytest.fail(f"half a plan: {sorted(path.name for path in folder.iterdir())}")
            assert files == plans[int(found["package"])][1]
            met.add(found["package"])
        started.stdin.close()
    assert met == {"0", "1"}
    store.replace_files(folder, *plans[0])
    assert {path.name for path in folder.iterdir()} == {*OWN, "plan.json"}


def test_outputs_are_checked_before_the_work(place: Path) -> None:
    """Where a plan cannot be written, it is said at once and in words."""
    (place / "mine").mkdir()
    (place / "mine" / "plan.json").write_text('{"name": "my own"}')
    (place / "mine" / "thesis.docx").write_text("years")
    (place / "file").write_text("text")
    for out, word in (("mine", "not a plan"), ("file", "not a folder"), ("file/plan", "folder"), ("", "--out")):
        result = run_here("fit", "log.parquet", "--budget", 2.9, "--out", out, folder=place)
        assert result.returncode == 2, result.stderr
        assert word in result.stderr
        assert "Traceback" not in result.stderr
    assert sorted(path.name for path in (place / "mine").iterdir()) == ["plan.json", "thesis.docx"]
    shutil.rmtree(place / "mine")

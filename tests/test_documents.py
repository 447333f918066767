"""Whatever the documentation tells to type is understood, and does what it says: pages are run from top to bottom."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import polars as pl
import pytest

from redenvelope import Budget, Campaign, Plan, two_step
from tests.documents import FENCE, PAGES, ROOT, Block, blocks, commands, lines, spans
from tests.program import run_here, understood
from tests.two_step_plan import campaign, log, plan, small_models, stages

__all__ = ["campaign", "log", "plan", "small_models", "stages"]

KINDS = {"console", "json", "py", "python", "sh", "sql", "text", "toml", "yaml"}
TYPED = {page: [line for block in blocks(page) for line in lines(block)] for page in PAGES}

NOT_RUN = {
    "make ": "installs, builds or tests everything; that the target exists is looked up",
    "pip install ": "fetches from a network; that the extra exists is looked up",
}
"""Lines that are not run, by how they begin, and why."""

SCRIPTS = {"docs/recipes/dbt.md": "tests/test_recipes.py", "docs/recipes/weekly.md": "tests/test_recipes.py"}
"""Pages whose block is a script with arguments, and the test that runs it."""

SHORTER = {"python -m tests.adversary --count 20000": "python -m tests.adversary --count 10"}
"""Lines that would run for hours, and what is run of them."""

FEWER = ("--users 6000", "--users 1500")
"""Users of a log that is simulated, and how many where models are small."""

MINUTES = 40


# What is looked up in a moment


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    assert {block.kind for block in blocks(page)} <= KINDS
    assert len(re.findall(r"^ *```", text, flags=re.MULTILINE)) == 2 * len(FENCE.findall(text))


@pytest.mark.parametrize("page", [page for page in PAGES if TYPED[page]])
def test_every_line_of_a_block_is_understood(page: str) -> None:
    for line in TYPED[page]:
        for given in commands(line, "redenvelope"):
            understood(given)


# The changelog tells of commands that were.
@pytest.mark.parametrize("page", sorted(set(PAGES) - {"docs/reference/commands.md", "CHANGELOG.md"}))
def test_every_command_in_a_sentence_is_understood(page: str) -> None:
    for span in spans(page, "redenvelope "):
        for given in commands(span, "redenvelope"):
            try:
                understood(given)
            except Exception as error:
                # A sentence may name a command without all that it needs.
                assert type(error).__name__ == "MissingParameter", (span, error)


def test_every_target_of_make_and_every_extra_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in PAGES:
        for line in [*TYPED[page], *spans(page, "make "), *spans(page, "pip install ")]:
            assert {given[0] for given in commands(line, "make")} <= targets, line
            assert set(re.findall(r"redenvelope\[(\w+)\]", line)) <= set(extras), line


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_every_benchmark_that_is_named_exists_and_has_its_options(page: str) -> None:
    for span in [*TYPED[page], *spans(page, "python benchmarks/"), *spans(page, "benchmarks/")]:
        for script, options in re.findall(r"(benchmarks/[\w/]+\.py)([^`]*)", span):
            source = (ROOT / script).read_text(encoding="utf-8")
            for option in re.findall(r"(?<!\S)--[\w-]+", options):
                assert f'"{option}"' in source, (script, option)


def test_the_lists_of_exceptions_hold_nothing_else() -> None:
    typed = [line for found in TYPED.values() for line in found]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in typed), start
    assert set(SHORTER) <= set(typed)
    for page, test in SCRIPTS.items():
        assert any(block.content.startswith("#!") for block in blocks(page)), page
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


# What the reader has before the first line


def two_step_log(folder: Path) -> None:
    """A log on which every budget of the documentation can be certified, and users at their first step."""
    frame = two_step().log(3_000, seed=1)
    frame.write_parquet(folder / "log.parquet")
    two_step().log(200, seed=2).filter(step=0).select("user", "step", "state").write_parquet(folder / "users.parquet")


def with_items(folder: Path) -> None:
    two_step_log(folder)
    labels = pl.read_parquet(folder / "log.parquet")["action"].unique().sort()
    amounts = pl.DataFrame({"action": [*labels, "a4"], "amount": range(len(labels) + 1)})
    amounts.write_csv(folder / "items.csv")
    new = '[[new]]\naction = "a4"\nlike = "a3"\nat_most = 4.0\nshare = 0.01\n'
    (folder / "next-week.toml").write_text(new)


def without_propensities(folder: Path) -> None:
    for name, seed in (("log", 1), ("other", 2)):
        two_step().log(3_000, seed).drop("propensity").write_parquet(folder / f"{name}.parquet")


def with_tiers(folder: Path) -> None:
    """A column that was filled in later: the reward in ten tiers."""
    frame = two_step().log(6_000, seed=1)
    tier = (pl.col("reward").rank("min") * 10 // (pl.len() + 1)).cast(pl.Int64)
    frame.with_columns(tier=pl.format("tier {}", tier)).write_parquet(folder / "log.parquet")


def a_lake(folder: Path) -> None:
    (folder / "lake").mkdir()
    (folder / "users").mkdir()
    frame = two_step().log(3_000, seed=1)
    for part in range(3):
        frame.filter(pl.col("user") % 3 == part).write_parquet(folder / "lake" / f"{part}.parquet")
        users = pl.DataFrame({"user": range(100 * part, 100 * part + 100)}).with_columns(step=0, state=pl.lit("s0"))
        users.write_parquet(folder / "users" / f"{part}.parquet")


def a_warehouse(folder: Path) -> None:
    """The log and the users of `two_step_log`, in two databases."""
    import sqlite3

    import duckdb

    two_step_log(folder)
    with duckdb.connect(folder / "shop.duckdb") as shop:
        for table, file in (("offers", "log"), ("users", "users")):
            shop.execute(f"CREATE TABLE {table} AS SELECT * FROM '{folder / file}.parquet'")
    users = pl.read_parquet(folder / "users.parquet")
    with sqlite3.connect(folder / "shop.sqlite") as small:
        small.execute("CREATE TABLE users (user INTEGER, step INTEGER, state TEXT)")
        small.executemany("INSERT INTO users VALUES (?, ?, ?)", users.iter_rows())


def two_arms(folder: Path) -> None:
    frame = two_step().log(2_000, seed=3)
    treated = pl.col("user") % 10 == 0
    frame.filter(treated).write_parquet(folder / "plan-arm.parquet")
    frame.filter(~treated).write_parquet(folder / "today-arm.parquet")
    group = pl.when(treated).then(pl.lit("treatment")).otherwise(pl.lit("control"))
    frame.with_columns(group=group).write_parquet(folder / "rollout.parquet")


def served_plans(folder: Path) -> None:
    from tests.serve.conftest import make_plan

    budgets = (Budget("coupons", per_user=0.5), Budget("pushes", count=("1 €", "3 €"), per_user=0.8))
    make_plan(folder / "plan")
    make_plan(folder / "both", campaign=Campaign(budgets=budgets))


def with_outcomes(folder: Path) -> None:
    """What came of decisions with a control group."""
    users = pl.DataFrame({"user": range(400), "step": 0, "action": "0", "reward": 1.0, "cost": 0.0})
    marked = users.with_columns(holdout=pl.col("user") % 20 == 0, reward=pl.col("user") % 2)
    marked.write_parquet(folder / "decisions-with-outcomes.parquet")


def nothing(folder: Path) -> None:
    """The page makes all that it needs."""


BROUGHT: dict[str, Callable[[Path], None]] = {
    "README.md": nothing,
    "CONTRIBUTING.md": nothing,
    "docs/faults.md": nothing,
    "docs/reproduce.md": nothing,
    "docs/tour.md": nothing,
    "docs/guides/horizon-and-temperature.md": two_step_log,
    "docs/guides/items.md": with_items,
    "docs/guides/lake.md": a_lake,
    "docs/guides/no-propensities.md": without_propensities,
    "docs/guides/plans.md": nothing,
    "docs/guides/production.md": served_plans,
    "docs/guides/reading-the-report.md": nothing,
    "docs/guides/rules-and-budgets.md": with_outcomes,
    "docs/guides/your-data.md": with_tiers,
    "docs/recipes/ab-test.md": two_arms,
    "docs/recipes/warehouse.md": a_warehouse,
}
"""Every page with lines to type, and the tables that its reader brings."""

WITH_A_PLAN = ("docs/guides/plans.md", "docs/guides/reading-the-report.md", "docs/recipes/ab-test.md")
"""Pages that begin with a plan in the folder `plan`."""


def test_every_page_with_lines_is_run() -> None:
    assert set(BROUGHT) == {page for page in PAGES if TYPED[page]} - set(SCRIPTS)


def codes(line: str) -> set[int]:
    """How a line may end: as its comment says, or well."""
    said = re.findall(r"\b\d\b", line.partition("#")[2].partition("exit")[2])
    return set(map(int, said)) or {0}


def is_run(line: str) -> bool:
    return not line.startswith(tuple(NOT_RUN))


# The short pages here, with small models


@pytest.mark.parametrize("page", ["README.md", *WITH_A_PLAN])
@pytest.mark.usefixtures("small_models")
def test_a_short_page_runs_from_top_to_bottom(page: str, plan: Plan, tmp_path: Path) -> None:
    BROUGHT[page](tmp_path)
    if page in WITH_A_PLAN:
        plan.save(tmp_path / "plan", {"report.html": b""})
    for line in filter(is_run, TYPED[page]):
        (given,) = commands(line.replace(*FEWER), "redenvelope")
        if given[0] != "serve":  # goes on until it is ended: below
            done = run_here(*given, folder=tmp_path)
            assert done.returncode in codes(line), (line, done.stderr)


# All of them as they stand, in a shell


def surroundings(folder: Path) -> dict[str, str]:
    """With the program on the path, and the repository for `python -m tests`."""
    folder.mkdir()
    program = folder / "redenvelope"
    program.write_text(f"#!{sys.executable}\nfrom redenvelope.cli import main\nmain()\n")
    program.chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    found = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PATH": path, "PYTHONPATH": found}


def run_line(line: str, folder: Path, around: dict[str, str]) -> str:
    """What a line prints."""
    done = subprocess.run(
        ["sh", "-c", SHORTER.get(line, line)],
        cwd=folder,
        env=around,
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        check=False,
    )
    assert done.returncode in codes(line), (line, done.returncode, done.stdout, done.stderr)
    return done.stdout


USER = {"request_id": "r-17", "user": "u-4711", "features": {"taste": 0.9, "city": "Lyon"}}


def asked_of_server(page: str) -> dict[str, object]:
    """The first request that a page sends with curl, or one that its plan understands."""
    sent = re.search(r"^curl [^']*'[^']*' -d '(\{[^']*\})'", PAGES[page].read_text(encoding="utf-8"), re.MULTILINE)
    return USER if sent is None else json.loads(sent[1])


def run_server(line: str, folder: Path, around: dict[str, str], secret: str, one: dict[str, object]) -> None:
    """Serve one user, and end; the usual port may be somebody else's where this is tested."""
    given = [*shlex.split(line, comments=True), "--port", "0"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(given, cwd=folder, env=around, **streams) as process:
        try:
            said = process.stdout.readline()  # nothing, when it has ended
            found = re.search(r"serving at http://[\d.]+:(\d+)", said)
            assert found, (line, said, process.communicate(timeout=60))
            decided = ask(found[1], secret, "/v1/decisions", one)
            ask(found[1], secret, "/v1/outcomes", {"decision_id": decided["decision_id"], "reward": 1, "amount": 0})
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, line


def ask(port: str, secret: str, address: str, content: dict[str, object]) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
    body = json.dumps(content).encode()
    with urlopen(Request(f"http://127.0.0.1:{port}{address}", body, headers), timeout=60) as answer:
        return json.load(answer)


def run_python(found: list[Block], folder: Path, around: dict[str, str]) -> None:
    """A page's blocks of Python are one script."""
    script = "\n".join(block.content for block in found if block.kind == "python")
    if script:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=folder,
            env=around,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
            check=False,
        )
        assert done.returncode == 0, (script, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("page", BROUGHT)
def test_a_page_runs_from_top_to_bottom(page: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    around = surroundings(tmp_path / "bin")
    folder = tmp_path / "reader"
    folder.mkdir()
    BROUGHT[page](folder)
    if page in WITH_A_PLAN:
        request.getfixturevalue("plan").save(folder / "plan", {"report.html": b""})
    secret = ""
    for line in filter(is_run, TYPED[page]):
        if line.startswith("redenvelope serve "):
            run_server(line, folder, around, secret, asked_of_server(page))
        else:
            said = run_line(line, folder, around)
            secret = said.strip() if line.startswith("redenvelope token ") else secret
    run_python(blocks(page), folder, around)

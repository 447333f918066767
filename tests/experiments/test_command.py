"""`python -m experiments` through the real program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest
from experiments.__main__ import app

from tests.program import run, run_here

EXPERIMENTS_PROGRAM = [sys.executable, "-m", "experiments"]
EXPERIMENTS = ("table_one", "accuracy", "budgets", "prices", "searches", "second_table")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "taken"], ["notes.txt", "another folder"]),
        (["--out", "taken/notes.txt"], ["is a file"]),
        (["--out", "new", "--seeds", "1"], ["seeds"]),
        (["--out", "new", "--budget", "3"], ["--budget", "--log"]),
        (["--out", "new", "--columns", "user=customer"], ["--columns", "--log"]),
        (["--out", "new", "--log", "missing.parquet"], ["missing.parquet", "no such file"]),
        (["--out", "new", "--log", "bad.csv"], ["cannot be used", "propensity"]),
        (["--out", "new", "--only", "everything"], ["'everything'", "table-one"]),
        (["--out", "new", "--only", "log"], ["--only log", "--log"]),
        ([], ["--out"]),
    ],
)
def test_mistakes_are_answered_in_a_few_lines_before_any_work(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    (tmp_path / "bad.csv").write_text("user,step,action,reward,cost\n1,0,a,1,1\n")
    result = run_here(*arguments, folder=tmp_path, app=app)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 12
    for word in words:
        assert word in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("reproduce")
    run("simulate", "two-step", "--users", 2_500, "--out", "log.parquet", folder=folder, check=True)
    asked = ("--out", "out", "--quick", "--log", "log.parquet", "--budget", 2.9, "--json")
    result = run(*asked, folder=folder, program=EXPERIMENTS_PROGRAM)
    assert result.returncode == 0, result.stderr
    return folder / "out", json.loads(result.stdout)


@pytest.mark.slow
def test_quick_writes_every_table_and_figure(reproduced: tuple[Path, dict[str, object]]) -> None:
    folder, content = reproduced
    assert isinstance(content["experiments"], dict)
    assert tuple(content["experiments"]) == (*EXPERIMENTS, "log_table")
    for name in content["experiments"]:
        table = pl.read_csv(folder / f"{name}.csv")
        assert len(table) == len(content["experiments"][name]["rows"])
        assert len((folder / f"{name}.md").read_text().splitlines()) == len(table) + 4
    assert len(list(folder.glob("*.png"))) == len(list(folder.glob("*.html"))) - 1 == 8
    assert "What differs from the paper" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_the_numbers_are_those_of_the_truth(reproduced: tuple[Path, dict[str, object]]) -> None:
    folder, _ = reproduced
    exact = pl.read_csv(folder / "table_one.csv").filter(learned_by="truth known")
    assert [round(reward, 4) for reward in exact["reward"]] == [3.8836, 4.4006, 4.5093]
    cells = pl.read_csv(folder / "accuracy.csv").filter(campaign="two-step")
    # Cells of the training log hold 130 rows or more of a standard deviation of 0.32: four errors are 0.11.
    assert ((cells["predicted"] - cells["truth"]).abs() < 0.15).all()
    prices = pl.read_csv(folder / "prices.csv").filter(policy="constrained MDP").sort("dual")
    assert (prices["exact_cost"].diff().drop_nulls() <= 1e-12).all()
    searches = pl.read_csv(folder / "searches.csv").filter(campaign="two-step", temperature=0.05, pricing="planning")
    steps = dict(zip(searches["solver"], searches["steps"], strict=True))
    # On a single curve bisection may land within the tolerance by luck; tests/dual compares the two over many.
    assert max(steps["Newton"], steps["bisection"]) < steps["ascent"]
    met = searches.filter(status="converged")
    assert ((met["budget"] - met["cost"]).is_between(-1e-9, 1e-3 * 2.9295)).all()
    truth = pl.read_csv(folder / "second_table.csv").filter(learned_by="truth known")
    assert truth.filter(form="fixed budget")["reward"].is_sorted()
    assert truth.filter(form="fixed reward")["cost"].is_sorted(descending=True)


@pytest.mark.slow
def test_a_log_is_reported_with_its_certificates(reproduced: tuple[Path, dict[str, object]]) -> None:
    folder, _ = reproduced
    table = pl.read_csv(folder / "log_table.csv")
    assert table["row"].to_list()[0] == "as logged"
    assert set(table["certificate"][1:]) <= {"certified", "refused"}
    refused = table.filter(certificate="refused")
    assert refused["reason"].null_count() == 0

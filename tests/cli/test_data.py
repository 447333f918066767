"""The commands before a plan, through the real program."""

import json
from importlib.metadata import version
from pathlib import Path

import polars as pl
import pytest

from tests.log.files import good_log, many_users, put
from tests.program import run, run_here


def test_the_version_is_that_of_the_package() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout == f"redenvelope {version('redenvelope')}\n"


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("propensity", "25%", ["written as a percentage, among others that are not", "25% is 0.25"]),
        (
            "cost",
            "1.200,50",
            [
                "that could mark thousands or decimals",
                "1,200.50 and 1 200,50 are 1200.50",
            ],
        ),
    ],
)
def test_numbers_as_spreadsheets_dress_them_are_named_with_their_line(
    column: str, value: str, words: list[str], tmp_path: Path
) -> None:
    put(good_log(), column, {3: value}).write_csv(tmp_path / "log.csv")
    result = run_here("audit", tmp_path / "log.csv")
    assert result.returncode == 2
    shown = " ".join(result.stdout.split())
    for word in (*words, f"log.csv, column {column}, line 4", f"such as: {value}"):
        assert word in shown


def test_a_misspelt_column_is_asked_back(tmp_path: Path) -> None:
    good_log().rename({"user": "kunde"}).write_csv(tmp_path / "log.csv")
    result = run_here("audit", tmp_path / "log.csv", "--columns", "user=Kunde", "--json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert result.returncode == 2
    assert finding["rule"] == "column_named_missing"
    assert finding["remedy"].endswith("--columns user=kunde")


def test_folders_named_by_a_column_are_audited_as_one_log(tmp_path: Path) -> None:
    for step in range(3):
        (tmp_path / f"step={step}").mkdir()
        part = many_users().filter(pl.col("step") == step).drop("step")
        part.write_parquet(tmp_path / f"step={step}" / "part-0.parquet")
    result = run_here("audit", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 3


@pytest.mark.parametrize("seed", [2**45, 2**63, -1, "1e3"])
def test_seeds_that_no_generator_takes_are_refused_in_words(seed: object, tmp_path: Path) -> None:
    result = run_here("simulate", "two-step", "--out", tmp_path / "log.csv", "--seed", seed)
    assert result.returncode == 2
    assert "--seed" in result.stderr
    assert "Traceback" not in result.stderr


def test_names_that_look_like_patterns_are_written_and_read(tmp_path: Path) -> None:
    for name in ("log[1].csv", "log*.parquet", "~"):
        path = tmp_path / name / "log?.csv" if name == "~" else tmp_path / name
        assert run_here("simulate", "two-step", "--users", 700, "--out", path).returncode == 0
        assert run_here("audit", path).returncode == 0


def test_what_cannot_be_a_file_is_refused_in_words(tmp_path: Path) -> None:
    for odd in ("x" * 5_000, tmp_path / "gone.csv", "/dev/zero", tmp_path):
        result = run_here("audit", odd)
        assert result.returncode == 2
        assert result.stderr.startswith("redenvelope: ")
        assert "Traceback" not in result.stderr


def test_names_that_move_a_cursor_are_shown_as_they_are_spelt(tmp_path: Path) -> None:
    odd = "\x1b[2Jname\n[red]"
    good_log().with_columns(pl.lit(1).alias(odd)).write_parquet(tmp_path / "log.parquet")
    for flags in ((), ("--json",)):
        result = run_here("audit", tmp_path / "log.parquet", *flags)
        assert result.returncode == 2  # too few users
        assert "\x1b[2J" not in result.stdout
        assert "Traceback" not in result.stderr

"""Every command through the real program, with good and with bad input."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.documents import commands
from tests.program import run, run_here, understood
from tests.two_step_plan import models_that_train_quickly


@pytest.fixture(scope="module")
def envelopes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("campaign") / "envelopes.parquet"
    result = run("simulate", "envelopes", "--users", 2000, "--seed", 1, "--out", path)
    assert result.returncode == 0, result.stderr
    return path


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert 1 <= len(result.stderr.strip().splitlines()) <= 12
    for word in words:
        assert word in result.stderr


def test_no_arguments_show_the_help() -> None:
    result = run()
    for command in ("demo", "simulate", "audit"):
        assert command in result.stdout + result.stderr


def test_simulate_writes_a_log_with_the_contract_columns(envelopes: Path) -> None:
    frame = pl.read_parquet(envelopes)
    assert frame.columns[:6] == ["user", "step", "action", "propensity", "reward", "cost"]
    assert frame["user"].n_unique() == 2000


def test_simulate_is_the_same_for_the_same_seed(envelopes: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.parquet", tmp_path / "other.parquet"
    run("simulate", "envelopes", "--users", 2000, "--seed", 1, "--out", again)
    run_here("simulate", "envelopes", "--users", 2000, "--seed", 2, "--out", other)
    assert pl.read_parquet(again).equals(pl.read_parquet(envelopes))
    assert not pl.read_parquet(other).equals(pl.read_parquet(envelopes))


def test_simulate_tells_the_truth_of_the_two_step_problem(tmp_path: Path) -> None:
    result = run_here("simulate", "two-step", "--users", 10, "--out", tmp_path / "log.csv", "--truth", "--json")
    rows = json.loads(result.stdout)["truth"]
    at_uniform_cost = {row["policy"]: row for row in rows if row["budget"] == pytest.approx(2.9295, abs=5e-5)}
    assert at_uniform_cost["bandit"]["reward"] == pytest.approx(4.4006, abs=5e-5)
    assert at_uniform_cost["optimum"]["reward"] == pytest.approx(4.5093, abs=5e-5)
    uniform = next(row for row in rows if row["policy"] == "uniform")
    assert uniform["reward"] == pytest.approx(3.8836, abs=5e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "envelopes", "--out", "log.xlsx"], [".parquet or .csv"]),
        (["simulate", "envelopes", "--out", "file/log.csv"], ["file/log.csv"]),
        (["simulate", "nothing", "--out", "log.csv"], ["two-step"]),
        (["simulate", "envelopes", "--out", "log.csv", "--users", "0"], ["users"]),
        (["audit", "missing.parquet"], ["missing.parquet", "no such file"]),
        (["audit", "log.csv", "--columns", "user"], ["role=your_column"]),
        (["audit", "log.csv", "--columns", "who=customer"], ["'who' is not a role"]),
        (["audit", "log.csv", "--campaign", "missing.toml"], ["missing.toml"]),
        (["audit", "*.parquet"], ["no file matches"]),
        (["audit", "."], ["no table"]),
    ],
)
def test_mistakes_are_answered_in_a_few_lines(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    if "." not in arguments:
        (tmp_path / "log.csv").write_text("user,step\n1,0\n", encoding="utf-8")
    assert_refused(run_here(*arguments, folder=tmp_path), *words)


def test_audit_speaks_in_sentences_and_exits_with_0(envelopes: Path) -> None:
    result = run("audit", envelopes)
    assert result.returncode == 0, result.stderr
    assert "Assignment depends on the features" in " ".join(result.stdout.split())
    assert "fit for use" in result.stdout


def test_audit_as_json_is_one_document(envelopes: Path) -> None:
    result = run_here("audit", envelopes, "--json", "--budget", 4)
    content = json.loads(result.stdout)
    assert content["status"] == "fit"
    assert content["users"] == 2000
    assert {"rule", "severity", "column", "rows", "count", "examples", "remedy"} <= set(content["findings"][0])


def test_a_refused_log_exits_with_2_and_lists_every_error(envelopes: Path, tmp_path: Path) -> None:
    frame = pl.read_parquet(envelopes).with_columns(pl.col("propensity") * 100, pl.col("cost") - 1)
    frame.write_csv(tmp_path / "bad.csv")
    result = run_here("audit", tmp_path / "bad.csv", "--json")
    assert result.returncode == 2
    content = json.loads(result.stdout)
    assert content["status"] == "refused"
    assert {"propensity_percentage", "cost_negative"} <= {finding["rule"] for finding in content["findings"]}


def test_a_budget_below_the_cheapest_action_is_a_warning_of_the_audit(tmp_path: Path) -> None:
    run_here("simulate", "two-step", "--users", 800, "--out", tmp_path / "log.parquet")
    result = run_here("audit", tmp_path / "log.parquet", "--budget", 0.5)
    assert result.returncode == 0, "what a sequence of actions can reach is not known before it is planned"
    assert "budget_infeasible" in result.stdout


def test_columns_by_flag_by_file_and_by_a_file_beside_the_log(envelopes: Path, tmp_path: Path) -> None:
    renamed = pl.read_parquet(envelopes).rename({"user": "customer", "reward": "active"})
    path = tmp_path / "log.parquet"
    renamed.write_parquet(path)
    assert run_here("audit", path, "--json").returncode == 2
    by_flag = run_here("audit", path, "--json", "--columns", "user=customer,reward=active")
    (tmp_path / "mapping.toml").write_text('[columns]\nuser = "customer"\nreward = "active"\n', encoding="utf-8")
    by_file = run_here("audit", path, "--json", "--campaign", tmp_path / "mapping.toml")
    (tmp_path / "mapping.toml").rename(tmp_path / "campaign.toml")
    beside = run_here("audit", path, "--json")
    assert by_flag.returncode == by_file.returncode == beside.returncode == 0
    assert by_flag.stdout == by_file.stdout == beside.stdout


def test_missing_propensities_can_be_estimated_and_are_labelled(envelopes: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.read_parquet(envelopes).drop("propensity").write_parquet(path)
    refused = run_here("audit", path, "--json")
    assert refused.returncode == 2
    assert "--estimate-propensity" in json.loads(refused.stdout)["findings"][0]["remedy"]
    estimated = json.loads(run_here("audit", path, "--json", "--estimate-propensity").stdout)
    assert estimated["propensity_source"] == "estimated"
    assert any(finding["rule"] == "propensity_estimated" for finding in estimated["findings"])


@pytest.fixture(scope="module")
def two_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("campaign") / "two-step.parquet"
    assert run_here("simulate", "two-step", "--users", 2000, "--seed", 1, "--out", path).returncode == 0
    return path


@pytest.fixture(scope="module")
def fitted(two_step: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("fit") / "plan"
    with models_that_train_quickly():
        return folder, run_here("fit", two_step, "--budget", 2.9295, "--out", folder, "--json")


def test_fit_writes_a_plan_and_says_whether_it_is_certified(
    fitted: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, result = fitted
    content = json.loads(result.stdout)
    assert result.returncode == {"certified": 0, "refused": 3}[content["certificate"]["status"]]
    assert json.loads((folder / "certificate.json").read_text()) == content["certificate"]


def test_allocate_decides_for_a_table(
    fitted: tuple[Path, subprocess.CompletedProcess[str]], two_step: Path, tmp_path: Path
) -> None:
    users = pl.read_parquet(two_step).filter(pl.col("step") == 0).drop("action", "propensity", "reward", "cost")
    users.write_parquet(tmp_path / "users.parquet")
    result = run("allocate", fitted[0], tmp_path / "users.parquet", "--out", tmp_path / "decisions.parquet", "--json")
    assert result.returncode == 0, result.stderr
    decisions = pl.read_parquet(tmp_path / "decisions.parquet")
    assert decisions.columns == ["user", "step", "action", "propensity", "expected_reward", "expected_cost"]
    assert json.loads(result.stdout)["decisions"] == len(users) == len(decisions)
    users.with_columns(state=pl.lit("unheard of")).write_parquet(tmp_path / "users.parquet")
    result = run_here("allocate", fitted[0], tmp_path / "users.parquet", "--out", tmp_path / "again.csv")
    assert result.returncode == 0
    assert "serving_unseen_label" in result.stderr


def test_evaluate_shows_every_estimator_and_verifies_the_certificate(
    fitted: tuple[Path, subprocess.CompletedProcess[str]], two_step: Path
) -> None:
    result = run_here("evaluate", fitted[0], two_step, "--json")
    content = json.loads(result.stdout)
    assert content["certificate"]["verified"] is True
    assert len({row["estimator"] for row in content["estimates"]}) >= 9


def test_frontier_answers_questions(fitted: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert "No plan is known to keep this budget." in run_here("frontier", fitted[0], "--budget", 0.001).stdout
    content = json.loads(run_here("frontier", fitted[0], "--budget", 3, "--reward", 4.0, "--json").stdout)
    assert content["at"][0]["budget"] == 3
    assert content["least_cost"]["reward"] == 4.0
    assert "one more unit buys" in run_here("frontier", fitted[0]).stdout


def test_the_report_is_in_the_plan_and_can_be_written_again(
    fitted: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    result = run_here("report", fitted[0], "--out", tmp_path / "again.html")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "again.html").read_text() == (fitted[0] / "report.html").read_text()
    assert_refused(run_here("report", fitted[0], "--out", tmp_path / "again.html" / "page.html"), "cannot be written")


def test_mistakes_around_plans_are_answered_in_a_few_lines(
    fitted: tuple[Path, subprocess.CompletedProcess[str]], envelopes: Path, tmp_path: Path
) -> None:
    out = ["--out", tmp_path / "plan"]
    assert_refused(run_here("fit", envelopes, *out), "give a goal: --budget, the mean cost")
    assert "log (" not in run_here("fit", envelopes, *out).stderr, "before a long log is read"
    for amount in ("1,000", "5 €", "nan", "-1"):
        assert_refused(run_here("fit", envelopes, *out, "--budget", amount), "not a plain number of 0 or more")
    assert_refused(run_here("fit", envelopes, "--out", envelopes, "--budget", 4), "is not a folder")
    assert_refused(run_here("fit", envelopes, *out, "--budget-total", 1000), "--audience")
    assert_refused(run_here("fit", envelopes, *out, "--budget", 4, "--method", "magic"), "planned, learned or bandit")
    assert_refused(run_here("fit", tmp_path / "none.parquet", *out, "--budget", 4), "no such file")
    decided = (envelopes, "--out", tmp_path / "d.csv")
    assert_refused(run_here("allocate", tmp_path, *decided), "not a complete plan folder")
    assert_refused(run_here("allocate", tmp_path / "none", *decided), "no such folder; give the folder that fit")
    assert_refused(run_here("allocate", envelopes, *decided), "a file, not a plan folder")
    assert_refused(run_here("allocate", "", *decided), "'PLAN': an empty text names no file")
    assert_refused(run_here("simulate", "marketing", *decided[1:]), "no campaign 'marketing'; simulate two-step")
    assert_refused(run_here("allocate", fitted[0], tmp_path / "no.csv", "--out", tmp_path / "d.csv"), "no such file")
    assert_refused(run_here("frontier", fitted[0], "--reward", 99), "no plan is sure to earn 99")
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize("program", [run_here, pytest.param(run, marks=pytest.mark.slow)])
def test_demo_runs_end_to_end(program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """Here with a small model; as it stands in a process of its own, which takes a minute to compile."""
    with models_that_train_quickly():
        result = program("demo", "--users", 600, "--population", 20, "--budget", 8, "--out", tmp_path / "demo")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "demo" / "plan" / "certificate.json").is_file()
    for word in ("simulate", "fit", "truth", "optimum", "bandit", "uniform", "this plan"):
        assert word in result.stdout
    (typed,) = re.findall(r"\((redenvelope [^)]*)\)", result.stdout)  # what the demo says that it does can be typed
    for given in commands(typed, "redenvelope"):
        understood(given)

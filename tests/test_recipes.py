"""The recipes: what they read is there, and what they run runs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redenvelope import two_step
from tests.conftest import TOOL_SKIPPED

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "docs" / "recipes"


def block(page: str, kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", (RECIPES / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found
    return found[1]


def test_the_scheduler_reads_keys_that_commands_print() -> None:
    read = [
        (node.value.args[0].value, node.slice.value)
        for node in ast.walk(ast.parse(block("airflow.md", "text")))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "redenvelope"
        and isinstance(node.value.args[0], ast.Constant)
        and isinstance(node.slice, ast.Constant)
    ]
    assert {command for command, _ in read} == {"audit", "fit", "allocate"}
    for command, key in read:
        schema = json.loads((ROOT / "docs" / "schemas" / f"{command}.json").read_text(encoding="utf-8"))
        assert key in schema["required"]


@pytest.mark.slow
def test_the_weekly_script_takes_a_plan_that_is_certified_and_keeps_one_if_not(tmp_path: Path) -> None:
    script = block("weekly.md", "sh").replace("--budget 4", "--budget ${BUDGET}")
    (tmp_path / "weekly.sh").write_text(script)
    program = tmp_path / "bin" / "redenvelope"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom redenvelope.cli import main\nmain()\n")
    program.chmod(0o755)
    (tmp_path / "logs").mkdir()
    campaign = two_step()
    campaign.log(3_000, seed=1).write_parquet(tmp_path / "logs" / "first.parquet")

    def run(*words: str, budget: str = "3") -> subprocess.CompletedProcess[str]:
        import os

        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        surroundings = os.environ | {"PATH": path, "BUDGET": budget}
        return subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=600)

    made = run("redenvelope", "fit", "logs/first.parquet", "--budget", "3", "--out", "plans/zero")
    assert made.returncode == 0, made.stderr
    (tmp_path / "plan").symlink_to("plans/zero")
    before = (tmp_path / "plan" / "plan.json").read_text()
    done = run("sh", "weekly.sh", "first", budget="0.1")  # less than any plan costs
    assert done.returncode == 0, done.stderr
    assert "was not certified; the old one stays" in done.stderr
    assert (tmp_path / "plan" / "plan.json").read_text() == before
    done = run("sh", "weekly.sh", "first", budget="2.9")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "plan" / "certificate.json").read_text())["budget"] == 2.9
    assert (tmp_path / "plan").readlink() == Path("plans/first")


@pytest.mark.slow
def test_the_dbt_project_runs_from_raw_tables_to_decisions(tmp_path: Path) -> None:
    """With the program `dbt` of whatever environment has it."""
    import os
    import shutil

    import duckdb

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if shutil.which("dbt", path=path) is None:
        pytest.skip(f"{TOOL_SKIPPED}: there is no program dbt (pip install dbt-duckdb, in an environment of its own)")
    text = (RECIPES / "dbt.md").read_text(encoding="utf-8")
    for kind, content in re.findall(r"```(yaml|sql)\n(.*?)```", text, flags=re.DOTALL):
        name = re.match(r"(?:#|--) ([\w/.]+)", content)
        assert name, (kind, content)
        file = tmp_path / name[1].rstrip(":")
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    frame = two_step().log(3_000, seed=1).rename({"user": "user_id"})
    sent, outcomes = frame.drop("reward", "cost"), frame.select("user_id", "step", "reward", "cost")
    with duckdb.connect(tmp_path / "warehouse.duckdb") as warehouse:
        warehouse.execute("CREATE SCHEMA raw")
        for table, rows in (("sent", sent), ("outcomes", outcomes)):
            rows.write_parquet(tmp_path / f"{table}.parquet")
            warehouse.execute(f"CREATE TABLE raw.{table} AS SELECT * FROM '{tmp_path / table}.parquet'")
    (tmp_path / "run.sh").write_text(block("dbt.md", "sh"))
    program = tmp_path / "bin" / "redenvelope"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom redenvelope.cli import main\nmain()\n")
    program.chmod(0o755)
    around = os.environ | {"PATH": f"{program.parent}{os.pathsep}{path}", "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    done = subprocess.run(["sh", "run.sh"], cwd=tmp_path, env=around, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout, done.stderr)
    with duckdb.connect(tmp_path / "warehouse.duckdb") as warehouse:
        assert warehouse.execute("SELECT sum(users) FROM spending").fetchone() == (3_000,)

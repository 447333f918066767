"""What `--json` prints is what the schemas in docs/schemas say, for every command that has the option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
import typer.main
from typer.testing import CliRunner

from redenvelope import FiniteCampaign, Plan
from redenvelope.cli import app
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]

SCHEMAS = Path(__file__).parent.parent / "docs" / "schemas"


def printed(command: str, *arguments: object, code: int = 0) -> dict[str, Any]:
    """What a command prints, held to its schema; what it holds is documented by name."""
    # In this process, where compiled programs are there already; the other tests start the real program.
    done = CliRunner().invoke(app, [command, *map(str, arguments), "--json"])
    assert done.exit_code == code, done.output
    content: dict[str, Any] = json.loads(done.stdout)
    schema = json.loads((SCHEMAS / f"{command}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(content)
    assert set(content) <= set(schema["properties"]), "a key that docs/schemas does not know"
    return content


@pytest.fixture(scope="module")
def folder(plan: Plan, campaign: FiniteCampaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a log, users, and two arms."""
    path = tmp_path_factory.mktemp("json")
    plan.save(path / "plan", {})
    rows = campaign.log(900, seed=31)
    rows.write_parquet(path / "log.parquet")
    rows.filter(pl.col("step") == 0).drop("action", "reward", "cost", "propensity").write_csv(path / "users.csv")
    arms = rows.with_columns(arm=pl.when(pl.col("user") % 2 == 0).then(pl.lit("plan")).otherwise(pl.lit("today")))
    arms.write_parquet(path / "arms.parquet")
    return path


def test_every_command_with_json_has_a_schema_that_is_one() -> None:
    group: Any = typer.main.get_command(app)
    speaking = {
        name for name, command in group.commands.items() if any("--json" in each.opts for each in command.params)
    }
    assert speaking == {path.stem for path in SCHEMAS.glob("*.json")}
    for path in SCHEMAS.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_before_a_plan(folder: Path) -> None:
    printed("simulate", "two-step", "--users", 50, "--truth", "--out", folder / "made.csv")
    assert printed("audit", folder / "log.parquet")["status"] == "fit"
    (folder / "odd.csv").write_text("user,step\n1,0\n")
    assert printed("audit", folder / "odd.csv", code=2)["status"] == "refused"


def test_around_a_plan(folder: Path) -> None:
    plan = folder / "plan"
    wanted = ("--out", folder / "again", "--audience", 1_000, "--currency", "EUR")
    assert printed("reprice", plan, "--budget", 3, *wanted)["totals"]["currency"] == "EUR"
    assert printed("reprice", plan, "--budget", 0.1, "--out", folder / "less", code=3)["totals"] is None
    assert "least_cost" in printed("frontier", plan, "--reward", 3)
    printed("allocate", plan, folder / "users.csv", "--out", folder / "decisions.csv")
    printed("evaluate", plan, folder / "log.parquet", "--all-users")
    alone = printed("compare", folder / "arms.parquet", "--arm", "arm")
    assert alone["promise"] is None
    promised = printed("compare", folder / "arms.parquet", "--arm", "arm", "--plan", plan, "--value-per-reward", 2)
    assert promised["difference"]["worth"] is not None


def test_fit_prints_what_reprice_does() -> None:
    fit, reprice = (json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")) for name in ("fit", "reprice"))
    assert fit["properties"] == reprice["properties"]  # one function prints both


@pytest.mark.slow
def test_fit(folder: Path, tmp_path: Path) -> None:
    printed("fit", folder / "log.parquet", "--budget", 3, "--explore", 0.2, "--out", tmp_path / "plan")

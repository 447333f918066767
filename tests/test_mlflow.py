"""Plans in MLflow: logged with their certificate and report, found in the registry, and decided with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import mlflow
import pandas as pd
import polars as pl
import pytest

from redenvelope import Plan, UsageError, two_step
from redenvelope.mlflow import load_model, log_model, save_model
from redenvelope.plan.policy import policy_sha256
from tests.documents import PAGES, blocks
from tests.two_step_plan import plan, stages

__all__ = ["plan", "stages"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file store of its own, without a word to anybody."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_registry_uri((tmp_path / "runs").as_uri())
    return tmp_path


def users() -> pl.DataFrame:
    return two_step().log(200, seed=2).filter(step=0).select("user", "step", "state")


def test_a_plan_goes_through_the_registry_and_decides(tracking: Path, plan: Plan) -> None:
    with mlflow.start_run() as run:
        info = log_model(plan, registered_model_name="envelopes")
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    own = plan.certificate
    assert metrics["certified"] == float(own.is_certified)
    assert metrics["cost_upper"] == own.cost.upper
    assert metrics["budget"] == own.budget
    assert metrics["reward"] == own.reward.estimate
    report = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/report.html")
    assert report.lstrip().lower().startswith("<!doctype html>")
    kept = mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/certificate.json")
    assert kept["budget"] == own.budget
    expected, _ = plan.allocate(users(), seed=0)
    for uri in (info.model_uri, "models:/envelopes/1"):
        again = load_model(uri)
        assert policy_sha256(again.policy) == policy_sha256(plan.policy)
        assert again.certificate == own
        decided = mlflow.pyfunc.load_model(uri).predict(pd.DataFrame(users().to_dict(as_series=False)))
        assert isinstance(decided, pd.DataFrame)
        assert decided["action"].tolist() == expected["action"].to_list()
        assert decided["propensity"].tolist() == expected["propensity"].to_list()
    other, _ = plan.allocate(users(), seed=7)
    seeded = mlflow.pyfunc.load_model(info.model_uri, model_config={"seed": 7}).predict(
        pd.DataFrame(users().to_dict(as_series=False))
    )
    assert seeded["action"].tolist() == other["action"].to_list()


def test_the_recipe_runs_with_nothing_set_but_what_it_says(plan: Plan, tmp_path: Path) -> None:
    page = "docs/recipes/mlflow.md"
    plan.save(tmp_path / "plan", {"report.html": b""})
    (script,) = (block.content for block in blocks(page) if block.kind == "python")
    said = dict(re.findall(r"`(MLFLOW_\w+)=(\S+)`", PAGES[page].read_text(encoding="utf-8")))
    around = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    around |= said | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert plan.certificate.sentence() in done.stdout


def test_a_model_holds_no_pickle_and_is_checked_when_it_is_opened(tracking: Path, plan: Plan) -> None:
    save_model(plan, tracking / "model")
    assert Plan.load(tracking / "model" / "plan").certificate == plan.certificate
    for path in (tracking / "model").rglob("*"):
        assert path.suffix not in (".pkl", ".pickle", ".cloudpickle"), path
    with pytest.raises(UsageError, match="choose another folder"):
        save_model(plan, tracking / "model")
    text = (tracking / "model" / "MLmodel").read_text()
    (tracking / "model" / "MLmodel").write_text(text.replace("redenvelope:", "other:"))
    with pytest.raises(UsageError, match="is not a plan"):
        load_model(str(tracking / "model"))

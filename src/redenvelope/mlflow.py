"""A model flavour for MLflow: plans in its registry, with the certificate as metrics and the report as an artefact.

`log_model` logs a plan to a run, `load_model` returns the plan, and `mlflow.pyfunc.load_model` returns an object that
decides. A model contains the plan's own folder (JSON, safetensors and Parquet): loading it runs no code.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow import pyfunc
from mlflow.models import Model
from mlflow.models.model import MLMODEL_FILE_NAME, ModelInfo

from redenvelope import __version__
from redenvelope.errors import UsageError
from redenvelope.log.formats.dataframes import to_polars
from redenvelope.plan.plan import Plan
from redenvelope.report.page import render_report, save_with_report

if TYPE_CHECKING:
    import polars as pl

FLAVOUR = "redenvelope"
_DATA = "plan"


def log_model(plan: Plan, name: str = "plan", registered_model_name: str | None = None) -> ModelInfo:
    """Log a plan to the active run, or to a new one; with `registered_model_name` also to the registry.

    Metrics are those of the certificate: `certified` is 1 or 0, and budgets, costs and rewards are means per user.
    """
    import sys

    certificate = plan.certificate
    info: ModelInfo = Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        plan=plan,
        registered_model_name=registered_model_name,
        metadata={"certificate": str(certificate.status), "certificate_sentence": certificate.sentence()},
    )
    mlflow.log_metrics(_metrics(plan), run_id=info.run_id, model_id=info.model_id)
    mlflow.log_dict(certificate.as_dict(), "certificate.json", run_id=info.run_id)
    mlflow.log_text(render_report(plan), "report.html", run_id=info.run_id)
    return info


def save_model(plan: Plan, path: str | Path, mlflow_model: Model | None = None, **said: Any) -> None:
    """Write a plan as an MLflow model to a new folder."""
    folder, model = Path(path), mlflow_model or Model(**said)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder}: exists and is not empty; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    save_with_report(plan, folder / _DATA)
    requirement = f"redenvelope=={__version__}"
    (folder / "requirements.txt").write_text(f"{requirement}\n", encoding="utf-8")
    model.add_flavor(FLAVOUR, data=_DATA, version=__version__)
    pyfunc.add_to_model(model, loader_module=__name__, data=_DATA, model_config={"seed": 0})
    model.save(str(folder / MLMODEL_FILE_NAME))


def load_model(model_uri: str) -> Plan:
    """The plan of a model, such as `models:/envelopes/3` or `runs:/RUN_ID/plan`."""
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri))
    if FLAVOUR not in Model.load(str(folder)).flavors:
        raise UsageError(f"{model_uri}: is not a plan; log one with redenvelope.mlflow.log_model")
    return Plan.load(folder / _DATA)


class Decisions:
    """The pyfunc model: decides for tables of users, each row at its step."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self._seed = plan, seed

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """The decisions for a table (`user`, `step` and the features), as a pandas frame if the input is one.

        A decision depends only on the user's row, the user, the step and the seed, so a repeated call returns the same.
        """
        found, findings = self.plan.allocate(to_polars(model_input, "the table of users"), seed=self._seed)
        for finding in findings:
            logging.getLogger(__name__).warning("%s", finding)
        return _like(model_input, found)


def _like(given: Any, found: pl.DataFrame) -> Any:
    if type(given).__module__.partition(".")[0] != "pandas":
        return found
    return type(given)(found.to_dict(as_series=False), index=given.index)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Decisions:
    """The loader that `mlflow.pyfunc.load_model` calls; `model_config={"seed": 7}` changes the seed of the draws."""
    return Decisions(Plan.load(path), int((model_config or {}).get("seed", 0)))


def _metrics(plan: Plan) -> dict[str, float]:
    """The figures of the certificate as metrics, without those that are unknown or infinite."""
    own = plan.certificate
    found = {"certified": float(own.is_certified), "confidence": own.confidence, "users": own.users}
    found |= {"reward": own.reward.estimate, "reward_lower": own.reward.lower, "reward_upper": own.reward.upper}
    for place, budget in enumerate(own.budgets):
        after = "" if place == 0 else f"_{budget.name}"
        found |= {f"budget{after}": budget.budget, f"price{after}": budget.dual}
        found |= {f"cost{after}": budget.cost.estimate, f"cost_upper{after}": budget.cost.upper}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}

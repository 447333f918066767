"""Reward and cost accuracy of the learned models, on users they did not learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from experiments.charts import accuracy_chart
from experiments.result import Figure, Result
from experiments.studies import EnvelopeStudy, Studies, TwoStepStudy

__all__ = ["run_accuracy"]


def run_accuracy(studies: Studies) -> Result:
    """Predicted and observed means of every cell of the first log of each campaign, beside the truth where known."""
    rows = [*_rows(studies.two_step[0]), *_rows(studies.envelopes[0])]
    table = pl.DataFrame(rows, infer_schema_length=None)
    errors = _relative_errors(table)
    said = "; ".join(f"{campaign} {target} {error:.1%}" for (campaign, target), error in errors.items())
    figures = tuple(
        Figure(
            f"accuracy_{campaign.replace('-', '_')}",
            f"Prediction accuracy on held-out users, {campaign}",
            "Every point is one cell (state and action, or step and action): what the model predicts against what was "
            "observed. On the line they agree; the vertical bar is the 95 % interval of the observed mean.",
            accuracy_chart(table.filter(campaign=campaign)),
        )
        for campaign in ("two-step", "envelopes")
    )
    return Result(
        name="accuracy",
        title="Reward and cost accuracy of the model on held-out users",
        key=f"mean gap to the observed mean: {said}",
        sentences=(
            "The neural model (wide and deep, as in the paper) of the first log of each campaign, on the users that it "
            "did not learn from. Mean absolute gap between predicted and observed, weighted by rows, as a share of the "
            f"mean: {said}.",
            "Most of the gap on the two-step problem is the noise of the observed means: the column `truth` holds the "
            "exact mean of each cell. The paper shows its accuracy as figures without numbers.",
        ),
        table=table,
        figures=figures,
    )


def _rows(study: TwoStepStudy | EnvelopeStudy) -> list[dict[str, Any]]:
    """A row a target and cell: (state, action) on the two-step problem, (step, action) on envelopes."""
    log, encoder = study.material.validation, study.material.encoder
    predictions = study.model.predict(encoder.encode(log))
    finite = isinstance(study, TwoStepStudy)
    group = log.features.codes[:, 0] if finite else log.step
    names = log.features.labels[0] if finite else [f"step {step}" for step in range(study.campaign.steps)]
    rows = []
    for target, predicted, observed in (
        ("reward", predictions[0], log.reward),
        ("cost", predictions[1], log.cost),
    ):
        for place, name in enumerate(names):
            for action, label in enumerate(log.catalogue.labels):
                chosen = np.flatnonzero((group == place) & (log.action == action))
                if len(chosen) < 2:
                    continue
                seen = observed[chosen]
                rows.append(
                    {
                        "campaign": "two-step" if finite else "envelopes",
                        "target": target,
                        "cell": name,
                        "action": label,
                        "rows": len(chosen),
                        "truth": _truth(study, target, name, label) if finite else None,
                        "predicted": float(predicted[chosen, action].mean()),
                        "observed": float(seen.mean()),
                        "observed_error": float(seen.std(ddof=1) / np.sqrt(len(seen))),
                    }
                )
    return rows


def _truth(study: TwoStepStudy | EnvelopeStudy, target: str, state: str, action: str) -> float:
    assert isinstance(study, TwoStepStudy)
    problem = study.campaign.problem
    table = problem.rewards if target == "reward" else problem.costs[0]
    return float(table[int(state[1:]), int(action[1:])])


def _relative_errors(table: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Mean absolute gap of the cells, by campaign and target, as a share of the observed mean."""
    rows, gap = pl.col("rows"), (pl.col("predicted") - pl.col("observed")).abs()
    found = table.group_by("campaign", "target", maintain_order=True).agg(
        ((gap * rows).sum() / (pl.col("observed") * rows).sum()).alias("error")
    )
    return {(row["campaign"], row["target"]): row["error"] for row in found.iter_rows(named=True)}

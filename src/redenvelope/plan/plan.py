"""A plan: the policy, its price, the frontier around it, and the certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from redenvelope.chance import draw, fraction, user_keys
from redenvelope.errors import ModelError, UsageError
from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Finding
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.policy import DeployedPolicy

__all__ = ["Plan"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What `fit` hands over, and what a plan folder holds."""

    policy: DeployedPolicy
    catalogue: ActionCatalogue
    certificate: Certificate
    frontier: pl.DataFrame
    """dual, cost, reward and their bounds, off-policy, and the model's own cost and reward, by rising dual."""
    record: dict[str, Any]
    """How the plan came about: settings, folds, model, fidelity, search, audit. Plain data."""

    @property
    def dual(self) -> float:
        """The price of one unit of cost: what one more unit of budget buys."""
        return self.certificate.dual

    def allocate(self, users: pl.DataFrame, seed: int = 0) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
        """Decide for a table of users at their step (`user`, `step` and the features).

        A user's decision depends on the user, the step and the seed alone, not on who else is in the table.
        """
        for name in ("user", "step"):
            if name not in users.columns:
                raise UsageError(f"the table of users has no column {name!r}; rename yours, or add it")
        if users["user"].null_count():
            row = int(users["user"].is_null().arg_true()[0]) + 1
            raise ModelError(f"row {row}: no user; a decision needs somebody to be for")
        twice = users.select(pl.struct("user", "step").is_duplicated()).to_series()
        if twice.any():
            row = int(twice.arg_true()[0]) + 1
            raise ModelError(
                f"row {row}: {int(twice.sum())} row(s) share a user and step with another row; keep one row for each, "
                "or the user would be decided for twice"
            )
        encoder = self.policy.encoder
        features = [number.name for number in encoder.numbers] + [category.name for category in encoder.categories]
        if features and not set(features) & set(users.columns):
            raise ModelError(
                f"the table has none of the {len(features)} features the plan was made with ({features[0]}, …); "
                "join them to the users"
            )
        states, findings = self.policy.encoder.encode_frame(users)
        step = users["step"].cast(pl.Int64).to_numpy()
        mixture = self.policy.mixture
        drawn = mixture.draw(users["user"], seed)
        shares = mixture.probabilities_for(drawn, states, self.policy.steps_left(step))
        action = draw(shares, fraction(user_keys(users["user"]), "action", seed, step))
        rewards, costs = self.policy.valuer.outcomes(states)
        rows = np.arange(len(action))
        labels = pl.Series("action", self.catalogue.labels).gather(action)
        decisions = pl.DataFrame(
            {
                "user": users["user"],
                "step": users["step"],
                "action": labels.cast(pl.Float64) if self.catalogue.numeric else labels,
                "propensity": shares[rows, action],
                "expected_reward": rewards[rows, action],
                "expected_cost": costs[rows, action],
            }
        )
        return _with_whole_labels(decisions), findings

    def recoded(self, log: Log) -> Log:
        """A log with its actions numbered as in this plan: mean costs may order them otherwise elsewhere."""
        if log.catalogue.labels == self.catalogue.labels:
            return log
        places = {label: place for place, label in enumerate(self.catalogue.labels)}
        lookup = np.array([places[label] for label in log.catalogue.labels], dtype=np.int32)
        return replace(log, action=lookup[log.action], catalogue=self.catalogue)

    def with_source(self, log: str, columns: ColumnMap, date: str) -> Plan:
        """The plan, remembering the log it was made from: its name, its columns' own names, and the day."""
        source = {"log": log, "date": date, "columns": dict(columns.names), "ignored": sorted(columns.ignored)}
        return replace(self, record=self.record | {"source": source})

    @property
    def columns(self) -> ColumnMap:
        """The names that the log's columns had, as far as they are known: other tables of theirs have them too."""
        source = self.record.get("source") or {}
        return ColumnMap(source.get("columns") or {}, frozenset(source.get("ignored") or ()))

    def save(self, folder: str | Path, extra: dict[str, bytes] | None = None) -> Path:
        """Write the plan to a folder, with `extra` files beside it (a report); see `redenvelope.plan.folder`."""
        from redenvelope.plan.folder import save_plan

        return save_plan(self, Path(folder), extra)

    @classmethod
    def load(cls, folder: str | Path) -> Plan:
        """Open a plan folder; nothing in it is ever run."""
        from redenvelope.plan.folder import load_plan

        return load_plan(Path(folder))


def _with_whole_labels(decisions: pl.DataFrame) -> pl.DataFrame:
    """Numeric labels as integers where they all are."""
    action = decisions["action"]
    if action.dtype == pl.Float64 and (action == action.floor()).all():
        return decisions.with_columns(action.cast(pl.Int64))
    return decisions

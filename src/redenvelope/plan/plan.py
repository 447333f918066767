"""A plan: the policy, its price, the frontier around it, and the certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Finding
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.plan.amounts import Money, Totals, totals
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.record import FitRecord, Source

if TYPE_CHECKING:  # a plan is a record: making, deciding and storing import what they need
    from redenvelope.plan.policy import DeployedPolicy

__all__ = ["Plan"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What `fit` hands over, and what a plan folder holds."""

    policy: DeployedPolicy
    certificate: Certificate
    frontier: pl.DataFrame
    """dual, cost, reward and their bounds, off-policy, and the model's own cost and reward, by rising dual."""
    ladder: Ladder
    """What was found on the check users at every price: another budget is certified from it."""
    record: FitRecord
    """How the plan came about."""

    @property
    def catalogue(self) -> ActionCatalogue:
        """The actions by name, sorted by the mean cost that they were seen to have."""
        return self.policy.catalogue

    @property
    def dual(self) -> float:
        """The price of one unit of cost: what one more unit of budget buys."""
        return self.certificate.dual

    def allocate(
        self, users: pl.DataFrame, seed: int = 0, history: pl.DataFrame | None = None
    ) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
        """Decide for a table of users at their step (`user`, `step` and the features).

        A user's decision depends on the user, the step and the seed alone, not on who else is in the table. A plan that
        `needs_history` asks for the earlier steps of users past the first: `user`, `step`, `action`, `reward`, `cost`.
        """
        from redenvelope.plan.decisions import decide_frame

        return decide_frame(self, users, seed, history)

    @property
    def needs_history(self) -> bool:
        """Whether the plan decides by what happened to a user before."""
        return self.policy.encoder.history is not None

    def recoded(self, log: Log) -> Log:
        """A log with its actions numbered as in this plan: mean costs may order them otherwise elsewhere."""
        if log.catalogue.labels == self.catalogue.labels:
            return log
        places = {label: place for place, label in enumerate(self.catalogue.labels)}
        lookup = np.array([places[label] for label in log.catalogue.labels], dtype=np.int32)
        return replace(log, action=lookup[log.action], catalogue=self.catalogue)

    def with_source(self, log: str, columns: ColumnMap, date: str) -> Plan:
        """The plan, remembering the log it was made from: its name, its columns' own names, and the day."""
        return replace(self, record=replace(self.record, source=Source.of(log, date, columns)))

    def with_money(self, asked: Money) -> Plan:
        """The plan, remembering what sums are counted in and how many users it is for."""
        return replace(self, record=replace(self.record, money=asked))

    @property
    def totals(self) -> Totals | None:
        """What it costs and earns for all users that it is for; None where nobody said how many."""
        return totals(self.certificate, self.record.money)

    @property
    def columns(self) -> ColumnMap:
        """The names that the log's columns had, as far as they are known: other tables of theirs have them too."""
        return self.record.source.column_map() if self.record.source is not None else ColumnMap()

    def save(self, folder: str | Path, extra: dict[str, bytes] | None = None) -> Path:
        """Write the plan to a folder, with `extra` files beside it (a report); see `redenvelope.plan.folder`."""
        from redenvelope.plan.folder import save_plan

        return save_plan(self, Path(folder), extra)

    @classmethod
    def load(cls, folder: str | Path) -> Plan:
        """Open a plan folder; nothing in it is ever run."""
        from redenvelope.plan.folder import load_plan

        return load_plan(Path(folder))

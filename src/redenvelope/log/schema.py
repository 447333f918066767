"""What a log is made of: its columns and their meaning, its actions, its size, and what is wrong with it.

`schema_sums` counts a part of the log's users, `merge_schemas` adds parts up, and `finish` (in `finish.py`) says what
the sums mean. Nothing that depends on the whole is decided on a part, so that any number of parts gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.engine.local import LocalEngine
from redenvelope.log.action_sums import ActionRows, ActionSums, action_sums, merge_actions
from redenvelope.log.copies import SharedRows, merge_shared
from redenvelope.log.feature_rows import FeatureRows
from redenvelope.log.findings import Finding, Severity
from redenvelope.log.log import ActionCatalogue
from redenvelope.log.moments import NumberSums, merge_numbers, number_sums
from redenvelope.log.outcome_sums import OutcomeSums, merge_outcomes, outcome_sums
from redenvelope.log.places import Found, merge_found
from redenvelope.log.rows import Rows
from redenvelope.log.words import LabelSums, TextTally, label_sums, merge_labels, merge_tallies

__all__ = ["ColumnSums", "FeatureColumn", "Schema", "SchemaSums", "merge_schemas", "schema_sums"]


@dataclass(frozen=True)
class FeatureColumn:
    """One feature of a log: what it is taken for, and its sums."""

    name: str
    kind: str
    """What the table holds: "text", "integer", "number", "boolean", "missing", "date", "time" or "duration"."""
    role: Literal["number", "category", "left out"]
    why: str | None
    """The rule for which it is left out."""
    static: bool
    """Whether it never changes within a user."""
    number: NumberSums | None = None
    """For numbers."""
    labels: tuple[str, ...] = ()
    """For categories: sorted."""
    label_rows: tuple[int, ...] = ()
    """[labels]"""
    label_users: tuple[int, ...] = ()
    """Users who ever had the label, [labels]."""


@dataclass(frozen=True)
class Schema:
    """Everything a part of a log is read against."""

    users: int
    rows: int
    """After copies are dropped."""
    first_step: int
    last_step: int
    whole_ids: bool
    """Whether ids of text are read as integers, because all of them are."""
    actions: tuple[ActionRows, ...]
    """By mean cost, ties by label."""
    numeric_actions: bool
    """Whether the labels are numbers in the user's own tables."""
    features: tuple[FeatureColumn, ...]
    """In the table's order, those that are left out as well."""
    findings: tuple[Finding, ...]
    """Errors first."""

    @property
    def refused(self) -> bool:
        """Whether the log cannot be used; then there may be no actions or features here."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def catalogue(self) -> ActionCatalogue:
        """The actions as logs hold them."""
        return ActionCatalogue(tuple(action.label for action in self.actions), self.numeric_actions)

    @property
    def numbers(self) -> tuple[FeatureColumn, ...]:
        """The features used as numbers."""
        return tuple(feature for feature in self.features if feature.role == "number")

    @property
    def categories(self) -> tuple[FeatureColumn, ...]:
        """The features used as categories."""
        return tuple(feature for feature in self.features if feature.role == "category")


@dataclass(frozen=True, eq=False)
class ColumnSums:
    """One feature in some rows, under every meaning it may still have."""

    kind: str
    rows: int
    tally: TextTally | None
    """For text."""
    numbers: NumberSums | None
    """Unless some row is no number."""
    labels: LabelSums | None
    """For text."""
    different: NDArray[np.generic] | None
    """Integers, if all of them are different."""


@dataclass(frozen=True, eq=False)
class SchemaSums:
    """What some of a log's users add up to."""

    users: int
    rows: int
    first_step: int
    last_step: int
    actions: ActionSums | None
    outcomes: Mapping[str, OutcomeSums]
    """Lacks the roles that the table lacks."""
    features: Mapping[str, ColumnSums]
    shared: tuple[SharedRows, ...]
    found: Found


def schema_sums(rows: Rows) -> SchemaSums:
    """The sums of the rows of whole users; at least one row."""
    cost = rows.outcomes.get("cost")
    actions = None
    if rows.action is not None and rows.action_kind is not None:
        actions = action_sums(rows.action, rows.action_kind, cost)
    beside = np.stack([_finite(rows.outcomes.get(role), len(rows)) for role in ("reward", "cost")])
    people = np.cumsum(_begins(rows.users), dtype=np.int64)
    user = np.repeat(people, np.diff(rows.starts))

    def column_sums(feature: FeatureRows) -> ColumnSums:
        return _column_sums(feature, rows.within, user, beside)

    return SchemaSums(
        users=int(people[-1]),
        rows=len(rows),
        first_step=int(rows.step.min()),
        last_step=int(rows.step.max()),
        actions=actions,
        outcomes={role: outcome_sums(values) for role, values in rows.outcomes.items()},
        features=dict(zip(rows.features, LocalEngine().map(column_sums, rows.features.values()), strict=True)),
        shared=rows.shared,
        found=rows.found,
    )


def merge_schemas(parts: Sequence[SchemaSums]) -> SchemaSums:
    """The sums of all parts, added in their order; the parts have the same columns, and no user in common."""
    return SchemaSums(
        users=sum(part.users for part in parts),
        rows=sum(part.rows for part in parts),
        first_step=min(part.first_step for part in parts),
        last_step=max(part.last_step for part in parts),
        actions=merge_actions([part.actions for part in parts if part.actions is not None]),
        outcomes={role: merge_outcomes(part.outcomes[role] for part in parts) for role in parts[0].outcomes},
        features={name: _merge_columns([part.features[name] for part in parts]) for name in parts[0].features},
        shared=merge_shared(part.shared for part in parts),
        found=merge_found(part.found for part in parts),
    )


def _begins(users: pl.Series) -> NDArray[np.bool_]:
    """Which entries of ids [users] are another user's than the one before."""
    return (users != users.shift(1)).fill_null(True).to_numpy()


def _finite(values: NDArray[np.float64] | None, rows: int) -> NDArray[np.float64]:
    """Values to hold features against, [rows]; where there are none, or no numbers, zeros: such a log is refused."""
    if values is None:
        return np.zeros(rows)
    return np.where(np.isfinite(values), values, 0.0)


def _column_sums(
    feature: FeatureRows, within: NDArray[np.bool_], user: NDArray[np.int64], beside: NDArray[np.float64]
) -> ColumnSums:
    numbers = None if feature.numbers is None else number_sums(feature.numbers, within, beside)
    labels = feature.many
    if feature.words is not None:
        labels = label_sums(feature.words, user, within)
    return ColumnSums(feature.kind, len(within), feature.tally, numbers, labels, feature.different)


def _merge_columns(parts: Sequence[ColumnSums]) -> ColumnSums:
    numbers = [part.numbers for part in parts if part.numbers is not None]
    labels = [part.labels for part in parts if part.labels is not None]
    tallies = [part.tally for part in parts if part.tally is not None]
    return ColumnSums(
        kind=parts[0].kind,
        rows=sum(part.rows for part in parts),
        tally=merge_tallies(tallies) if tallies else None,
        numbers=merge_numbers(numbers) if len(numbers) == len(parts) else None,
        labels=merge_labels(labels) if labels else None,
        different=_all_different([part.different for part in parts]),
    )


def _all_different(parts: Sequence[NDArray[np.generic] | None]) -> NDArray[np.generic] | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    together = np.concatenate(known)
    return together if len(parts) == 1 or len(np.unique(together)) == len(together) else None

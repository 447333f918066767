"""The schema of a log (columns and their meaning, actions, size, findings), and the sums it is inferred from.

`schema_sums` counts one part of the log's users; sums of parts merge; `finish` (in `infer.py`) infers the schema from
them. Nothing that depends on all rows is decided within a part, so any number of parts gives the same schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.engine.engine import LocalEngine
from redenvelope.log.findings import Finding, Found, Severity, merge_found
from redenvelope.log.log import ActionCatalogue
from redenvelope.log.schema.coerce import FeatureRows, number_labels
from redenvelope.log.schema.rows import Rows, SharedRows, merge_shared
from redenvelope.log.schema.statistics import NumberSums, OutcomeSums, exact_mean, exact_sums, number_sums, outcome_sums
from redenvelope.log.schema.text import MOST_LABELS, LabelSums, TextTally, Words, label_sums
from redenvelope.merging import MAXIMUM, MINIMUM, FieldwiseSums, merged_known


@dataclass(frozen=True)
class FeatureColumn:
    """One feature of a log: its role and its statistics."""

    name: str
    kind: str
    """The kind in the table: "text", "integer", "number", "boolean", "missing", "date", "time" or "duration"."""
    role: Literal["number", "category", "left out"]
    why: str | None
    """The rule by which it is left out."""
    static: bool
    """Whether it never changes within a user."""
    number: NumberSums | None = None
    """If it is a number."""
    labels: tuple[str, ...] = ()
    """If it is a category: sorted."""
    label_rows: tuple[int, ...] = ()
    """[labels]"""
    label_users: tuple[int, ...] = ()
    """Users who ever had the label, [labels]."""


@dataclass(frozen=True)
class Schema:
    """Everything that is needed to read a part of a log consistently with the other parts."""

    users: int
    rows: int
    """Without duplicates."""
    first_step: int
    last_step: int
    whole_ids: bool
    """Whether text ids are read as integers, because all of them are integers."""
    actions: tuple[ActionRows, ...]
    """Sorted by mean cost, ties by label."""
    numeric_actions: bool
    """Whether the labels are numbers in the user's own tables."""
    features: tuple[FeatureColumn, ...]
    """In the table's order, including those left out."""
    findings: tuple[Finding, ...]
    """Errors first."""

    @property
    def refused(self) -> bool:
        """Whether the log cannot be used; then actions or features may be missing here."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def catalogue(self) -> ActionCatalogue:
        """The catalogue of actions, as in a log."""
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
    """Statistics of one feature over some rows, for every meaning that it may still have."""

    kind: str
    rows: int
    tally: TextTally | None
    """If it is text."""
    numbers: NumberSums | None
    """None if some row is not a number."""
    labels: LabelSums | None
    """If it is text."""
    different: tuple[NDArray[np.generic], ...] | None
    """The integers of each part, if within each part all are distinct."""

    @property
    def distinct(self) -> int:
        """Number of rows, if all rows of all parts hold distinct integers; else 0."""
        values = np.concatenate(self.different or (np.zeros(0),))
        return len(values) if len(self.different or ()) == 1 or len(np.unique(values)) == len(values) else 0

    def merge(self, other: ColumnSums) -> ColumnSums:
        """See Mergeable."""
        both = self.numbers is not None and other.numbers is not None
        return ColumnSums(
            self.kind,
            self.rows + other.rows,
            merged_known(self.tally, other.tally),
            merged_known(self.numbers, other.numbers) if both else None,
            merged_known(self.labels, other.labels),
            None if self.different is None or other.different is None else self.different + other.different,
        )


@dataclass(frozen=True, eq=False)
class SchemaSums(FieldwiseSums):
    """The statistics of a log over some of its users."""

    users: int
    rows: int
    first_step: int = field(metadata=MINIMUM)
    last_step: int = field(metadata=MAXIMUM)
    actions: ActionSums | None = field(metadata={"merge": merged_known})
    outcomes: Mapping[str, OutcomeSums]
    """Without the roles that the table lacks."""
    features: Mapping[str, ColumnSums]
    shared: tuple[SharedRows, ...] = field(metadata={"merge": merge_shared})
    found: Found = field(metadata={"merge": merge_found})


def schema_sums(rows: Rows) -> SchemaSums:
    """The statistics of the rows (at least one) of complete users."""
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


def _begins(users: pl.Series) -> NDArray[np.bool_]:
    """Which entries of ids [users] differ from the one before."""
    return (users != users.shift(1)).fill_null(True).to_numpy()


def _finite(values: NDArray[np.float64] | None, rows: int) -> NDArray[np.float64]:
    """Values to correlate features with, [rows]; zeros if missing or not numbers, for which the log is refused."""
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
    different = None if feature.different is None else (feature.different,)
    return ColumnSums(feature.kind, len(within), feature.tally, numbers, labels, different)


# Rows and costs of each action, by the label as written.


@dataclass(frozen=True)
class ActionSums:
    """Rows and costs of the actions over some rows, by label."""

    kind: str
    """The kind in the table."""
    labels: tuple[str, ...]
    """As written, sorted."""
    rows: tuple[int, ...]
    """[labels]"""
    costs: tuple[int, ...]
    """Exact sums of the cost, [labels], see `exact_sums`; zeros if there are far too many labels."""

    def merge(self, other: ActionSums) -> ActionSums:
        """See Mergeable."""
        rows, costs = _sums_by_label((self, other), {})
        labels = tuple(sorted(rows))
        return ActionSums(
            self.kind, labels, tuple(rows[label] for label in labels), tuple(costs[label] for label in labels)
        )


@dataclass(frozen=True)
class ActionRows:
    """One action under its final label."""

    label: str
    rows: int
    mean_cost: float
    order: tuple[float, str]
    """The order among equal costs: by number, then by the label as text."""


def action_sums(action: Words, kind: str, cost: NDArray[np.float64] | None) -> ActionSums:
    """The sums of actions and their costs, [rows]."""
    known = action.codes >= 0
    codes = action.codes if known.all() else action.codes[known]
    rows = np.bincount(codes, minlength=len(action.values))
    costs: tuple[int, ...] = (0,) * len(rows)
    if cost is not None and len(rows) <= MOST_LABELS:
        usable = np.where(np.isfinite(cost), cost, 0.0)
        costs = exact_sums(usable if known.all() else usable[known], codes, len(rows))
    seen = np.flatnonzero(rows)
    labels = action.values.to_list()
    order = sorted(seen.tolist(), key=lambda code: labels[code])
    return ActionSums(
        kind,
        tuple(labels[code] for code in order),
        tuple(int(rows[code]) for code in order),
        tuple(costs[code] for code in order),
    )


def label_forms(sums: ActionSums) -> tuple[dict[str, str], bool]:
    """Label as written -> final label, and whether labels are numbers (then 5 and 5.0 are the same)."""
    if sums.kind in ("integer", "number", "boolean"):
        return {label: label for label in sums.labels}, True
    written = pl.Series(sums.labels, dtype=pl.String)
    numbers = written.cast(pl.Float64, strict=False)
    if sums.kind != "text" or numbers.null_count() or not numbers.is_finite().all():
        return {label: label for label in sums.labels}, False
    return dict(zip(sums.labels, number_labels(numbers), strict=True)), True


def ranked_actions(sums: ActionSums, forms: dict[str, str], numeric: bool) -> tuple[ActionRows, ...]:
    """The actions sorted by mean cost, ties by label."""
    rows, costs = _sums_by_label((sums,), forms)
    actions = [
        ActionRows(label, count, exact_mean(costs[label], count), (float(label) if numeric else 0.0, label))
        for label, count in rows.items()
    ]
    return tuple(sorted(actions, key=lambda action: (action.mean_cost, action.order)))


def _sums_by_label(parts: Iterable[ActionSums], forms: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Rows and costs of each label, under its final form if there is one."""
    rows: dict[str, int] = {}
    costs: dict[str, int] = {}
    for part in parts:
        for written, count, cost in zip(part.labels, part.rows, part.costs, strict=True):
            label = forms.get(written, written)
            rows[label] = rows.get(label, 0) + count
            costs[label] = costs.get(label, 0) + cost
    return rows, costs

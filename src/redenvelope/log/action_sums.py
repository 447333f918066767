"""How often each action was logged and what it cost, by its label as written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.coerce import number_labels
from redenvelope.log.exact import exact_mean, exact_sums
from redenvelope.log.words import MOST_LABELS, Words

__all__ = ["ActionRows", "ActionSums", "action_sums", "label_forms", "merge_actions", "ranked_actions"]


@dataclass(frozen=True)
class ActionSums:
    """The actions of some rows; sums of parts merge into those of the whole."""

    kind: str
    """What the table holds."""
    labels: tuple[str, ...]
    """As written, sorted."""
    rows: tuple[int, ...]
    """[labels]"""
    costs: tuple[int, ...]
    """Exact sums of what each cost, [labels], see `exact.py`; zeros where there are far too many labels."""


@dataclass(frozen=True)
class ActionRows:
    """One action under the one label it goes by."""

    label: str
    rows: int
    mean_cost: float
    order: tuple[float, str]
    """What goes first among equals: the smaller number, then the label as text."""


def action_sums(action: Words, kind: str, cost: NDArray[np.float64] | None) -> ActionSums:
    """The sums of actions and what they cost, [rows]."""
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


def merge_actions(parts: Sequence[ActionSums]) -> ActionSums | None:
    """The actions of all parts; None where there is no part."""
    if not parts:
        return None
    rows: dict[str, int] = {}
    costs: dict[str, int] = {}
    for part in parts:
        for label, count, cost in zip(part.labels, part.rows, part.costs, strict=True):
            rows[label] = rows.get(label, 0) + count
            costs[label] = costs.get(label, 0) + cost
    labels = tuple(sorted(rows))
    return ActionSums(
        parts[0].kind, labels, tuple(rows[label] for label in labels), tuple(costs[label] for label in labels)
    )


def label_forms(sums: ActionSums) -> tuple[dict[str, str], bool]:
    """Label as written -> the one it goes by, and whether labels are numbers: 5 and 5.0 are then the same."""
    if sums.kind in ("integer", "number", "boolean"):
        return {label: label for label in sums.labels}, True
    written = pl.Series(sums.labels, dtype=pl.String)
    numbers = written.cast(pl.Float64, strict=False)
    if sums.kind != "text" or numbers.null_count() or not numbers.is_finite().all():
        return {label: label for label in sums.labels}, False
    return dict(zip(sums.labels, number_labels(numbers), strict=True)), True


def ranked_actions(sums: ActionSums, forms: dict[str, str], numeric: bool) -> tuple[ActionRows, ...]:
    """The actions by mean cost, ties by the label itself."""
    rows: dict[str, int] = {}
    costs: dict[str, int] = {}
    for label, count, cost in zip(sums.labels, sums.rows, sums.costs, strict=True):
        rows[forms[label]] = rows.get(forms[label], 0) + count
        costs[forms[label]] = costs.get(forms[label], 0) + cost
    actions = [
        ActionRows(label, count, exact_mean(costs[label], count), (float(label) if numeric else 0.0, label))
        for label, count in rows.items()
    ]
    return tuple(sorted(actions, key=lambda action: (action.mean_cost, action.order)))

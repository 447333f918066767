"""Rows that share a user and step: copies of one another, or a conflict.

Which it is depends on what they differ in, and a column that is left out of the log cannot make them differ. Whether
it is left out is known only when all rows have been seen; until then rows are counted by what they differ in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.feature_rows import FeatureRows
from redenvelope.log.numbers import to_numbers
from redenvelope.log.order import Order
from redenvelope.log.places import Places, merge_places
from redenvelope.log.tables import Table
from redenvelope.log.words import Words

__all__ = ["SharedRows", "copies_and_conflicts", "merge_shared", "shared_rows"]

Difference = tuple[str, str]
"""A column, and whether it differs as "text" or as "number"."""

_ALWAYS: Difference = ("", "")  # a difference in something that no log leaves out


@dataclass(frozen=True)
class SharedRows:
    """Groups of rows that share a user and step, all with the same differences from the first of their group."""

    differences: frozenset[Difference]
    every: Places
    """All rows of the groups."""
    later: Places
    """All but the first of each group."""


def shared_rows(
    table: Table,
    order: Order,
    again: NDArray[np.bool_],
    action: Words | None,
    outcomes: Mapping[str, NDArray[np.float64]],
    features: Mapping[str, FeatureRows],
) -> tuple[SharedRows, ...]:
    """The groups of a table's rows, by their differences; again [rows] says that a row repeats its predecessor's place.

    Action, outcomes and features stand in order.
    """
    later = np.flatnonzero(again)
    starts = np.flatnonzero(~again)
    lead = starts[np.searchsorted(starts, later, side="right") - 1]
    differing: dict[Difference, NDArray[np.bool_]] = {_ALWAYS: np.zeros(len(later), dtype=bool)}
    for values in outcomes.values():
        differing[_ALWAYS] |= _differ(values, later, lead)
    if action is not None:
        differing["action", "text"] = _differ(action.codes, later, lead)
        numbers = to_numbers(action.values).fill_null(float("nan")).to_numpy()
        differing["action", "number"] = _differ(np.append(numbers, np.nan)[action.codes], later, lead)
    for name, feature in features.items():
        # Dates, text and integers may be left out, and then no difference.
        if feature.kind not in ("text", "integer", "date") and feature.plain is not None:
            differing[_ALWAYS] |= _differ(feature.plain, later, lead)
        elif feature.numbers is not None:
            differing[name, "number"] = _differ(feature.numbers, later, lead)
        if feature.words is not None:
            differing[name, "text"] = _differ(feature.words.codes, later, lead)
    groups, group_of = np.unique(lead, return_inverse=True)
    by_group = np.zeros((len(groups), len(differing)), dtype=bool)
    np.logical_or.at(by_group, group_of, np.stack(list(differing.values()), axis=1))
    by_group[by_group[:, 0], 1:] = False  # a difference that always counts makes the others not matter
    patterns, pattern_of = np.unique(by_group, axis=0, return_inverse=True)
    names = list(differing)
    found = []
    for number, pattern in enumerate(patterns):
        mine = pattern_of.ravel() == number
        repeats = later[mine[group_of]]
        every = np.sort(np.concatenate([groups[mine], repeats]))
        differences = frozenset(names[place] for place in np.flatnonzero(pattern))
        found.append(SharedRows(differences, order.places(table, every), order.places(table, repeats)))
    return tuple(found)


def merge_shared(parts: Iterable[Iterable[SharedRows]]) -> tuple[SharedRows, ...]:
    """The groups of all parts."""
    together: dict[frozenset[Difference], list[SharedRows]] = {}
    for part in parts:
        for shared in part:
            together.setdefault(shared.differences, []).append(shared)
    return tuple(
        SharedRows(
            differences,
            merge_places(shared.every for shared in known),
            merge_places(shared.later for shared in known),
        )
        for differences, known in together.items()
    )


def copies_and_conflicts(
    shared: Iterable[SharedRows], used: frozenset[Difference]
) -> tuple[Places | None, Places | None]:
    """The rows that repeat another one, and those that contradict one, once it is known what is used, and as what."""
    copies, conflicts = [], []
    for groups in shared:
        if groups.differences & (used | {_ALWAYS}):
            conflicts.append(groups.every)
        else:
            copies.append(groups.later)
    return merge_places(copies) if copies else None, merge_places(conflicts) if conflicts else None


def _differ(values: NDArray[np.generic], rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where values differ between rows and others; missing is no different from missing."""
    here, there = values[rows], values[others]
    different = here != there
    if here.dtype.kind == "f":
        different &= ~(np.isnan(here) & np.isnan(there))
    return np.asarray(different)

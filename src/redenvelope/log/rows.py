"""The rows of whole users: sorted, without copies, each column in the types its own rows tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.engine.local import LocalEngine
from redenvelope.log.coerce import coerce_action, coerce_outcome
from redenvelope.log.columns import ROLES
from redenvelope.log.copies import SharedRows, shared_rows
from redenvelope.log.eligible import LISTED, lists_logged
from redenvelope.log.feature_rows import FeatureRows, coerce_feature
from redenvelope.log.guess import guessed_episodes
from redenvelope.log.order import Order, in_order
from redenvelope.log.places import Found, Places
from redenvelope.log.tables import EPISODE, FILE, ROW, Table, kind_of
from redenvelope.log.words import Words, words_of

__all__ = ["EPISODE_GUESS", "OUTCOMES", "Rows", "typed_rows"]

OUTCOMES = ("propensity", "reward", "cost")
"""The roles that are numbers."""
EPISODE_GUESS = "episode_guess"
"""Under this name it is noted how many rows of the same user and step a column tells apart; no rule is broken."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Some users' rows, by user and step. What a column of text means is for the schema to say."""

    users: pl.Series
    """The id of each user, [users]; once for each episode, where there are several."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    step: NDArray[np.int32]
    """[rows]"""
    within: NDArray[np.bool_]
    """Whether a row's predecessor is the same user's, [rows]."""
    action: Words | None
    action_kind: str | None
    """What the column of actions holds; None without one."""
    outcomes: Mapping[str, NDArray[np.float64]]
    """Role -> [rows], NaN where it is no number; lacks the roles that the table lacks."""
    numeric_names: tuple[str, ...]
    numeric: NDArray[np.float32]
    """The features that the table holds as numbers, [rows, features], one after the other in memory."""
    features: Mapping[str, FeatureRows]
    """All features, in the table's order; those that are numbers are columns of `numeric`."""
    shared: tuple[SharedRows, ...]
    """Rows that shared a user and step, of which the first was kept."""
    found: Found
    """Rows that break a rule, or may."""
    eligible: Words | None = None
    """What each row's user might have got; see `eligible.py`."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.step)


def typed_rows(table: Table) -> Rows:
    """The rows of a table whose ids and steps have their types (see `keys.py`) and whose users are whole."""
    found: dict[tuple[str, str], Places] = {}
    frame = table.frame
    order = in_order(table)
    action = coerce_action(table, found) if "action" in frame.columns else None
    outcomes = {role: coerce_outcome(table, role, found) for role in OUTCOMES if role in frame.columns}
    eligible = _listed(table, action, found)
    names = [name for name in frame.columns if name not in ROLES and name not in (ROW, FILE, LISTED, EPISODE)]
    schema = frame.schema
    numeric_names = tuple(name for name in names if kind_of(schema[name]) != "text")
    places = {name: place for place, name in enumerate(numeric_names)}
    numeric = np.empty((len(frame), len(numeric_names)), dtype=np.float32, order="F")

    def move(name: str) -> FeatureRows:
        place = numeric[:, places[name]] if name in places else None
        return _moved(coerce_feature(table, name), order.index, place)

    features = dict(zip(names, LocalEngine().map(move, names), strict=True))
    for feature in features.values():
        found |= feature.found
    starts = np.append(np.flatnonzero(~order.within), len(frame)).astype(np.int64)
    rows = Rows(
        users=order.users.gather(starts[:-1]),
        starts=starts,
        step=order.step,
        within=order.within,
        action=action if action is None or order.index is None else action.rows(order.index),
        action_kind=kind_of(schema["action"]) if "action" in frame.columns else None,
        outcomes={
            role: values if order.index is None else values[order.index]
            for role, values in outcomes.items()
            if values is not None
        },
        numeric_names=numeric_names,
        numeric=numeric,
        features=features,
        shared=(),
        found=found,
        eligible=eligible if eligible is None or order.index is None else eligible.rows(order.index),
    )
    return _without_copies(table, order, rows)


def _listed(table: Table, action: Words | None, found: dict[tuple[str, str], Places]) -> Words | None:
    """What rows list as eligible, and rows that logged something else."""
    if LISTED not in table.frame.columns:
        return None
    text = table.frame[LISTED]
    listed = words_of(text, text.drop_nulls().unique())
    if action is not None:
        table.note(found, "eligible_not_logged", "action", pl.Series(~lists_logged(listed, action)))
    return listed


def _moved(feature: FeatureRows, index: NDArray[np.int64] | None, place: NDArray[np.float32] | None) -> FeatureRows:
    """The feature in the order of the index, [rows], in the place given to it if it is a number."""
    if place is None or feature.plain is None:
        return feature if index is None else feature.rows(index)
    if index is None:
        place[:] = feature.plain
    else:
        np.take(feature.plain, index, out=place, mode="clip")  # "raise" would go through a copy
    return replace(feature, plain=place)


def _without_copies(table: Table, order: Order, rows: Rows) -> Rows:
    """The first row of each user and step, the others counted; steps that are skipped are noted."""
    advance = np.diff(rows.step.astype(np.int64))
    again = np.append(False, rows.within[1:] & (advance == 0))
    if not again.any():
        skips = np.flatnonzero(rows.within[1:] & (advance != 1)) + 1
        return rows if not len(skips) else replace(rows, found=_with_gaps(rows.found, order.places(table, skips)))
    shared = shared_rows(table, order, again, rows.action, rows.outcomes, rows.features)
    found = {(EPISODE_GUESS, name): Places(apart, ()) for name, apart in guessed_episodes(table.frame).items()}
    rows = replace(rows, found={**rows.found, **found})
    kept = np.flatnonzero(~again)
    step, within = rows.step[kept], rows.within[kept]
    skips = np.flatnonzero(within[1:] & (np.diff(step.astype(np.int64)) != 1)) + 1
    numeric = np.asfortranarray(rows.numeric[kept])
    features = {
        name: replace(feature, plain=numeric[:, rows.numeric_names.index(name)])
        if name in rows.numeric_names
        else feature.rows(kept)
        for name, feature in rows.features.items()
    }
    return replace(
        rows,
        starts=np.append(np.flatnonzero(~within), len(kept)).astype(np.int64),
        step=step,
        within=within,
        action=None if rows.action is None else rows.action.rows(kept),
        eligible=None if rows.eligible is None else rows.eligible.rows(kept),
        outcomes={role: values[kept] for role, values in rows.outcomes.items()},
        numeric=numeric,
        features=features,
        shared=shared,
        found=_with_gaps(rows.found, order.places(table, kept[skips])) if len(skips) else rows.found,
    )


def _with_gaps(found: Found, gaps: Places) -> Found:
    return {**found, ("step_gap", "step"): gaps}

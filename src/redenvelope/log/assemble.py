"""From rows and the schema of the whole log to a `Log`: the same actions, features and labels whatever the rows."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.coerce import number_labels
from redenvelope.log.eligible import mask_of_texts
from redenvelope.log.log import ActionCatalogue, FeatureTable, Log
from redenvelope.log.rows import Rows
from redenvelope.log.schema import Schema
from redenvelope.log.words import Words

__all__ = ["assemble"]


def assemble(rows: Rows, schema: Schema) -> Log:
    """The log of some users' rows, read against the schema of all; the schema is not refused."""
    assert rows.action is not None  # or the schema would be refused
    catalogue = schema.catalogue
    written = rows.action.values
    if catalogue.numeric and rows.action_kind == "text":
        written = number_labels(written.cast(pl.Float64))
    action = _coded(Words(written, rows.action.codes), catalogue.labels)
    return Log(
        users=rows.users,
        starts=rows.starts,
        step=rows.step,
        action=action,
        # Without propensities they are estimated afterwards.
        propensity=rows.outcomes.get("propensity", np.ones(len(rows))),
        reward=rows.outcomes["reward"],
        cost=rows.outcomes["cost"],
        features=_feature_table(rows, schema),
        catalogue=catalogue,
        findings=schema.findings,
        eligible=None if rows.eligible is None else _eligible(rows.eligible, action, catalogue),
    )


def _eligible(listed: Words, action: NDArray[np.int32], catalogue: ActionCatalogue) -> NDArray[np.bool_]:
    """What each row's user might have got, [rows, actions]: the list, everything without one, and what was logged."""
    mask = mask_of_texts(list(listed.values), catalogue)
    eligible = np.concatenate([mask, np.ones((1, len(catalogue)), dtype=bool)])[listed.codes]
    eligible[np.arange(len(action)), action] = True
    return np.asarray(eligible)


def _coded(words: Words, labels: tuple[str, ...]) -> NDArray[np.int32]:
    """The rows as places among the labels, [rows]; missing is −1."""
    place = {label: code for code, label in enumerate(labels)}
    lookup = np.array([place.get(value, -1) for value in words.values] + [-1], dtype=np.int32)
    return lookup[words.codes]


def _feature_table(rows: Rows, schema: Schema) -> FeatureTable:
    names = tuple(feature.name for feature in schema.numbers)
    codes = np.empty((len(rows), len(schema.categories)), dtype=np.int32, order="F")
    for place, feature in enumerate(schema.categories):
        words = rows.features[feature.name].words
        assert words is not None  # a category has few labels, so any of its parts has
        codes[:, place] = _coded(words, feature.labels)
    return FeatureTable(
        numeric_names=names,
        numeric=rows.numeric if names == rows.numeric_names else _side_by_side(rows, names),
        category_names=tuple(feature.name for feature in schema.categories),
        codes=codes,
        labels=tuple(feature.labels for feature in schema.categories),
        static=frozenset(feature.name for feature in schema.features if feature.static and feature.role != "left out"),
    )


def _side_by_side(rows: Rows, names: tuple[str, ...]) -> NDArray[np.float32]:
    numeric = np.empty((len(rows), len(names)), dtype=np.float32, order="F")
    for place, name in enumerate(names):
        numbers = rows.features[name].numbers
        assert numbers is not None  # a number in all rows is one in these
        numeric[:, place] = numbers
    return numeric

"""The rows of complete users: sorted, without duplicates, and typed as far as their own values determine.

`typed_rows` makes them from a table whose keys are typed; what a text column means is decided later, by the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.engine.engine import LocalEngine
from redenvelope.log.cleaning.guess_columns import guessed_episodes
from redenvelope.log.cleaning.number_formats import to_numbers
from redenvelope.log.columns import ROLES
from redenvelope.log.eligibility import LISTED, lists_logged
from redenvelope.log.findings import EXAMPLES, Found, Place, Places
from redenvelope.log.schema.coerce import FeatureRows, coerce_action, coerce_feature, coerce_outcome
from redenvelope.log.schema.text import Words, words_of
from redenvelope.log.tables import CLUSTER, EPISODE, FILE, ROW, Table, kind_of
from redenvelope.merging import SAME, FieldwiseSums, merged_known

OUTCOMES = ("propensity", "reward", "cost")
"""The numeric roles."""
EPISODE_GUESS = "episode_guess"
"""Key under which it is noted how many rows of the same user and step a column distinguishes; not a rule."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of some users, sorted by user and step. The schema decides what a text column means."""

    users: pl.Series
    """The id of each user, [users]; once for each episode, if there are several."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    step: NDArray[np.int32]
    """[rows]"""
    within: NDArray[np.bool_]
    """Whether a row continues its predecessor's user, [rows]."""
    action: Words | None
    action_kind: str | None
    """The kind of the action column; None without one."""
    outcomes: Mapping[str, NDArray[np.float64]]
    """Role -> [rows], NaN if not a number; without the roles that the table lacks."""
    numeric_names: tuple[str, ...]
    numeric: NDArray[np.float32]
    """The features that the table holds as numbers, [rows, features], column by column in memory."""
    features: Mapping[str, FeatureRows]
    """All features, in the table's order; those that are numbers are columns of `numeric`."""
    shared: tuple[SharedRows, ...]
    """Rows that shared a user and step, of which only the first was kept."""
    found: Found
    """Rows that violate a rule, or may do so."""
    eligible: Words | None = None
    """The actions that each row's user was eligible for; see `eligibility.py`."""
    clusters: NDArray[np.uint64] | None = None
    """The key of each user's cluster, [users]; None if users are independent."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.step)


def typed_rows(table: Table) -> Rows:
    """The rows of a table with complete users and typed ids and steps (see `keys.py`)."""
    found: dict[tuple[str, str], Places] = {}
    frame = table.frame
    order = in_order(table)
    action = coerce_action(table, found) if "action" in frame.columns else None
    outcomes = {role: coerce_outcome(table, role, found) for role in OUTCOMES if role in frame.columns}
    eligible = _listed(table, action, found)
    own = (ROW, FILE, LISTED, EPISODE, CLUSTER)
    names = [name for name in frame.columns if name not in ROLES and name not in own]
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
        clusters=_clusters(frame, order, starts[:-1]),
    )
    return _without_copies(table, order, rows)


def _clusters(frame: pl.DataFrame, order: Order, first: NDArray[np.int64]) -> NDArray[np.uint64] | None:
    """The cluster of each user, [users], given the users' first rows in sorted order."""
    if CLUSTER not in frame.columns:
        return None
    return np.asarray(frame[CLUSTER].to_numpy()[first if order.index is None else order.index[first]])


def _listed(table: Table, action: Words | None, found: dict[tuple[str, str], Places]) -> Words | None:
    """The lists of eligible actions; notes rows whose logged action is not listed."""
    if LISTED not in table.frame.columns:
        return None
    text = table.frame[LISTED]
    listed = words_of(text, text.drop_nulls().unique())
    if action is not None:
        table.note(found, "eligible_not_logged", "action", pl.Series(~lists_logged(listed, action)))
    return listed


def _moved(feature: FeatureRows, index: NDArray[np.int64] | None, place: NDArray[np.float32] | None) -> FeatureRows:
    """A feature with its rows in the order of the index, [rows]; a number is written to its given place."""
    if place is None or feature.plain is None:
        return feature if index is None else feature.rows(index)
    if index is None:
        place[:] = feature.plain
    else:
        np.take(feature.plain, index, out=place, mode="clip")  # "raise" would make a copy
    return replace(feature, plain=place)


def _without_copies(table: Table, order: Order, rows: Rows) -> Rows:
    """The rows without later rows of the same user and step, which are counted; skipped steps are noted."""
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


# Rows that share a user and step are duplicates or in conflict.
#
# Differences in a column that is left out of the log do not count. Which columns are left out is known only after all
# rows were seen; until then, such rows are counted by the columns in which they differ.


Difference = tuple[str, str]
"""A column, and whether it differs as "text" or as "number"."""

_ALWAYS: Difference = ("", "")  # a difference in a column that is never left out


@dataclass(frozen=True)
class SharedRows(FieldwiseSums):
    """Groups of rows that share a user and step, all with the same differences from the first row of their group."""

    differences: frozenset[Difference] = field(metadata=SAME)
    every: Places
    """All rows of the groups."""
    later: Places
    """All but the first row of each group."""


def shared_rows(
    table: Table,
    order: Order,
    again: NDArray[np.bool_],
    action: Words | None,
    outcomes: Mapping[str, NDArray[np.float64]],
    features: Mapping[str, FeatureRows],
) -> tuple[SharedRows, ...]:
    """The groups of a table's rows by their differences; again [rows] marks rows with their predecessor's user and
    step.

    Action, outcomes and features are in sorted order.
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
        # Dates, text and integers may be left out of the log, and would then not count.
        if feature.kind not in ("text", "integer", "date") and feature.plain is not None:
            differing[_ALWAYS] |= _differ(feature.plain, later, lead)
        elif feature.numbers is not None:
            differing[name, "number"] = _differ(feature.numbers, later, lead)
        if feature.words is not None:
            differing[name, "text"] = _differ(feature.words.codes, later, lead)
    groups, group_of = np.unique(lead, return_inverse=True)
    by_group = np.zeros((len(groups), len(differing)), dtype=bool)
    np.logical_or.at(by_group, group_of, np.stack(list(differing.values()), axis=1))
    by_group[by_group[:, 0], 1:] = False  # next to a difference that always counts, others do not matter
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


def merge_shared(one: Iterable[SharedRows], other: Iterable[SharedRows]) -> tuple[SharedRows, ...]:
    """The groups of two parts, merged by their differences."""
    together: dict[frozenset[Difference], SharedRows] = {}
    for shared in (*one, *other):
        known = together.get(shared.differences)
        together[shared.differences] = shared if known is None else known.merge(shared)
    return tuple(together.values())


def copies_and_conflicts(
    shared: Iterable[SharedRows], used: frozenset[Difference]
) -> tuple[Places | None, Places | None]:
    """The duplicates and the rows in conflict, once it is known which columns are used, and as what."""
    copies, conflicts = [], []
    for groups in shared:
        if groups.differences & (used | {_ALWAYS}):
            conflicts.append(groups.every)
        else:
            copies.append(groups.later)
    return merged_known(*copies), merged_known(*conflicts)


def _differ(values: NDArray[np.generic], rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether values differ between rows and others; two missing values do not differ."""
    here, there = values[rows], values[others]
    different = here != there
    if here.dtype.kind == "f":
        different &= ~(np.isnan(here) & np.isnan(there))
    return np.asarray(different)


# The order of a log, by user and step, and the rows that break it.


@dataclass(frozen=True, eq=False)
class Order:
    """The rows sorted by user and step; rows with the same user and step keep the order of their files."""

    index: NDArray[np.int64] | None
    """The table's row at each position, [rows]; None if the table is sorted already."""
    users: pl.Series
    """The id of each row's user, in order, [rows]."""
    step: NDArray[np.int32]
    """In order, [rows]."""
    within: NDArray[np.bool_]
    """Whether a row's predecessor is the same user's, in the same episode, [rows]."""

    def places(self, table: Table, rows: NDArray[np.int64]) -> Places:
        """Some of the rows (by their position in this order), the first of them as examples."""
        first = rows[:EXAMPLES]
        shown = table.frame.select(ROW, FILE)[first if self.index is None else self.index[first]]
        keys = zip(self.users[first].to_list(), self.step[first].tolist(), shown[FILE], shown[ROW], strict=True)
        named = [Place(key, file=key[2], row=key[3], value=str(key[1])) for key in keys]
        return Places(len(rows), tuple(named))


def note_disorder(table: Table, found: dict[tuple[str, str], Places]) -> None:
    """Note rows that come after one of a later user or step; ids and steps must be typed."""
    user, step = pl.col("user"), _place_in_user(table.frame)
    same_user = user == user.shift(1)
    backwards = (user < user.shift(1)) | (same_user & (step < step.shift(1)))
    table.note(found, "rows_unordered", "step", table.frame.select(backwards.fill_null(False)).to_series())


def in_order(table: Table) -> Order:
    """The order of a table with typed ids and steps; without these columns, every row is a user of its own."""
    frame = table.frame
    if not {"user", "step"} <= set(frame.columns):
        rows = len(frame)
        nobody = pl.Series("user", np.arange(rows))
        return Order(None, nobody, np.zeros(rows, np.int32), np.zeros(rows, bool))
    index = _index(frame["user"], frame.select(_place_in_user(frame)).to_series())
    users = frame["user"] if index is None else _gathered(frame["user"], index)
    steps = frame["step"].fill_null(0).to_numpy()
    within = (users == users.shift(1)).fill_null(False).to_numpy(writable=True)
    if EPISODE in frame.columns:
        episode = frame[EPISODE].to_numpy() if index is None else frame[EPISODE].to_numpy()[index]
        within[1:] &= episode[1:] == episode[:-1]
    if frame["step"].null_count():
        # A row without a step belongs to no trajectory (and the log is refused), so treat it as a user of its own.
        lost = frame["step"].is_null().to_numpy()
        lost = lost if index is None else lost[index]
        within[lost] = False
        within[1:][lost[:-1]] = False
    return Order(index, users, steps if index is None else steps[index], within)


def _place_in_user(frame: pl.DataFrame) -> pl.Expr:
    """The expression by which a user's rows are sorted: the step, after the episode if there are any."""
    step = pl.col("step").cast(pl.Int64)
    if EPISODE not in frame.columns:
        return step
    return pl.col(EPISODE).cast(pl.Int64) * (step.max() - step.min() + 1) + step


def _index(users: pl.Series, steps: pl.Series) -> NDArray[np.int64] | None:
    """The rows sorted by user, step and position, [rows]; None if they are sorted already."""
    key = _single_key(users, steps)
    if key is None:
        frame = pl.DataFrame({"user": users, "step": steps})
        index = frame.select(pl.arg_sort_by("user", "step", maintain_order=True)).to_series().to_numpy()
        return None if (index[1:] > index[:-1]).all() else index.astype(np.int64)
    if (key[1:] >= key[:-1]).all():
        return None
    index = pl.Series(key).arg_sort().to_numpy().astype(np.int64)
    ordered = key[index]
    if (ordered[1:] > ordered[:-1]).all():
        return index
    return np.argsort(key, kind="stable")  # slower, but keeps the order of rows with the same user and step


def _single_key(users: pl.Series, steps: pl.Series) -> NDArray[np.int64] | None:
    """User and step as one integer, [rows], which sorts five times faster; None if they do not fit."""
    if not users.dtype.is_integer() or users.null_count() or steps.null_count() or not len(users):
        return None
    user, step = users.to_numpy(), steps.to_numpy().astype(np.int64)
    lowest, width = int(step.min()), int(step.max()) - int(step.min()) + 1
    if (int(user.max()) - int(user.min()) + 1) * width >= 2**63:
        return None
    return np.asarray((user - user.min()) * width + (step - lowest))


def _gathered(users: pl.Series, index: NDArray[np.int64]) -> pl.Series:
    if users.dtype.is_integer() and not users.null_count():
        return pl.Series("user", users.to_numpy()[index])
    return users.gather(index)

"""From clean columns to a `Log`: sorted, without copies, actions by cost, static features found."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.columns import ROLES
from redenvelope.log.findings import Findings
from redenvelope.log.log import ActionCatalogue, FeatureTable, Log
from redenvelope.log.tables import FILE, ROW, Table

__all__ = ["assemble", "in_order"]

_FEW_USERS = 100


def in_order(table: Table, findings: Findings) -> pl.DataFrame:
    """The rows sorted by user and step, one row each; copies are dropped, conflicts and gaps reported."""
    frame = table.frame
    if frame["user"].null_count() or frame["step"].null_count():
        frame = frame.drop_nulls(["user", "step"])
    user, step = pl.col("user"), pl.col("step")
    same_user = user == user.shift(1)
    backwards = (user < user.shift(1)) | (same_user & (step < step.shift(1)))
    disordered = frame.select(backwards.fill_null(False)).to_series()
    if disordered.any():
        Table(frame, table.files).report(findings, "rows_unordered", "step", disordered)
        frame = frame.sort("user", "step")
    if frame.select((same_user & (step == step.shift(1))).any()).item():
        frame = _without_copies(Table(frame, table.files), findings)
    gap = frame.select((same_user & (step - step.shift(1) != 1)).fill_null(False)).to_series()
    Table(frame, table.files).report(findings, "step_gap", "step", gap)
    return frame


def _without_copies(table: Table, findings: Findings) -> pl.DataFrame:
    frame = table.frame
    content = [name for name in frame.columns if name not in (ROW, FILE)]
    shared = frame.filter(pl.struct("user", "step").is_duplicated()).sort("user", "step", FILE, ROW)
    copies = shared.select(~pl.struct(content).is_first_distinct()).to_series()
    Table(shared, table.files).report(findings, "rows_duplicated", "step", copies)
    distinct = shared.filter(~copies)
    conflict = distinct.select(pl.struct("user", "step").is_duplicated()).to_series()
    Table(distinct, table.files).report(findings, "rows_conflict", "step", conflict)
    return frame.unique(["user", "step"], keep="first", maintain_order=True)


def assemble(frame: pl.DataFrame, numeric_labels: bool, findings: Findings) -> Log:
    """The log of a sorted, checked frame (roles, then float32 or text features)."""
    users = frame["user"]
    first = (users != users.shift(1)).fill_null(True).to_numpy()
    starts = np.append(np.flatnonzero(first), len(frame)).astype(np.int64)
    if len(starts) - 1 < _FEW_USERS:
        findings.add("few_users", column="user", count=len(starts) - 1)
    cost = frame["cost"].to_numpy()
    action, catalogue = _catalogue(frame["action"], cost, numeric_labels)
    features = _feature_table(frame, first)
    if not features.names:
        findings.add("feature_none")
    return Log(
        users=users.gather(starts[:-1]),
        starts=starts,
        step=frame["step"].to_numpy(),
        action=action,
        propensity=frame["propensity"].to_numpy(),
        reward=frame["reward"].to_numpy(),
        cost=cost,
        features=features,
        catalogue=catalogue,
        findings=findings.sorted(),
    )


def _codes(text: pl.Series) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Text as codes into its sorted labels; missing is −1."""
    labels = text.drop_nulls().unique().sort()
    codes = text.cast(pl.Enum(labels)).to_physical().cast(pl.Int32).fill_null(-1)
    return codes.to_numpy(), tuple(labels)


def _catalogue(
    actions: pl.Series, cost: NDArray[np.float64], numeric: bool
) -> tuple[NDArray[np.int32], ActionCatalogue]:
    """Actions as indices into a catalogue sorted by mean cost; ties by the label itself."""
    codes, labels = _codes(actions)
    mean_cost = np.bincount(codes, weights=cost) / np.bincount(codes)
    keys = [float(label) if numeric else label for label in labels]
    order = sorted(range(len(labels)), key=lambda code: (mean_cost[code], keys[code]))
    rank = np.empty(len(labels), dtype=np.int32)
    rank[order] = np.arange(len(labels), dtype=np.int32)
    return rank[codes], ActionCatalogue(tuple(labels[code] for code in order), numeric)


def _feature_table(frame: pl.DataFrame, first: NDArray[np.bool_]) -> FeatureTable:
    names = [name for name in frame.columns if name not in ROLES and name not in (ROW, FILE)]
    numeric_names = tuple(name for name in names if frame.schema[name] == pl.Float32)
    category_names = tuple(name for name in names if frame.schema[name] == pl.String)
    numeric = (
        np.asfortranarray(frame.select(numeric_names).to_numpy())
        if numeric_names
        else np.zeros((len(frame), 0), np.float32)
    )
    coded = [_codes(frame[name]) for name in category_names]
    codes = (
        np.asfortranarray(np.stack([code for code, _ in coded], axis=1))
        if coded
        else np.zeros((len(frame), 0), np.int32)
    )
    within = ~first[1:]  # rows whose predecessor is the same user's
    static = {name for place, name in enumerate(numeric_names) if not _changes(numeric[:, place], within)}
    static |= {name for place, name in enumerate(category_names) if not _changes(codes[:, place], within)}
    return FeatureTable(
        numeric_names, numeric, category_names, codes, tuple(labels for _, labels in coded), frozenset(static)
    )


def _changes(values: NDArray[np.float32] | NDArray[np.int32], within: NDArray[np.bool_]) -> bool:
    different = values[1:] != values[:-1]
    if values.dtype == np.float32:
        different &= ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
    return bool((different & within).any())

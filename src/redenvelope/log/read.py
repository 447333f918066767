"""Files to a trusted log: read, check, sort, and either hand over a `Log` or every reason why not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from redenvelope.errors import LogError
from redenvelope.log.assemble import assemble, in_order
from redenvelope.log.assignment import can_estimate, with_estimated_propensities
from redenvelope.log.checks import check_actions, check_cost, check_propensity, check_reward
from redenvelope.log.coerce import coerce_action, coerce_outcome, coerce_step, coerce_user
from redenvelope.log.columnar import read_parquet
from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.delimited import read_delimited
from redenvelope.log.features import coerce_feature, report_leaks
from redenvelope.log.findings import IN_MEMORY, Finding, Findings
from redenvelope.log.log import Log
from redenvelope.log.sources import files_of, partition_columns
from redenvelope.log.tables import FILE, ROW, Table, joined, report_not_there

__all__ = ["Inspection", "inspect_log", "log_from_frame", "read_log"]


@dataclass(frozen=True)
class Inspection:
    """A log, or None if it was refused, and everything that was found, errors first."""

    log: Log | None
    findings: tuple[Finding, ...]


def read_log(source: str | Path, columns: ColumnMap | None = None, *, estimate_propensity: bool = False) -> Log:
    """Read a log from parquet, CSV or TSV: one file, a folder or a glob.

    Raises `LogError` with every violation if the log cannot be used; warnings and repairs are in
    `log.findings`.
    """
    return _log_or_raise(inspect_log(source, columns, estimate_propensity=estimate_propensity))


def log_from_frame(frame: pl.DataFrame, columns: ColumnMap | None = None, *, estimate_propensity: bool = False) -> Log:
    """The log of a table already in memory, held to the same rules as a file."""
    findings = Findings()
    if frame.is_empty():
        findings.add("file_no_rows", file=IN_MEMORY)
        return _log_or_raise(Inspection(None, findings.sorted()))
    numbered = frame.with_row_index(ROW, offset=1)
    return _log_or_raise(_inspect([(IN_MEMORY, numbered)], columns, estimate_propensity, findings))


def inspect_log(
    source: str | Path, columns: ColumnMap | None = None, *, estimate_propensity: bool = False
) -> Inspection:
    """Read a log and report what is wrong with it, without raising for the log's own mistakes."""
    findings = Findings()
    mapping = columns or ColumnMap()
    files = files_of(source)
    frames = []
    for file in files:
        ignored = mapping.ignored - file.partition.keys()
        if file.is_parquet:
            frame = read_parquet(file.path, file.name, ignored, findings)
        else:
            frame = read_delimited(file.path, findings, file.name)
        if frame is not None:
            frames.append((file.name, file.with_partition(frame)))
            if not file.is_parquet:
                report_not_there(frame.columns, ignored, file.name, findings)
    for name, count in partition_columns(files).items():
        if name not in mapping.ignored:
            findings.add("column_from_folders", column=name, count=count)
    return _inspect(frames, mapping, estimate_propensity, findings)


def _log_or_raise(inspection: Inspection) -> Log:
    if inspection.log is None:
        raise LogError([finding for finding in inspection.findings if finding.severity == "error"])
    return inspection.log


def _inspect(
    frames: list[tuple[str, pl.DataFrame]],
    columns: ColumnMap | None,
    estimate_propensity: bool,
    findings: Findings,
) -> Inspection:
    if not frames:
        return Inspection(None, findings.sorted())
    required = frozenset(ROLES) - ({"propensity"} if estimate_propensity else set())
    table = joined(frames, columns or ColumnMap(), required, findings)
    frames.clear()  # the files' own frames are not needed twice
    if estimate_propensity and "propensity" in table.frame.columns:
        table = Table(table.frame.drop("propensity"), table.files)
    clean, numeric_labels = _clean(table, findings)
    if {"user", "step"} <= set(clean.frame.columns):
        clean = Table(in_order(clean, findings), clean.files)
    if findings.refused:
        return Inspection(None, findings.sorted())
    if estimate_propensity:
        clean = Table(clean.frame.with_columns(pl.lit(1.0).alias("propensity")), clean.files)
    log = assemble(clean.frame, numeric_labels, findings)
    if estimate_propensity and not can_estimate(log):
        findings.add("propensity_not_estimable", column="propensity", count=len(log.users))
        return Inspection(None, findings.sorted())
    if estimate_propensity:
        log = with_estimated_propensities(log, findings)
    return Inspection(log, log.findings)


def _clean(table: Table, findings: Findings) -> tuple[Table, bool]:
    """The table in the types it means, every value checked; what cannot be used is reported and left out."""
    present = table.frame.columns
    series: list[pl.Series] = []
    labels = None
    numeric_labels = False
    if "user" in present and (user := coerce_user(table, findings)) is not None:
        series.append(user.rename("user"))
    if "step" in present and (step := coerce_step(table, findings)) is not None:
        series.append(step.rename("step"))
    if "action" in present and (action := coerce_action(table, findings)) is not None:
        labels, numeric_labels = action
        series.append(labels.rename("action"))
        check_actions(labels, findings)
    outcomes = {
        role: coerce_outcome(table, role, findings) for role in ("propensity", "reward", "cost") if role in present
    }
    if (propensity := outcomes.get("propensity")) is not None:
        check_propensity(table, propensity, labels, findings)
    if (reward := outcomes.get("reward")) is not None:
        check_reward(reward, findings)
    if (cost := outcomes.get("cost")) is not None:
        check_cost(table, cost, findings)
    series += [values for values in outcomes.values() if values is not None]
    names = [name for name in present if name not in ROLES and name not in (ROW, FILE)]
    features = [feature for name in names if (feature := coerce_feature(table, name, findings)) is not None]
    clean = table.frame.select(ROW, FILE).with_columns(*series, *features)
    report_leaks([feature.name for feature in features if feature.dtype == pl.Float32], clean, findings)
    return Table(clean, table.files), numeric_labels

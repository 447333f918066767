"""Files to a trusted log: read, check, sort, and either hand over a `Log` or every reason why not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from redenvelope.errors import LogError
from redenvelope.log.assemble import assemble
from redenvelope.log.assignment import can_estimate, with_estimated_propensities
from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.findings import Finding, Findings
from redenvelope.log.finish import finish
from redenvelope.log.keys import with_keys
from redenvelope.log.log import Log
from redenvelope.log.rows import typed_rows
from redenvelope.log.schema import merge_schemas, schema_sums
from redenvelope.log.tables import Table
from redenvelope.log.tabulate import table_of

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
    return _log_or_raise(_inspect(frame, columns, estimate_propensity))


def inspect_log(
    source: str | Path, columns: ColumnMap | None = None, *, estimate_propensity: bool = False
) -> Inspection:
    """Read a log and report what is wrong with it, without raising for the log's own mistakes."""
    return _inspect(source, columns, estimate_propensity)


def _log_or_raise(inspection: Inspection) -> Log:
    if inspection.log is None:
        raise LogError([finding for finding in inspection.findings if finding.severity == "error"])
    return inspection.log


def _inspect(source: str | Path | pl.DataFrame, columns: ColumnMap | None, estimate_propensity: bool) -> Inspection:
    """The whole log as one part: its rows are typed once, for the schema and for the log."""
    findings = Findings()
    required = frozenset(ROLES) - ({"propensity"} if estimate_propensity else set())
    table = table_of(source, columns or ColumnMap(), findings, required)
    if table is None:
        return Inspection(None, findings.sorted())
    if estimate_propensity and "propensity" in table.frame.columns:
        table = Table(table.frame.drop("propensity"), table.files)
    keyed, keys = with_keys(table)
    files = table.files
    del table
    rows = typed_rows(keyed)
    del keyed
    schema = finish(merge_schemas([schema_sums(rows)]), keys, files, findings)
    if schema.refused:
        return Inspection(None, schema.findings)
    log = assemble(rows, schema)
    if estimate_propensity and not can_estimate(log):
        findings.add("propensity_not_estimable", column="propensity", count=len(log.users))
        return Inspection(None, findings.sorted())
    if estimate_propensity:
        log = with_estimated_propensities(log, findings)
    return Inspection(log, log.findings)

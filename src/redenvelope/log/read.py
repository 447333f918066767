"""Files to a trusted log: read, check, sort, and either hand over a `Log` or every reason why not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from redenvelope.errors import LogError
from redenvelope.log.assemble import assemble
from redenvelope.log.assignment import learn_assignment, report_estimates
from redenvelope.log.coerce import TINY_PROPENSITY
from redenvelope.log.columns import ColumnMap
from redenvelope.log.findings import Finding, Findings
from redenvelope.log.finish import finish
from redenvelope.log.frames import to_polars
from redenvelope.log.keys import settle_keys
from redenvelope.log.log import Log
from redenvelope.log.rows import typed_rows
from redenvelope.log.schema import merge_schemas, schema_sums
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


def log_from_frame(frame: Any, columns: ColumnMap | None = None, *, estimate_propensity: bool = False) -> Log:
    """The log of a table already in memory, held to the same rules as a file.

    Any dataframe: polars, pandas, pyarrow, duckdb, …, or what speaks Arrow's stream or the dataframe interchange
    protocol.
    """
    return _log_or_raise(_inspect(to_polars(frame, "the log"), columns, estimate_propensity))


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
    table = table_of(source, columns or ColumnMap(), findings, estimate_propensity=estimate_propensity)
    if table is None:
        return Inspection(None, findings.sorted())
    keyed, keys = settle_keys(table, columns)
    files = table.files
    del table
    rows = typed_rows(keyed)
    del keyed
    costs = () if columns is None else columns.costs
    schema = finish(merge_schemas([schema_sums(rows)]), keys, files, findings, costs)
    if schema.refused:
        return Inspection(None, schema.findings)
    log = replace(assemble(rows, schema), columns=columns or ColumnMap())
    if not estimate_propensity:
        return Inspection(log, log.findings)
    model = learn_assignment([log], len(log))
    if model is None:
        findings.add("propensity_not_estimable", column="propensity", count=len(log.users))
        return Inspection(None, findings.sorted())
    log = model.applied(log)
    report_estimates(len(log), int((log.propensity < TINY_PROPENSITY).sum()), findings)
    return Inspection(replace(log, findings=findings.sorted()), findings.sorted())

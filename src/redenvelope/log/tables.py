"""Several files as one table: the same columns under the same names, and every row's place of origin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from redenvelope.log.columns import ROLES, ColumnMap
from redenvelope.log.findings import EXAMPLES, Findings

__all__ = ["FILE", "ROW", "Table", "joined", "kind_of"]

ROW = "\0row"
"""Column with the row's number in its file, from 1. The name can stand in no header."""
FILE = "\0file"
"""Column with the number of the row's file."""


@dataclass(frozen=True)
class Table:
    """Rows of one or more files, roles under their own names, and where each row came from."""

    frame: pl.DataFrame
    files: tuple[str, ...]

    def report(self, findings: Findings, rule: str, column: str, broken: pl.Series, **details: object) -> None:
        """Report a rule broken in some rows (a boolean per row), with the first few places and values."""
        count = int(broken.sum())
        if not count:
            return
        places = broken.arg_true()[:EXAMPLES]
        shown = self.frame.select(ROW, FILE, column)[places]
        first_file = shown[FILE][0]
        here = shown.filter(pl.col(FILE) == first_file)
        findings.add(
            rule,
            file=self.files[first_file],
            column=column,
            count=count,
            rows=here[ROW].to_list(),
            examples=["missing" if value is None else value for value in here[column].to_list()],
            **details,
        )


def kind_of(dtype: pl.DataType) -> str:
    """What a column holds, in words a person uses."""
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        return "nested"
    if dtype == pl.Boolean:
        return "boolean"
    if dtype.is_numeric():
        return "integer" if dtype.is_integer() else "number"
    if dtype.is_temporal():
        return "date"
    return "missing" if dtype == pl.Null else "text"


def joined(
    frames: list[tuple[Path, pl.DataFrame]], columns: ColumnMap, required: frozenset[str], findings: Findings
) -> Table:
    """One table of all files; columns that clash or lack are reported, and left out so that reading goes on."""
    names = tuple(path.name for path, _ in frames)
    _report_roles(*frames[0], columns, required, findings)
    prepared = [_named(path, frame, columns, findings) for path, frame in frames]
    first = prepared[0]
    usable = [name for name in first.columns if _agrees(name, prepared, names, findings)]
    for file, frame in zip(names[1:], prepared[1:], strict=True):
        for name in (name for name in frame.columns if name not in first.columns):
            findings.add("columns_differ", file=names[0], column=name, other_file=file)
        shared = [name for name in frame.columns if name in usable]
        if shared != [name for name in usable if name in shared]:
            findings.add("column_order", file=file, other_file=names[0])
    parts = [
        frame.select(usable).with_columns(pl.lit(number, dtype=pl.UInt16).alias(FILE))
        for number, frame in enumerate(prepared)
    ]
    table = pl.concat(parts, how="vertical_relaxed") if len(parts) > 1 else parts[0]
    return Table(table, names)


def _report_roles(
    path: Path, frame: pl.DataFrame, columns: ColumnMap, required: frozenset[str], findings: Findings
) -> None:
    """Report the roles a table lacks, and columns that would be taken for a role mapped elsewhere."""
    present = [name for name in frame.columns if name != ROW]
    for role, meaning in ROLES.items():
        source = columns.name_of(role)
        if source != role and role in present and role not in columns.ignored:
            findings.add("column_shadowed", file=path.name, column=role, mapped=source)
        if source not in present and role in required:
            rule = "propensity_missing" if role == "propensity" else "column_missing"
            shown = ", ".join(present[:30]) + (", …" if len(present) > 30 else "")
            findings.add(rule, file=path.name, column=role, meaning=meaning, present=shown)


def _named(path: Path, frame: pl.DataFrame, columns: ColumnMap, findings: Findings) -> pl.DataFrame:
    """The frame with roles under their own names, less the ignored and the nested columns."""
    renamed = {columns.name_of(role): role for role in ROLES if columns.name_of(role) in frame.columns}
    dropped = (columns.ignored | {role for role in ROLES if columns.name_of(role) != role}) - set(renamed)
    frame = frame.drop([name for name in dropped if name in frame.columns]).rename(renamed)
    nested = [name for name, dtype in frame.schema.items() if kind_of(dtype) == "nested"]
    for name in nested:
        findings.add("column_nested", file=path.name, column=name, type=frame.schema[name])
    return frame.drop(nested)


def _agrees(name: str, frames: list[pl.DataFrame], files: tuple[str, ...], findings: Findings) -> bool:
    """Whether a column of the first file can be joined with the same column of the others."""
    first = frames[0].schema[name]
    for file, frame in zip(files[1:], frames[1:], strict=True):
        if name not in frame.columns:
            findings.add("columns_differ", file=file, column=name, other_file=files[0])
            return False
        kinds = {kind_of(first), kind_of(frame.schema[name])} - {"missing"}
        if len(kinds) > 1 and kinds != {"integer", "number"}:
            findings.add(
                "type_clash",
                file=file,
                column=name,
                type=kind_of(frame.schema[name]),
                other_type=kind_of(first),
                other_file=files[0],
            )
            return False
        if first != frame.schema[name] and len(kinds) == 1:
            findings.add("integer_widths", file=file, column=name)
    return True

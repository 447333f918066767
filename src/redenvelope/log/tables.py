"""Joining files into one table with columns named by role, in which every row knows its file and row number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.log.cleaning.guess_columns import Guess, guessed_columns
from redenvelope.log.cleaning.number_formats import outside_calendar, plain_times
from redenvelope.log.columns import (
    HOLDOUT,
    OPTIONAL,
    ROLES,
    SAID,
    ColumnMap,
    column,
    nearest_name,
    put_back,
    taken,
    without,
)
from redenvelope.log.eligibility import ELIGIBLE, as_marked_text, is_listed
from redenvelope.log.findings import EXAMPLES, Findings, Place, Places
from redenvelope.log.limits import LONGEST_TEXT

ROW = "\0row"
"""Column with the row's number in its file, from 1. No header can contain this name."""
FILE = "\0file"
"""Column with the number of the row's file."""
EPISODE = "\0episode"
"""Column with the number of the row's episode, if users have several."""
CLUSTER = "\0cluster"
"""Column with the key of the row's cluster, if users have one."""
TEMPORAL = ("date", "time", "duration")
"""Kinds of columns that hold dates, times of day or durations."""

_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


@dataclass(frozen=True)
class Table:
    """Rows of one or more files, with roles under their standard names and the origin of each row."""

    frame: pl.DataFrame
    files: tuple[str, ...]
    folders: tuple[str, ...] = ()
    """Columns that come from folder names."""

    def note(self, found: dict[tuple[str, str], Places], rule: str, column: str, broken: pl.Series) -> None:
        """Record the rows that break a rule (a boolean per row) in `found`."""
        count = int(broken.sum())
        if count:
            found[rule, column] = self.places(column, broken.arg_true()[:EXAMPLES].to_list(), count)

    def places(self, column: str, rows: Sequence[int], count: int) -> Places:
        """`count` rows of a column, of which the given ones are the first, with their values."""
        shown = taken(self.frame, [ROW, FILE, column])[rows]
        first = [
            Place((file, row), file, row, "missing" if value is None else str(value))
            for row, file, value in zip(shown[ROW], shown[FILE], shown[column].to_list(), strict=True)
        ]
        return Places(count, tuple(first))


def kind_of(dtype: pl.DataType) -> str:
    """The kind of a column's values, as users would call it."""
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        return "nested"
    if dtype == pl.Boolean:
        return "boolean"
    if dtype.is_numeric():
        return "integer" if dtype.is_integer() else "number"
    if dtype.is_temporal():
        return "time" if dtype == pl.Time else "duration" if dtype == pl.Duration else "date"
    return "missing" if dtype == pl.Null else "text"


def joined(
    frames: list[tuple[str, pl.DataFrame]], columns: ColumnMap, required: frozenset[str], findings: Findings
) -> Table:
    """One table of all files; columns that clash or are missing are reported and left out, so that reading goes on."""
    names = tuple(name for name, _ in frames)
    report_roles(*frames[0], columns, required, findings)
    ready = [prepared(file, frame, columns, findings) for file, frame in frames]
    first = ready[0]
    schemas = [frame.schema for frame in ready]  # once, because polars builds it at every access
    usable = [name for name in first.columns if _agrees(name, schemas, names, findings)]
    for file, frame in zip(names[1:], ready[1:], strict=True):
        for name in (name for name in frame.columns if name not in first.columns):
            findings.add("columns_differ", file=names[0], column=name, other_file=file)
        shared = [name for name in frame.columns if name in usable]
        if shared != [name for name in usable if name in shared]:
            findings.add("column_order", file=file, other_file=names[0])
    unsigned = {name for name in usable if any(schema[name] == pl.UInt64 for schema in schemas)}
    parts = [
        put_back(taken(frame, usable), {name: _unsigned(column(frame, name)) for name in unsigned}).with_columns(
            pl.lit(number, dtype=pl.UInt32).alias(FILE)
        )
        for number, frame in enumerate(ready)
    ]
    if len(parts) == 1:
        return Table(parts[0], names)
    table = pl.concat(parts, how="vertical_relaxed")
    # Columns whose files share no narrower type; ids stay as they are.
    wide = [name for name, dtype in table.schema.items() if dtype == pl.Int128 and name != "user"]
    return Table(put_back(table, {name: plain(column(table, name)) for name in wide}), names)


def report_not_there(names: list[str], ignored: frozenset[str], file: str, findings: Findings) -> None:
    """Report columns to ignore that a table does not have, because a misspelt name would leave the meant column in."""
    present = [name for name in names if name != ROW]
    for name in sorted(ignored - set(present)):
        nearest = nearest_name(name, present) or "YOUR_COLUMN"
        findings.add("column_not_there", file=file, column=name, present=_shown(present), nearest=nearest)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:30]) + (", …" if len(names) > 30 else "")


def report_roles(
    file: str, frame: pl.DataFrame, columns: ColumnMap, required: frozenset[str], findings: Findings
) -> None:
    """Report roles that a table lacks, and columns named like a role that is mapped to another column."""
    present = [name for name in frame.columns if name != ROW and name not in columns.ignored]
    sources = {columns.name_of(role) for role in ROLES}
    said = {"time": columns.time, "episode": columns.episode, "cluster": columns.cluster}
    free = [name for name in present if name not in sources and name not in said.values()]
    lacking = [role for role in ROLES if role in required and columns.name_of(role) not in present]
    guess = guessed_columns(frame, free, lacking, columns) if lacking else Guess("", "")
    for what, name in (said | {role: columns.names.get(role) for role in OPTIONAL}).items():
        if name is not None and name not in present:
            nearest = nearest_name(name, free) or "YOUR_COLUMN"
            findings.add(
                "column_named_missing",
                file=file,
                column=what,
                mapped=name,
                meaning=(SAID | OPTIONAL)[what],
                present=_shown(present),
                option=f"--{what} {nearest}" if what in SAID else f"--columns {what}={nearest}",
            )
    if columns.time not in (None, columns.name_of("step")) and "step" in present:
        findings.add("column_shadowed", file=file, column="step", mapped=columns.time)
    # Reported once for all lacking roles: repeating the list of columns six times would hide what to do.
    together = [role for role in lacking if role not in columns.names]
    if len(together) > 1:
        asked = ", ".join(f"{role} ({ROLES[role].partition(':')[0]})" for role in together)
        findings.add(
            "columns_missing",
            file=file,
            count=len(together),
            roles=asked,
            present=_shown(present),
            guess=guess.line,
            why=guess.why,
        )
    for role, meaning in ROLES.items():
        source = columns.name_of(role)
        if len(together) > 1 and role in together:
            continue
        if source not in present and role in required:
            plain_rule = "propensity_missing" if role == "propensity" else "column_missing"
            findings.add(
                plain_rule if source == role else "column_named_missing",
                file=file,
                column=role,
                mapped=source,
                meaning=meaning,
                present=_shown(present),
                guess=guess.line,
                why=guess.why,
                option=f"--columns {role}={nearest_name(source, free) or nearest_name(role, free) or 'YOUR_COLUMN'}",
            )
        elif role in present and role not in sources:
            findings.add("column_shadowed", file=file, column=role, mapped=source)


def prepared(file: str, frame: pl.DataFrame, columns: ColumnMap, findings: Findings) -> pl.DataFrame:
    """The frame with roles under their standard names, without ignored and nested columns."""
    wanted = dict.fromkeys((*ROLES, *columns.names))
    roles = {columns.name_of(role): role for role in wanted}
    dropped = columns.ignored | (set(wanted) - set(roles))  # columns named like a role that is mapped elsewhere
    frame = without(frame, dropped)
    frame = frame.rename({name: role for name, role in roles.items() if name in frame.columns})
    if ELIGIBLE in frame.columns and (ELIGIBLE in columns.names or is_listed(frame.schema[ELIGIBLE])):
        frame = put_back(frame, {ELIGIBLE: as_marked_text(column(frame, ELIGIBLE))})
    nested = [name for name, dtype in frame.schema.items() if kind_of(dtype) == "nested"]
    for name in nested:
        rule = "role_nested" if name in (*ROLES, columns.time, columns.episode, columns.cluster) else "column_nested"
        findings.add(rule, file=file, column=name, type=frame.schema[name])
    frame = without(frame, nested)
    _report_times(file, frame, findings)
    _report_long(file, frame, findings)
    made_plain = {name: plain(column(frame, name)) for name in frame.columns if name not in (ROW, "user")}
    if "user" in frame.columns:
        made_plain["user"] = _plain_ids(frame["user"])
    return put_back(frame, made_plain)


_HELD_OUT = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


def held_out_rows(frame: pl.DataFrame, strict: bool) -> pl.Series | None:
    """Which rows belong to held-out users, [rows]; None if no column marks them.

    A column of that name without true or false in every row is an ordinary feature, or refused if `strict`.
    """
    if HOLDOUT not in frame.columns:
        return None
    text = column(frame, HOLDOUT).cast(pl.String).str.strip_chars().str.to_lowercase()
    marks = text.replace_strict(_HELD_OUT, default=None, return_dtype=pl.Boolean)
    if not marks.null_count():
        return marks
    if strict:
        odd = text.filter(marks.is_null())[0]
        raise UsageError(
            f"the column {HOLDOUT!r} marks held-out users and must be true or false in every row, but one holds "
            f"{odd!r}; correct it, or rename a column that means something else"
        )
    return None


def without_held_out(frame: pl.DataFrame, columns: ColumnMap, findings: Findings, strict: bool = False) -> pl.DataFrame:
    """A log's table without held-out users, whose only possible action was the cheapest one."""
    marks = held_out_rows(frame, strict or HOLDOUT in columns.names)
    if marks is None:
        return frame
    if marks.any():
        findings.add("holdout_left_out", column=columns.name_of(HOLDOUT), count=int(marks.sum()))
    return without(frame, {HOLDOUT}).filter(~marks)


def _report_times(file: str, frame: pl.DataFrame, findings: Findings) -> None:
    for name in (name for name, dtype in frame.schema.items() if kind_of(dtype) in TEMPORAL):
        outside = outside_calendar(column(frame, name))
        if outside.any():
            rows = outside.arg_true()[:EXAMPLES]
            shown = column(frame, name).to_physical().gather(rows).to_list()
            where = (frame[ROW].gather(rows)).to_list()
            findings.add("date_outside", file=file, column=name, count=int(outside.sum()), rows=where, examples=shown)


def _report_long(file: str, frame: pl.DataFrame, findings: Findings) -> None:
    for name in (name for name, dtype in frame.schema.items() if dtype == pl.String):
        long = (column(frame, name).str.len_bytes() > LONGEST_TEXT).fill_null(False)
        if long.any():
            rows = frame[ROW].gather(long.arg_true()[:EXAMPLES]).to_list()
            findings.add("text_too_long", file=file, column=name, count=int(long.sum()), rows=rows)


def plain(values: pl.Series) -> pl.Series:
    """The same values in one of the few types that reading handles; exporters use many more."""
    dtype = values.dtype
    if dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    if values.dtype == pl.String:
        empty = values == ""  # text files cannot distinguish it from missing, so no file may
        return values.set(empty, None) if empty.any() else values
    if kind_of(dtype) in TEMPORAL:
        return plain_times(values)
    if wide_integers(dtype):
        return _narrow(values)
    return values


def wide_integers(dtype: pl.DataType) -> bool:
    """Whether a type may hold integers beyond int64, or exact decimals that floats may round."""
    return isinstance(dtype, pl.Decimal) or (dtype.is_integer() and dtype not in _INTEGERS)


def _plain_ids(users: pl.Series) -> pl.Series:
    """Ids in one of the few types that reading handles, integers exactly, because rounding could merge two ids."""
    if not wide_integers(users.dtype):
        return plain(users)
    whole = users
    if isinstance(users.dtype, pl.Decimal):
        whole = users.cast(pl.String).str.replace(r"\.0*$", "").cast(pl.Int128, strict=False)
    if whole.null_count() > users.null_count():
        return users.cast(pl.Float64)
    narrow = whole.cast(pl.Int64, strict=False)
    return narrow if narrow.null_count() == whole.null_count() else whole.cast(pl.Int128, strict=False)


def _narrow(values: pl.Series) -> pl.Series:
    """Decimals and wide integers as int64 if nothing is lost (ids are often exported like this), else as float64."""
    if not (isinstance(values.dtype, pl.Decimal) and values.dtype.scale):
        whole = values.cast(pl.Int64, strict=False)
        if whole.null_count() == values.null_count():
            return whole
    return values if values.dtype == pl.UInt64 else values.cast(pl.Float64)


def _unsigned(values: pl.Series) -> pl.Series:
    """Integers as unsigned ones if they fit, to join with uint64; signed ones would become decimals."""
    if not values.dtype.is_integer():
        return values
    unsigned = values.cast(pl.UInt64, strict=False)
    return unsigned if unsigned.null_count() == values.null_count() else values


def _agrees(name: str, schemas: list[pl.Schema], files: tuple[str, ...], findings: Findings) -> bool:
    """Whether a column of the first file can be joined with the same column of all others."""
    first = schemas[0][name]
    known, known_file = kind_of(first), files[0]
    for file, schema in zip(files[1:], schemas[1:], strict=True):
        if name not in schema:
            findings.add("columns_differ", file=file, column=name, other_file=files[0])
            return False
        kind = kind_of(schema[name])
        if known == "missing":
            known, known_file = kind, file
        if kind not in (known, "missing") and {kind, known} != {"integer", "number"}:
            findings.add("type_clash", file=file, column=name, type=kind, other_type=known, other_file=known_file)
            return False
        if first != schema[name] and kind in ("integer", "number") and kind_of(first) == kind:
            findings.add("integer_widths", file=file, column=name)
    return True

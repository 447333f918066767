"""What a database finds wrong with itself: damaged pages, lost commits, and tables without their constraints."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.ledger.tables import POSTGRES, SQLITE

if TYPE_CHECKING:
    from redenvelope.ledger.database import Session

_MOST_FAULTS = 20
_HEADER, _FRAME = 32, 24
"""Bytes of the header of a write-ahead log, and of that of each of its frames."""
_TRIES = 3


def sqlite_damage(session: Session) -> Iterator[str]:
    """What is wrong with the pages and tables of a database in SQLite."""
    for (said,) in session.rows(f"PRAGMA integrity_check({_MOST_FAULTS})"):
        if said != "ok":
            yield from str(said).splitlines()[:_MOST_FAULTS]
    for table, row, parent, _ in session.rows("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} refers to a row of {parent} that is not there"
    found = session.rows("SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^'")
    yield from _differing({_name(one): one for one in SQLITE.statements()}, dict(found))


def _name(statement: str) -> str:
    words = statement.split("(")[0].split()
    return words[2]


def _differing(wanted: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*wanted, *found}):
        if name not in found:
            yield f"{name} is missing"
        elif name not in wanted:
            yield f"{name} is not of a ledger"
        elif wanted[name] != found[name]:
            yield f"{name} is not as it was created"


def lost_commits(path: Path) -> str | None:
    """What is wrong with the write-ahead log of a database in SQLite, if frames are not read because of damage before
    them: SQLite takes them for the rest of an older log, and forgets their commits without a word."""
    if not path.exists():
        return None
    found = None
    for _ in range(_TRIES):  # somebody may be writing
        content = path.read_bytes()
        before, found = found, _lost_after(content)
        if found is None or found == before:
            break
        time.sleep(0.05)
    if found is None:
        return None
    frame, lost = found
    return (
        f"frame {frame} of {path.name} is damaged, and {lost} frames after it are not read: commits may be lost (or it "
        "was being written when the power failed)"
    )


def _lost_after(content: bytes) -> tuple[int, int] | None:
    """The first frame that cannot be read, and how many of the same log follow it up to a commit; None if none do."""
    if len(content) < _HEADER:
        return None
    magic, _, page, _, *salts, first, second = struct.unpack(">8I", content[:_HEADER])
    if magic not in (0x377F0682, 0x377F0683) or not 512 <= (page or 65_536) <= 65_536:
        return (0, len(content) // 4_096) if any(content[_HEADER:]) else None
    order = "<" if magic == 0x377F0682 else ">"
    sums = _checksum(content[:24], order, (0, 0))
    if sums != (first, second):
        return (0, (len(content) - _HEADER) // (page + _FRAME))
    broken, lost, last = 0, 0, 0
    for number, start in enumerate(range(_HEADER, len(content) - page - _FRAME + 1, page + _FRAME), start=1):
        head = content[start : start + _FRAME]
        of_page, commit, *own_salts, first, second = struct.unpack(">6I", head)
        if own_salts != salts:
            if not broken:  # the rest of an older log, unless newer frames follow
                broken = number
            continue
        if broken:
            lost, last = lost + 1, lost + 1 if commit else last
            continue
        found = _checksum(content[start + _FRAME : start + _FRAME + page], order, _checksum(head[:8], order, sums))
        if found != (first, second) or not of_page:
            broken, lost, last = number, 1, int(bool(commit))
            continue
        sums = found
    return (broken, last) if broken and last else None


def _checksum(content: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's two sums. Each word is added to the last two sums, so that it weighs as much as a Fibonacci number."""
    words = np.frombuffer(content, dtype=f"{order}u4").astype(np.uint32)
    count, (first, second) = len(words), sums
    weights = _fibonacci(count + 1)
    before, last = int(words[:-1] @ weights[count - 1 : 0 : -1]), int(words @ weights[count:0:-1])
    older, old, new = (int(weight) for weight in weights[count - 1 :])
    return (before + old * second + older * first) & 0xFFFFFFFF, (last + new * second + old * first) & 0xFFFFFFFF


@cache
def _fibonacci(most: int) -> NDArray[np.uint32]:
    """Fibonacci's numbers from 0 to `most`, modulo 2^32."""
    found = [0, 1]
    while len(found) <= most:
        found.append((found[-1] + found[-2]) & 0xFFFFFFFF)
    return np.array(found, dtype=np.uint32)


_RELATIONS = """
    SELECT relation.relname AS on_table, kind, definition FROM (
        SELECT attrelid AS of, 'column ' || attname AS kind,
            format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END AS definition
            FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
        UNION ALL SELECT conrelid, 'constraint ' || conname,
            pg_get_constraintdef(oid) || CASE WHEN convalidated THEN '' ELSE ' not valid' END FROM pg_constraint
        UNION ALL SELECT tgrelid, 'trigger ' || tgname, tgenabled::text || ' ' || tgtype::text || ' ' || prosrc
            FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid WHERE NOT tgisinternal
        UNION ALL SELECT tgrelid, 'foreign key trigger of ' || conname, string_agg(tgenabled::text, '' ORDER BY tgtype)
            FROM pg_trigger JOIN pg_constraint ON pg_constraint.oid = tgconstraint WHERE tgisinternal
            GROUP BY tgrelid, conname
        UNION ALL SELECT indrelid, 'index ' || index.relname, CASE WHEN indisunique THEN 'unique ' ELSE '' END
            || CASE WHEN indisvalid THEN '' ELSE 'not valid ' END || indkey::text
            || coalesce(pg_get_expr(indpred, indrelid), '')
            FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid
    ) AS parts JOIN pg_class AS relation ON relation.oid = parts.of
    WHERE relation.oid IN ({})
"""
_NAMES = [_name(statement) for statement in POSTGRES.statements() if statement.startswith("CREATE TABLE")]


def postgres_damage(connection: Any, failed: type[Exception]) -> tuple[list[str], list[str]]:
    """What is wrong with the tables and pages of a database in PostgreSQL, and what could not be checked.

    The tables are compared with temporary ones that are created as they were, which is undone.
    """
    faults: list[str] = []
    unchecked: list[str] = []
    with suppress(_UndoneError), connection.transaction():
        own = _relations(connection, "to_regclass('{}')")
        try:
            with connection.transaction():
                for statement in POSTGRES.statements():
                    for what in ("TABLE", "FUNCTION"):
                        replaced = f"CREATE TEMPORARY {what}" if what == "TABLE" else f"CREATE {what} pg_temp."
                        before = f"CREATE {what}" if what == "TABLE" else f"CREATE {what} "
                        statement = statement.replace(before, replaced)
                    connection.execute(statement.replace("EXECUTE FUNCTION ", "EXECUTE FUNCTION pg_temp."))
                wanted = _relations(connection, "to_regclass('pg_temp.{}')")
            faults += _differing(wanted, own)
        except failed as error:
            unchecked.append(f"constraints and triggers ({str(error).splitlines()[0]})")
        raise _UndoneError
    has_amcheck = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'amcheck'").fetchone()
    if has_amcheck is None:
        unchecked.append("pages and indices (the extension amcheck is not installed)")
    else:
        faults += _amcheck(connection, failed)
    return faults[:_MOST_FAULTS], unchecked


class _UndoneError(Exception):
    """Ends a transaction that leaves nothing behind."""


def _relations(connection: Any, named: str) -> dict[str, str]:
    """Columns, constraints, triggers and indices of the tables of a ledger."""
    tables = ", ".join(named.format(name) for name in _NAMES)
    found: Iterable[tuple[str, str, str]] = connection.execute(_RELATIONS.format(tables)).fetchall()
    return {f"{kind} of {table}": definition for table, kind, definition in found}


def _amcheck(connection: Any, failed: type[Exception]) -> Iterator[str]:
    """What the extension amcheck finds in tables and their indices."""
    for name in _NAMES:
        try:
            query = "SELECT blkno, msg FROM verify_heapam(%s::regclass)"
            yield from (f"{name}, block {block}: {said}" for block, said in connection.execute(query, [name]))
            connection.execute(
                "SELECT bt_index_check(indexrelid, true) FROM pg_index WHERE indrelid = %s::regclass", [name]
            )
        except failed as error:
            yield f"{name}: {str(error).splitlines()[0]}"

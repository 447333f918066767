"""Copies of a ledger: back-ups, restores, and migrations from older formats.

A back-up is a ledger in SQLite, whatever database it came from: it can be verified, read, and restored to either.
"""

from __future__ import annotations

import heapq
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from redenvelope.errors import LedgerError, UsageError
from redenvelope.files import writing
from redenvelope.ledger.chain import LASTING, PERSONAL, next_link, personal_digest, seed_digest
from redenvelope.ledger.database import Session, SqliteDatabase, open_database, placeholders
from redenvelope.ledger.holds import execute
from redenvelope.ledger.ledger import Ledger, open_ledger
from redenvelope.ledger.records import NewEpoch
from redenvelope.ledger.tables import FORMAT, IDENTITY, OLDER_FORMATS
from redenvelope.ledger.transaction import Transaction
from redenvelope.ledger.verification import Verification, replayed, verify

_CHUNK = 10_000
_encode = msgspec.json.Encoder().encode
_KEYS = {
    "counters": "name",
    "identity": "name",
    "budgets": "budget",
    "user_balances": "user_id, budget",
    "decisions": "decision",
    "charges": "decision, budget",
    "events": "event",
    "tallies": "step, action",
}
"""The tables in an order in which they can be filled, with their primary keys."""


def back_up(url: str, file: Path) -> Verification:
    """Copy the state at one moment into a file, and verify the copy; the ledger may be in use."""
    if any(file.with_name(name).exists() for name in (f".{file.name}.id", f"{file.name}-wal")):
        raise UsageError(f"{file}: is a ledger in use, which a back-up would replace; choose another file")
    with (
        writing(file),
        closing(open_database(url, "read")) as source,
        TemporaryDirectory(prefix=f".{file.name}.", dir=file.absolute().parent) as folder,
    ):
        made = Path(folder) / file.name
        with closing(SqliteDatabase(str(made), "anew")) as target, source.reading() as old, target.transaction() as new:
            _copy(old, new)
        with closing(sqlite3.connect(made)) as alone:
            alone.execute("PRAGMA journal_mode = DELETE")  # a single file, without a log next to it
            alone.execute("PRAGMA user_version = 1")  # marks a back-up
        made.replace(file)
    with closing(open_ledger(f"sqlite:///{file.absolute()}", read_only=True)) as written:
        return verify(written)


def restore(file: Path, url: str, replace: bool = False, by: str = "") -> dict[str, str]:
    """Restore a ledger from a back-up, in a new epoch; returns its new identity.

    With `replace`, everything written since the back-up is lost, and services that have the ledger open refuse to go
    on.
    """
    if url.partition(":///")[2] and Path(url.partition(":///")[2]).absolute() == file.absolute():
        raise UsageError(f"{file}: is the ledger itself; restore it to another URL")
    with closing(open_ledger(f"sqlite:///{file.absolute()}", read_only=True)) as source:
        found = verify(source)
        if not found.is_sound:
            raise LedgerError(f"{file}: the back-up is not sound ({found.differences[0]}); use another one")
        with closing(open_database(url, "restore")) as target:
            is_free = not target.has_tables()
            if not is_free and target.ledger != source.database.ledger:
                raise UsageError("there is another ledger at this URL; restore to an empty place")
            if not is_free and not replace:
                raise UsageError(
                    "there is a ledger at this URL; to give up all that was decided since the back-up, first back it "
                    "up and then add --replace"
                )
            with source.database.reading() as old, target.transaction() as new:
                if target.lock and not is_free:  # in the order of those who use it, so that nobody waits in a circle
                    new.run("LOCK counters, identity, events, budgets, decisions, charges, user_balances, tallies")
                target.create_again(new)
                _copy(old, new)
                begun = Transaction.begin(target, new, target.lock)
                execute(begun, [NewEpoch(begun.now, by)])
    with closing(Ledger(open_database(url, "restore"))) as restored:
        restored.database.remember()
        return restored.identity()


def _copy(old: Session, new: Session) -> None:
    """Copy all rows into newly created tables."""
    for table, key in _KEYS.items():
        if table in ("counters", "identity"):  # the other tables are empty
            new.run(f"DELETE FROM {table}")
        values: Sequence[Any] = ()
        columns = old.columns(table)
        places = [columns.index(one) for one in key.split(", ")]
        after = f"WHERE ({key}) > ({placeholders(len(places))})"
        while True:
            query = f"SELECT * FROM {table} {after if values else ''} ORDER BY {key} LIMIT {_CHUNK}"
            rows = old.rows(query, values)
            if not rows:
                break
            new.many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders(len(columns))})", rows)
            values = [rows[-1][place] for place in places]


_OLD_TABLES = ("counters", "budgets", "decisions", "charges", "entries", "tallies", "price_notes")


def migrate(url: str, by: str = "") -> tuple[int, Verification]:
    """Migrate a ledger of an older format in one transaction; returns its old format and a verification."""
    with closing(open_database(url, "write", formats=(FORMAT, *OLDER_FORMATS))) as database:
        before = database.format
        if before == FORMAT or before is None:
            raise UsageError(f"the ledger has format {FORMAT} already; there is nothing to migrate")
        with database.transaction() as session:
            session.rows(f"SELECT name FROM counters {database.lock}")
            for table in _OLD_TABLES:
                session.run(f"CREATE TEMPORARY TABLE old_{table} AS SELECT * FROM {table}")
            database.create_again(session)
            _Migration(session, before, by).run()
            found = replayed(session)
            if found:
                raise LedgerError(
                    f"the ledger contradicts itself ({found[0]}), so it was left as it is; verify it with the version "
                    "that made it"
                )
            for table in _OLD_TABLES:
                session.run(f"DROP TABLE old_{table}")
    with closing(open_ledger(url, read_only=True)) as ledger:
        return before, verify(ledger)


class _Migration:
    """Writes the rows of this format from those of an older one: its entries become events, in the same order."""

    def __init__(self, session: Session, before: int, by: str) -> None:
        self._session, self._before, self._by = session, before, by
        counters = dict(session.rows("SELECT name, value FROM old_counters"))
        self._seed, self._last_decision = counters["seed"], counters["decision"]
        own = counters.get("ledger", int(secrets.token_hex(4), 16))
        self._identity = dict(zip(IDENTITY, (f"{own:08x}", secrets.token_hex(4), "", "", ""), strict=True))
        self._event, self._chain = 0, ""
        self._changes: dict[str, dict[str, Any]] = {}
        """The latest description of each budget."""
        self._events: list[tuple[Any, ...]] = []
        self._closed: dict[int, tuple[str, float | None, int | None]] = {}
        self._later: list[tuple[int, int, str, int, str]] = []
        """Events without an entry, by time: price notes, and outcomes of decisions that cost nothing."""

    def run(self) -> None:
        """Write all rows."""
        session, now = self._session, time.time_ns() // 1_000_000
        columns = "budget, place, total, held, spent, expected_thousandths, closed_thousandths, user_cap, measure, "
        session.run(f"INSERT INTO budgets SELECT {columns} minor_units FROM old_budgets")
        columns = "step, action, decided, settled, released, expired, reward, spent"
        session.run(f"INSERT INTO tallies SELECT {columns} FROM old_tallies")
        session.many("INSERT INTO identity VALUES (?, ?)", list(self._identity.items()))
        for name, *said in session.rows("SELECT budget, measure, minor_units FROM budgets ORDER BY place"):
            own = {"by": "", "budget": name, "total": 0, "user_cap": None}
            self._changes[name] = own | dict(zip(("measure", "minor_units"), said, strict=True))
        self._add(now, "create", content=self._identity | {"seed_sha256": seed_digest(self._seed)})
        for note, at, content in session.rows("SELECT note, at, content FROM old_price_notes ORDER BY note"):
            heapq.heappush(self._later, (at, note, "price", 0, content))
        self._follow()
        for name, cap, total in session.rows("SELECT budget, user_cap, total FROM budgets ORDER BY place"):
            if cap is not None or not total:
                self._add(now, "change", content=self._changes[name] | {"user_cap": cap})
        self._add(now, "migrate", content={"by": self._by, "format": self._before})
        self._flush()
        self._write_users()
        counters = [("format", FORMAT), ("seed", self._seed), ("decision", self._last_decision), ("event", self._event)]
        session.many("INSERT INTO counters VALUES (?, ?)", counters)

    def _follow(self) -> None:
        """Write decisions and events in the order of the entries."""
        decisions, decided = self._decisions(), 0
        for (number, kind, at), rows in groupby(self._entries(), key=itemgetter(0, 1, 2)):
            entries = [list(row[3:]) for row in rows]
            self._add_until(at)
            if kind == "fund":
                for entry in entries:
                    said = self._changes[entry[0]]
                    said["total"] += entry[1]
                    self._add(at, "change", content=said, entries=[entry])
            elif kind == "hold":
                while decided < number:
                    decided = self._decide(*next(decisions), entries, number)
            else:
                self._add(at, kind, number, self._closed[number][1] if kind != "expire" else None, entries=entries)
        for one, charges in decisions:
            self._decide(one, charges, [], 0)
        self._add_until(2**63)

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        after, columns = 0, "decision, kind, at, budget, total_change, held_change, spent_change, expected_change"
        query = f"SELECT entry, {columns} FROM old_entries WHERE entry > ? ORDER BY entry LIMIT {_CHUNK}"
        while rows := self._session.rows(query, [after]):
            yield from (row[1:] for row in rows)
            after = rows[-1][0]

    def _decisions(self) -> Iterator[tuple[dict[str, Any], list[tuple[Any, ...]]]]:
        """Decisions in order of their numbers, with their charges."""
        names, after = self._session.columns("old_decisions"), 0
        query = f"SELECT * FROM old_decisions WHERE decision > ? ORDER BY decision LIMIT {_CHUNK}"
        while rows := self._session.rows(query, [after]):
            found = [dict(zip(names, row, strict=True)) for row in rows]
            between = [after, found[-1]["decision"]]
            charges: dict[int, list[tuple[Any, ...]]] = {}
            columns = "decision, budget, held, open, ceiling, spent, expected_thousandths"
            for row in self._session.rows(
                f"SELECT {columns} FROM old_charges WHERE decision > ? AND decision <= ?", between
            ):
                charges.setdefault(row[0], []).append(row)
            yield from ((one, charges.get(one["decision"], [])) for one in found)
            after = between[1]

    def _decide(
        self, old: dict[str, Any], charges: Sequence[tuple[Any, ...]], entries: list[list[Any]], number: int
    ) -> int:
        """Write a decision, with the entries if they are its own, and return its number."""
        own, salt = old["decision"], secrets.token_hex(8)
        new = {"public_id": f"d{own}", "rules": "", "eligible": "", "state": ""}
        new |= {"holdout": int(old["prices"] == "[]")} | old
        lasting, personal = [new[name] for name in LASTING], [new[name] for name in PERSONAL]
        charged = sorted((row[1], row[2], row[4], row[6]) for row in charges)
        self._add(
            old["decided_at"],
            *("decide", own, None, ""),
            entries if own == number else [],
            *(personal_digest(salt, personal), lasting, charged),
        )
        outcome = ("status", "reward", "closed_at")
        row = [*lasting, *personal, *(old[name] for name in outcome), salt]
        names = ", ".join((*LASTING, *PERSONAL, *outcome, "salt"))
        self._session.many(f"INSERT INTO decisions ({names}) VALUES ({placeholders(len(row))})", [row])
        self._session.many(f"INSERT INTO charges VALUES ({placeholders(7)})", charges)
        self._closed[own] = (old["status"], old["reward"], old["closed_at"])
        if not charges and old["closed_at"] is not None:
            kind = {"settled": "settle", "released": "release", "expired": "expire"}[old["status"]]
            heapq.heappush(self._later, (old["closed_at"], own, kind, own, ""))
        return int(own)

    def _add_until(self, at: int) -> None:
        while self._later and self._later[0][0] <= at:
            when, _, kind, number, content = heapq.heappop(self._later)
            self._add(when, kind, number, self._closed[number][1] if number else None, content)

    def _add(
        self,
        at: int,
        kind: str,
        decision: int = 0,
        reward: float | None = None,
        content: Any = "",
        entries: Sequence[Any] = (),
        *decided: Any,
    ) -> None:
        self._event += 1
        said = content if isinstance(content, str) else _encode(content).decode()
        row = (self._event, at, kind, decision, reward, said, _encode(entries).decode())
        self._chain = next_link(self._chain, row, *decided)
        self._events.append((*row, self._chain))
        if len(self._events) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._session.many(f"INSERT INTO events VALUES ({placeholders(8)})", self._events)
        self._events = []

    def _write_users(self) -> None:
        """Write the users' balances; a user above a cap that was lowered keeps what was given."""
        given = "sum(open) + sum(charges.spent)"
        self._session.run(
            f"INSERT INTO user_balances SELECT user_id, budgets.budget, sum(open), sum(charges.spent), "
            f"CASE WHEN {given} > min(user_cap) THEN {given} ELSE min(user_cap) END FROM charges "
            "JOIN decisions ON decisions.decision = charges.decision JOIN budgets ON budgets.budget = charges.budget "
            "WHERE user_cap IS NOT NULL GROUP BY user_id, budgets.budget"
        )

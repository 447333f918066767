"""A ledger in one file: a writer that syncs every commit to the disk, and readers that never wait for it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redenvelope.errors import LedgerError
from redenvelope.ledger.database import FORMAT, SQLITE, Session, first_counters, statements

_BUSY_SECONDS = 10.0
_APPLICATION = 0x52456E76  # "REnv": a file of ours, and no other program's


class SqliteDatabase:
    """See Database."""

    lock = ""

    def __init__(self, path: str, create: bool, seed: int | None = None) -> None:
        self._path = path
        if not create and not Path(path).is_file():
            raise LedgerError(f"{path}: there is no ledger; redenvelope serve makes one")
        self._lock = threading.Lock()
        self._readers = threading.local()
        self._opened: list[sqlite3.Connection] = []
        with self._told():
            self._open(create, seed)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """See Database."""
        with self._lock, self._told():
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield _Statements(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the disk may have undone it already
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """See Database."""
        connection: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        with self._told():
            if connection is None:
                connection = self._readers.connection = self._connect()
            connection.execute("BEGIN")
            try:
                yield _Statements(connection)
            finally:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """See Database."""
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        self._opened.append(connection)
        # A commit is on the disk when it returns; without this a loss of power could take the last ones back.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _open(self, create: bool, seed: int | None) -> None:
        self._writer = self._connect()
        try:
            self._prepare(create, seed)
        except BaseException:
            self.close()
            raise

    def _prepare(self, create: bool, seed: int | None) -> None:
        connection = self._writer
        (kind,) = connection.execute("PRAGMA application_id").fetchone()
        if kind != _APPLICATION:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if tables or not create:
                raise LedgerError(f"{self._path}: is not a ledger of redenvelope; choose another file")
            self._make(seed)
        (found,) = connection.execute("SELECT value FROM counters WHERE name = 'format'").fetchone()
        if found != FORMAT:
            raise LedgerError(
                f"{self._path}: has format {found}, and this version knows {FORMAT}; use the version that made it"
            )
        (self.seed,) = connection.execute("SELECT value FROM counters WHERE name = 'seed'").fetchone()

    def _make(self, seed: int | None) -> None:
        """The tables of a new ledger; another process may make them at the same time."""
        connection = self._writer
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements(SQLITE):
            connection.execute(statement)
        for counter in first_counters(seed):
            connection.execute("INSERT INTO counters VALUES (?, ?) ON CONFLICT DO NOTHING", counter)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path}: the ledger cannot be used now ({error})") from error


class _Statements:
    """See Session."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        self._connection.executemany(statement, values)

"""A ledger in PostgreSQL: several processes may write; the lock of the counters puts them in a row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from redenvelope.errors import LedgerError
from redenvelope.ledger.database import FORMAT, POSTGRES, Session, first_counters, statements

_MAKING = 0x52456E76  # an advisory lock: two processes that make the tables at once would get in each other's way
_CONNECT_SECONDS = 10


class PostgresDatabase:
    """See Database. A connection that was lost is made anew by the next transaction."""

    lock = "FOR UPDATE"

    def __init__(self, url: str, create: bool, seed: int | None = None) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._local = threading.local()
        self._writer: psycopg.Connection[Any] | None = None
        self._opened: list[psycopg.Connection[Any]] = []
        with self._told():
            self._open(create, seed)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """See Database."""
        with self._lock, self._told():
            if self._writer is None or self._writer.closed:
                self._writer = self._connect()
            with self._writer.transaction():
                yield _Statements(self._writer)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """See Database."""
        with self._told():
            connection: psycopg.Connection[Any] | None = getattr(self._local, "connection", None)
            if connection is None or connection.closed:
                connection = self._local.connection = self._connect()
            with connection.transaction():
                # One moment for all queries of the block.
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield _Statements(connection)

    def close(self) -> None:
        """See Database."""
        for connection in self._opened:
            with suppress(psycopg.Error):
                connection.close()
        self._opened.clear()

    def _connect(self) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = psycopg.connect(
            self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS, application_name="redenvelope"
        )
        self._opened = [one for one in self._opened if not one.closed]
        self._opened.append(connection)
        # A commit that is acknowledged has to outlive a crash of the server, whatever its default.
        connection.execute("SET synchronous_commit = on")
        connection.execute("SET client_min_messages = warning")
        return connection

    def _open(self, create: bool, seed: int | None) -> None:
        self._writer = self._connect()
        try:
            self._prepare(self._writer, create, seed)
        except BaseException:
            self.close()
            raise

    def _prepare(self, connection: psycopg.Connection[Any], create: bool, seed: int | None) -> None:
        found = connection.execute("SELECT to_regclass('counters')").fetchone()
        if found is None or found[0] is None:
            if not create:
                raise LedgerError("there is no ledger in this database; redenvelope serve makes one")
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])
                for statement in statements(POSTGRES):
                    connection.execute(statement)
                for counter in first_counters(seed):
                    connection.execute("INSERT INTO counters VALUES (%s, %s) ON CONFLICT DO NOTHING", counter)
        counters: dict[str, int] = dict(connection.execute("SELECT name, value FROM counters").fetchall())
        if counters.get("format") != FORMAT:
            known = f"format {counters['format']}" if "format" in counters else "no format"
            raise LedgerError(f"the ledger has {known}, and this version knows {FORMAT}; use the version that made it")
        self.seed = counters["seed"]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise LedgerError(f"the ledger in PostgreSQL cannot be used now ({said})") from error


class _Statements:
    """See Session."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found = self._connection.execute(statement.replace("?", "%s"), values)
        rows: list[tuple[Any, ...]] = found.fetchall()
        return rows

    def many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), values)

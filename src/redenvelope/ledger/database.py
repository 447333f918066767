"""Where a ledger is stored: SQLite for one machine, PostgreSQL for several processes, with the same tables.

Both run the same statements, with `?` in place of a value. Balances are rows next to the entries that explain them, and
CHECK constraints refuse every transaction that would overspend.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from redenvelope.errors import LedgerError, UsageError

_CHUNK = 500
"""Values that one statement takes."""
_OURS = 0x52456E76
"""'REnv': marks an SQLite file as ours, and is the advisory lock under which PostgreSQL's tables are created."""
_BUSY_SECONDS = 10.0
_CONNECT_SECONDS = 10


Creation = Literal["never", "first", "anew"]
"""Whether a missing ledger is created: never, where none was known before, or whatever was there before."""


def open_database(url: str, create: Creation, seed: int | None) -> Database:
    """The database at `sqlite:///PATH` or `postgresql://…`."""
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator and rest.startswith("/") and len(rest) > 1:
        return SqliteDatabase(rest[1:], create, seed)
    if scheme in ("postgresql", "postgres") and separator:
        return PostgresDatabase(url, create, seed)
    raise UsageError(
        f"{_without_password(url)!r} is not the URL of a ledger; write sqlite:///PATH (four slashes before an absolute "
        "path) or postgresql://USER@HOST/DATABASE"
    )


def _without_password(url: str) -> str:
    before, at, after = url.rpartition("@")
    return f"…@{after}" if at else before or after


class Session:
    """Statements inside one transaction."""

    def __init__(self, connection: Any, placeholder: str) -> None:
        self._connection, self._placeholder = connection, placeholder

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        found: list[tuple[Any, ...]] = self._connection.execute(self._own(statement), values).fetchall()
        return found

    def rows_in(self, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """All rows of a query with `IN ({})`, where `values` may be more than one statement takes."""
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            yield from self.rows(statement.format(placeholders(len(part))), part)

    def run(self, statement: str) -> None:
        """Run a statement that takes no values."""
        self._connection.execute(statement)

    def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once per row of values."""
        if rows:
            with closing(self._connection.cursor()) as cursor:
                cursor.executemany(self._own(statement), rows)

    def _own(self, statement: str) -> str:
        return statement.replace("?", self._placeholder)


def placeholders(count: int) -> str:
    """As many values, for `IN (…)` or `VALUES (…)`."""
    return ", ".join("?" * count)


class Database(ABC):
    """A stored ledger: one transaction writes at a time, while any number of threads read."""

    lock = ""
    """Ends the first query of a transaction, so that other writers wait."""
    placeholder = "?"
    seed: int
    """The seed of all draws that are paid from this ledger."""
    ledger: int
    """The random number of this ledger, which is part of every id that it gives to a decision."""
    is_new: bool = False
    """Whether it was created by being opened."""

    def __init__(self, name: str, dialect: Dialect, failures: type[Exception]) -> None:
        self._name, self._dialect, self._failures = name, dialect, failures
        self._lock = threading.Lock()
        self._local = threading.local()
        self._opened: list[Any] = []
        self._writer: Any = None

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Session]:
        """A block whose session is committed durably at its end, or undone."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Session]:
        """A block whose session sees what was committed at one moment."""

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened:
            with suppress(self._failures):
                connection.close()
        self._opened.clear()

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _prepare(self, create: Creation, seed: int | None) -> None:
        """Create the tables where they are missing and may be created."""

    def _open(self, create: Creation, seed: int | None) -> None:
        with self._errors():
            try:
                self._writer = self._connect()
                self._prepare(create, seed)
                self._read_counters()
            except BaseException:
                self.close()
                raise

    def _create_tables(self, session: Session, seed: int | None) -> None:
        for statement in self._dialect.statements():
            session.run(statement)
        session.many("INSERT INTO counters VALUES (?, ?)", first_counters(seed))
        self.is_new = True

    def _read_counters(self) -> None:
        counters = dict(Session(self._writer, self.placeholder).rows("SELECT name, value FROM counters"))
        if counters.get("format") != FORMAT:
            found = f"format {counters['format']}" if "format" in counters else "no format"
            raise LedgerError(
                f"{self._name}: the ledger has {found}, and this version reads {FORMAT}; use the version that made it"
            )
        self.seed, self.ledger = counters["seed"], counters["ledger"]

    def _reader(self) -> Any:
        """The connection with which this thread reads."""
        connection = getattr(self._local, "connection", None)
        if connection is None or getattr(connection, "closed", False):
            connection = self._local.connection = self._connect()
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the database as errors of the ledger."""
        try:
            yield
        except self._failures as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise LedgerError(f"{self._name}: the ledger is not available ({reason})") from error


class SqliteDatabase(Database):
    """A ledger in one file. Every commit is synced to disk; readers never wait for the writer.

    A hidden file next to it remembers that it exists: a ledger that went missing is not replaced by a new one with all
    of its money.
    """

    def __init__(self, path: str, create: Creation, seed: int | None = None) -> None:
        self._path = Path(path).absolute()
        self._files: dict[Path, tuple[int, int]] = {}
        self._marker = self._path.with_name(f".{self._path.name}.id")
        if not self._path.is_file() or not self._path.stat().st_size:
            self._require_none_before(path, create)
        super().__init__(path, SQLITE, sqlite3.Error)
        self._open(create, seed)
        if create != "never":
            self._remember(create)
        for file in (self._path, *(self._path.with_name(f"{self._path.name}-{end}") for end in ("wal", "shm"))):
            with suppress(FileNotFoundError):
                self._files[file] = _identity(file)

    def _require_none_before(self, path: str, create: Creation) -> None:
        if create == "never":
            raise LedgerError(f"{path}: there is no ledger; create one with redenvelope ledger create")
        if create == "first" and self._marker.exists():
            raise LedgerError(
                f"{path}: the ledger that was here is gone, and a new one would have all of its money again; restore "
                f"it from a back-up, or start anew with redenvelope ledger create sqlite:///{path}"
            )

    def _remember(self, create: Creation) -> None:
        own = f"{self.ledger:08x}"
        if create == "first" and self._marker.exists() and self._marker.read_text(encoding="utf-8").strip() != own:
            self.close()
            raise LedgerError(
                f"{self._name}: is another ledger than the one that was created here; open the right file, or remove "
                f"{self._marker.name} next to it if the ledger was moved here"
            )
        with suppress(OSError):  # without it, a missing ledger is not noticed, but this one is as good
            self._marker.write_text(f"{own}\n", encoding="utf-8")

    def _require_same_files(self) -> None:
        """Refuse to go on with files that were removed or replaced: nobody would find again what is written there."""
        for file, known in self._files.items():
            try:
                found = _identity(file)
            except OSError:
                found = None
            if found != known:
                raise LedgerError(
                    f"{file.name}: the file was removed or replaced while the ledger was open; stop the service, put "
                    "the file back or restore a back-up, and start again"
                )

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """See Database."""
        with self._lock, self._errors():
            self._require_same_files()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield Session(self._writer, self.placeholder)
                self._writer.execute("COMMIT")
                self._require_same_files()  # before anybody is answered
            except BaseException:
                with suppress(sqlite3.Error):  # the disk may have undone it already
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """See Database."""
        with self._errors():
            self._require_same_files()
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                yield Session(connection, self.placeholder)
            finally:
                connection.execute("ROLLBACK")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        self._opened.append(connection)
        # A commit is on the disk when it returns; otherwise a loss of power could undo the last ones.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _prepare(self, create: Creation, seed: int | None) -> None:
        (owner,) = self._writer.execute("PRAGMA application_id").fetchone()
        if owner == _OURS:
            return
        (tables,) = self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables or create == "never":
            raise LedgerError(f"{self._name}: is not a ledger of redenvelope; choose another file")
        self._writer.execute("PRAGMA journal_mode = WAL")
        with self.transaction() as session:
            if session.rows("SELECT 1 FROM sqlite_schema LIMIT 1"):
                return  # another process has created the tables meanwhile
            self._create_tables(session, seed)
            self._writer.execute(f"PRAGMA application_id = {_OURS}")


def _identity(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_dev, found.st_ino


class PostgresDatabase(Database):
    """A ledger in PostgreSQL: several processes may write, and the lock of the counters makes them take turns.

    A connection that was lost is opened again by the next transaction.
    """

    lock = "FOR UPDATE"
    placeholder = "%s"

    def __init__(self, url: str, create: Creation, seed: int | None = None) -> None:
        try:
            import psycopg
        except ImportError:
            raise LedgerError("a ledger in PostgreSQL needs psycopg; run: pip install 'redenvelope[serve]'") from None
        super().__init__("PostgreSQL", POSTGRES, psycopg.Error)
        self._url, self._driver = url, psycopg
        self._open(create, seed)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """See Database."""
        with self._lock, self._errors():
            if self._writer.closed:
                self._writer = self._connect()
            with self._writer.transaction():
                yield Session(self._writer, self.placeholder)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """See Database."""
        with self._errors():
            connection = self._reader()
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield Session(connection, self.placeholder)

    def _connect(self) -> Any:
        connection = self._driver.connect(
            self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS, application_name="redenvelope"
        )
        self._opened = [one for one in self._opened if not one.closed]
        self._opened.append(connection)
        # An acknowledged commit has to survive a crash of the server, whatever the server's default.
        connection.execute("SET synchronous_commit = on")
        connection.execute("SET client_min_messages = warning")
        return connection

    def _prepare(self, create: Creation, seed: int | None) -> None:
        if self._has_tables():
            return
        if create == "never":
            raise LedgerError(
                "PostgreSQL: there is no ledger in this database; create one with redenvelope ledger create"
            )
        with self.transaction() as session:
            session.rows("SELECT pg_advisory_xact_lock(?)", [_OURS])
            if not self._has_tables():  # another process may have created them meanwhile
                self._create_tables(session, seed)

    def _has_tables(self) -> bool:
        return self._writer.execute("SELECT to_regclass('counters')").fetchone()[0] is not None


FORMAT = 5
"""The version of the tables."""


def first_counters(seed: int | None) -> list[tuple[str, int]]:
    """The counters of a new ledger.

    Without a given seed, one is drawn. If every ledger had the same seed, users who got a rare action in one campaign
    would get it in the next one too, and the log could not tell the effect of the action from its users.
    """
    drawn = secrets.randbits(63) if seed is None else seed
    own = int(secrets.token_hex(4), 16)
    return [("format", FORMAT), ("ledger", own), ("seed", drawn), ("decision", 0), ("entry", 0), ("note", 0)]


@dataclass(frozen=True)
class Dialect:
    """How a database spells what the tables need."""

    integer: str
    real: str
    ending: str
    append_only: tuple[str, ...]
    """Statements after which entries can be added, but neither changed nor removed."""

    def statements(self) -> tuple[str, ...]:
        """Create the tables where they are missing."""
        tables = (table.format(integer=self.integer, real=self.real, ending=self.ending) for table in _TABLES)
        return (*tables, *self.append_only)


SQLITE = Dialect(
    integer="INTEGER",
    real="REAL",
    ending="STRICT",
    append_only=tuple(
        f"CREATE TRIGGER IF NOT EXISTS entries_{event.lower()} BEFORE {event} ON entries "
        "BEGIN SELECT RAISE(ABORT, 'entries are only ever added'); END"
        for event in ("UPDATE", "DELETE")
    ),
)
POSTGRES = Dialect(
    integer="BIGINT",
    real="DOUBLE PRECISION",
    ending="",
    append_only=(
        "CREATE OR REPLACE FUNCTION entries_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'entries are only ever added'; END $$",
        "CREATE OR REPLACE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries "
        "EXECUTE FUNCTION entries_append_only()",
    ),
)

_TABLES = (
    # One row each for the format, the ledger's own number, the seed of all draws, and the last number of a decision, an
    # entry and a price note. A writer locks these rows first, so that the writers of several processes take turns.
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value {integer} NOT NULL) {ending}",
    """CREATE TABLE IF NOT EXISTS budgets (
        budget TEXT PRIMARY KEY,
        place {integer} NOT NULL UNIQUE,
        total {integer} NOT NULL CHECK (total >= 0),
        held {integer} NOT NULL CHECK (held >= 0),
        spent {integer} NOT NULL CHECK (spent >= 0),
        expected_thousandths {integer} NOT NULL,
        closed_thousandths {integer} NOT NULL,
        user_cap {integer} CHECK (user_cap >= 0),
        measure TEXT NOT NULL,
        minor_units {integer} NOT NULL CHECK (minor_units >= 1),
        CONSTRAINT never_overspent CHECK (spent + held <= total)
    ) {ending}""",
    # Only for budgets with a cap per user.
    """CREATE TABLE IF NOT EXISTS user_balances (
        user_id TEXT NOT NULL,
        budget TEXT NOT NULL REFERENCES budgets,
        held {integer} NOT NULL CHECK (held >= 0),
        spent {integer} NOT NULL CHECK (spent >= 0),
        user_cap {integer} NOT NULL,
        PRIMARY KEY (user_id, budget),
        CONSTRAINT never_above_the_cap CHECK (spent + held <= user_cap)
    ) {ending}""",
    """CREATE TABLE IF NOT EXISTS decisions (
        decision {integer} PRIMARY KEY,
        request TEXT NOT NULL UNIQUE,
        fingerprint TEXT NOT NULL,
        user_id TEXT NOT NULL,
        step {integer} NOT NULL,
        action TEXT NOT NULL,
        is_number {integer} NOT NULL CHECK (is_number IN (0, 1)),
        propensity {real} NOT NULL CHECK (propensity > 0 AND propensity <= 1),
        probabilities TEXT NOT NULL,
        prices TEXT NOT NULL,
        plan TEXT NOT NULL,
        features TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('open', 'settled', 'released', 'expired')),
        decided_at {integer} NOT NULL,
        expires_at {integer} NOT NULL,
        public_id TEXT NOT NULL,
        reward {real},
        closed_at {integer},
        UNIQUE (user_id, step)
    ) {ending}""",
    "CREATE INDEX IF NOT EXISTS decisions_open ON decisions (expires_at) WHERE status = 'open'",
    """CREATE TABLE IF NOT EXISTS charges (
        decision {integer} NOT NULL REFERENCES decisions,
        budget TEXT NOT NULL REFERENCES budgets,
        held {integer} NOT NULL CHECK (held >= 0),
        open {integer} NOT NULL CHECK (open >= 0 AND open <= held),
        ceiling {integer} NOT NULL CHECK (ceiling >= held),
        spent {integer} NOT NULL CHECK (spent >= 0),
        expected_thousandths {integer} NOT NULL,
        PRIMARY KEY (decision, budget),
        CONSTRAINT never_above_the_ceiling CHECK (spent <= ceiling)
    ) {ending}""",
    # `decision` is 0 in entries that set a total.
    """CREATE TABLE IF NOT EXISTS entries (
        entry {integer} PRIMARY KEY,
        at {integer} NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('fund', 'hold', 'settle', 'release', 'expire')),
        decision {integer} NOT NULL,
        budget TEXT NOT NULL REFERENCES budgets,
        total_change {integer} NOT NULL,
        held_change {integer} NOT NULL,
        spent_change {integer} NOT NULL,
        expected_change {integer} NOT NULL
    ) {ending}""",
    """CREATE TABLE IF NOT EXISTS tallies (
        step {integer} NOT NULL,
        action TEXT NOT NULL,
        decided {integer} NOT NULL,
        settled {integer} NOT NULL,
        released {integer} NOT NULL,
        expired {integer} NOT NULL,
        reward {real} NOT NULL,
        spent {integer} NOT NULL,
        PRIMARY KEY (step, action)
    ) {ending}""",
    "CREATE TABLE IF NOT EXISTS price_notes (note {integer} PRIMARY KEY, at {integer} NOT NULL, content TEXT NOT NULL) "
    "{ending}",
)

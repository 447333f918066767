"""Where a ledger is stored: SQLite for one machine, PostgreSQL for several processes, with the same tables.

Both run the same statements, with `?` as placeholder. Balances are rows next to the events that explain them, and CHECK
constraints reject every transaction that would overspend.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import LedgerError, UsageError
from redenvelope.files import cache_folder
from redenvelope.ledger.tables import FORMAT, OLDER_FORMATS, POSTGRES, SQLITE, Dialect, first_counters, first_identity
from redenvelope.ledger.verification import postgres_damage, sqlite_damage

_CHUNK = 500
"""The most values in one statement."""
_OURS = 0x52456E76
"""'REnv': marks a SQLite file as a ledger, and is PostgreSQL's advisory lock while the tables are created."""
_EVER = (
    *("price_notes", "entries", "events", "tallies", "charges", "user_balances", "decisions", "budgets", "identity"),
    "counters",
)
"""The tables of all formats, in an order in which they can be dropped."""
_BUSY_SECONDS = 10.0
_CONNECT_SECONDS = 10


Access = Literal["read", "write", "first", "anew", "restore"]
"""How to open a ledger: `read` or `write` an existing one; create the `first` one if none was known here before, or
`anew` regardless; `restore` opens the place, with or without tables, to restore a ledger in one transaction."""


def open_database(url: str, access: Access, seed: int | None = None, formats: Sequence[int] = (FORMAT,)) -> Database:
    """The database at `sqlite:///PATH` or `postgresql://…`."""
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator and rest.startswith("/") and len(rest) > 1:
        return SqliteDatabase(rest[1:], access, seed, formats)
    if scheme in ("postgresql", "postgres") and separator:
        return PostgresDatabase(url, access, seed, formats)
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
        """All rows of a query with `IN ({})`; `values` may be more than fit into one statement."""
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            yield from self.rows(statement.format(placeholders(len(part))), part)

    def run(self, statement: str) -> None:
        """Run a statement that takes no values."""
        self._connection.execute(statement)

    def columns(self, table: str) -> list[str]:
        """The names of a table's columns."""
        return [str(one[0]) for one in self._connection.execute(f"SELECT * FROM {table} LIMIT 0").description]

    def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once per row of values."""
        if rows:
            with closing(self._connection.cursor()) as cursor:
                cursor.executemany(self._own(statement), rows)

    def _own(self, statement: str) -> str:
        return statement.replace("?", self._placeholder)


def placeholders(count: int) -> str:
    """So many placeholders, for `IN (…)` or `VALUES (…)`."""
    return ", ".join("?" * count)


class Database(ABC):
    """A stored ledger: one transaction writes at a time, while any number of threads read."""

    lock = ""
    """Appended to the first query of a transaction, so that other writers wait."""
    placeholder = "?"
    seed: int
    """The seed of all draws that are paid from this ledger."""
    ledger: str
    """The random number of this ledger, part of the id of every decision."""
    epoch: str
    """A random number in the same ids that changes whenever the ledger is restored."""
    format: int | None
    is_new: bool = False
    """Whether opening it created it."""
    _marker: Path | None = None
    """A file that remembers which ledger is stored here."""

    def __init__(self, name: str, dialect: Dialect, failures: type[Exception], formats: Sequence[int]) -> None:
        self.dialect, self._name, self.failures, self._formats = dialect, name, failures, formats
        self._lock = threading.Lock()
        self._local = threading.local()
        self._opened: list[Any] = []
        self._writer: Any = None

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Session]:
        """A transaction, committed durably at the end of the block, or rolled back."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Session]:
        """A read-only transaction that sees the state at one moment."""

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened:
            with suppress(self.failures):
                connection.close()
        self._opened.clear()

    @abstractmethod
    def damage(self) -> tuple[list[str], list[str]]:
        """Faults that the database finds in itself, and what could not be checked."""

    def clean_up(self) -> bool:
        """Remove overwritten content from the files, as far as possible here; returns whether nothing prevented it."""
        with self._lock, self._errors():
            done = [self._writer.execute(statement) for statement in self.dialect.cleaning]
            return not any(one.fetchone()[0] for one in done if one.description)

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def has_tables(self) -> bool:
        """Whether there is a ledger."""

    @abstractmethod
    def _prepare(self, access: Access, seed: int | None) -> None:
        """Create the tables if they are missing and may be created."""

    def _open(self, access: Access, seed: int | None) -> None:
        with self._errors():
            try:
                self._writer = self._connect()
                self._prepare(access, seed)
                if access != "restore" or self.has_tables():
                    self._read_counters()
            except BaseException:
                self.close()
                raise

    def _require_none_before(self, access: Access) -> None:
        """Refuse to create a ledger if none is to be created, or if one was known here before."""
        if access in ("read", "write"):
            raise LedgerError(
                f"{self._name}: there is no ledger; check the path, or create one with redenvelope ledger create"
            )
        if access == "first" and self._marker is not None and self._marker.exists():
            raise LedgerError(
                f"{self._name}: the ledger that was here is gone, and a new one would have all of its money again; "
                "restore it from a back-up (redenvelope ledger restore), or start anew with redenvelope ledger create"
            )

    def _remember(self, access: Access) -> None:
        """Write the marker file that remembers this ledger; with `first`, refuse if it remembers another one."""
        if self._marker is None:
            return
        if access == "first" and self._marker.exists():
            if self._marker.read_text(encoding="utf-8").strip() == self.ledger:
                return
            self.close()
            raise LedgerError(
                f"{self._name}: is another ledger than the one that was created here; open the right one, or remove "
                f"{self._marker} if the ledger was moved here"
            )
        with suppress(OSError):  # without the marker, only a missing ledger would go unnoticed
            self._marker.parent.mkdir(parents=True, exist_ok=True)
            self._marker.write_text(f"{self.ledger}\n", encoding="utf-8")

    def create_again(self, session: Session) -> None:
        """Create empty tables in place of existing ones, of whatever format."""
        for table in _EVER:
            session.run(f"DROP TABLE IF EXISTS {table}")
        for statement in (*self.dialect.dropped, *self.dialect.statements()):
            session.run(statement)

    def _create_tables(self, session: Session, seed: int | None) -> None:
        for statement in self.dialect.statements():
            session.run(statement)
        session.many("INSERT INTO counters VALUES (?, ?)", first_counters(seed))
        session.many("INSERT INTO identity VALUES (?, ?)", first_identity())
        self.is_new = True

    def _read_counters(self) -> None:
        session = Session(self._writer, self.placeholder)
        counters = dict(session.rows("SELECT name, value FROM counters"))
        self.format = counters.get("format")
        if self.format not in self._formats:
            found = "no format" if self.format is None else f"format {self.format}"
            older = self.format in OLDER_FORMATS
            remedy = "make a copy of it and run redenvelope ledger migrate" if older else "use the version that made it"
            raise LedgerError(f"{self._name}: the ledger has {found}, and this version reads {FORMAT}; {remedy}")
        if self.format == FORMAT:
            identity = dict(session.rows("SELECT name, value FROM identity"))
            self.seed, self.ledger, self.epoch = counters["seed"], identity["ledger"], identity["epoch"]

    def _reader(self) -> Any:
        """This thread's connection for reading."""
        connection = getattr(self._local, "connection", None)
        if connection is None or getattr(connection, "closed", False):
            connection = self._local.connection = self._connect()
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the database into LedgerErrors."""
        try:
            yield
        except self.failures as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise LedgerError(f"{self._name}: the ledger is not available ({reason})") from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise LedgerError(f"{self._name}: a value cannot be recorded ({error})") from error


class SqliteDatabase(Database):
    """A ledger in one file. Every commit is synced to disk; readers never wait for the writer.

    A hidden marker file next to it remembers that it exists: a ledger that has gone missing is not replaced by a new
    one with all of its money.
    """

    def __init__(self, path: str, access: Access, seed: int | None = None, formats: Sequence[int] = (FORMAT,)) -> None:
        super().__init__(path, SQLITE, sqlite3.Error, formats)
        self._path = Path(path).absolute()
        self._wal, shared = (self._path.with_name(f"{self._path.name}-{end}") for end in ("wal", "shm"))
        self._files: dict[Path, tuple[int, ...]] = {}
        self._marker = self._path.with_name(f".{self._path.name}.id")
        self._copy: TemporaryDirectory[str] | None = None
        self._how = "mode=rwc"
        if not self._path.is_file() or not self._path.stat().st_size:
            self._require_none_before(access)
        self._lost = lost_commits(self._wal)
        if access == "read":
            self._read_only()
        elif self._lost is not None:  # SQLite would delete what remains of them
            raise LedgerError(
                f"{path}: {self._lost}; restore a back-up, or save what can be read with redenvelope ledger backup and "
                "restore that"
            )
        self._open(access, seed)
        if access in ("first", "anew") and self.format == FORMAT:
            self._remember(access)
        for file in (self._path, self._wal, shared):
            with suppress(FileNotFoundError):
                self._files[file] = self._identity(file)

    def _read_only(self) -> None:
        """Choose how to read without writing: a lone file as immutable; a file in use with its log; or a copy of both
        if the folder is not writable."""
        if not self._wal.exists() or not self._wal.stat().st_size:
            self._how = "immutable=1"
        elif os.access(self._path.parent, os.W_OK) and os.access(self._path, os.W_OK):
            self._how = "mode=ro"
        else:
            self._copy, self._how = TemporaryDirectory(prefix="redenvelope-"), "mode=rw"
            for file in (self._path, self._wal):
                shutil.copyfile(file, Path(self._copy.name) / file.name)

    def close(self) -> None:
        """See Database."""
        super().close()
        if self._copy is not None:
            self._copy.cleanup()

    def _identity(self, file: Path) -> tuple[int, ...]:
        found = file.stat()
        changes = (found.st_mtime_ns, found.st_size) if self._how == "immutable=1" else ()
        return found.st_dev, found.st_ino, *changes

    def _require_same_files(self) -> None:
        """Refuse to go on with files that were removed or replaced, because anything written there would be lost."""
        for file, known in self._files.items():
            try:
                found = self._identity(file)
            except OSError:
                found = None
            if found != known and self._how == "immutable=1":
                raise LedgerError(f"{file.name}: somebody began to write to the ledger while it was read; try again")
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
                self._require_same_files()  # before any answer is given
            except BaseException:
                with suppress(sqlite3.Error):  # an error of the disk may have rolled it back already
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

    def damage(self) -> tuple[list[str], list[str]]:
        """See Database."""
        lost = self._lost or lost_commits(self._wal)
        found = [] if lost is None else [lost]
        with self.reading() as session:
            try:
                found += sqlite_damage(session)
            except sqlite3.Error as error:
                found.append(str(error))
        return found, []

    def _connect(self) -> sqlite3.Connection:
        path = self._path if self._copy is None else Path(self._copy.name) / self._path.name
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?{self._how}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        self._opened.append(connection)
        # A commit is on disk when it returns; otherwise a power failure could undo the last ones.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # nothing of a forgotten user stays in free pages
        return connection

    def has_tables(self) -> bool:
        """See Database."""
        return bool(self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])

    def create_again(self, session: Session) -> None:
        """See Database."""
        super().create_again(session)
        session.run(f"PRAGMA application_id = {_OURS}")

    def _prepare(self, access: Access, seed: int | None) -> None:
        (owner,) = self._writer.execute("PRAGMA application_id").fetchone()
        if owner == _OURS:
            if access != "read":
                self._writer.execute("PRAGMA journal_mode = WAL")  # a back-up has another mode
            return
        if self.has_tables() or access in ("read", "write"):
            what = "is not a ledger of redenvelope; choose another file"
            raise LedgerError(f"{self._name}: {self._lost or what}")
        self._writer.execute("PRAGMA journal_mode = WAL")
        if access == "restore":
            return
        with self.transaction() as session:
            if session.rows("SELECT 1 FROM sqlite_schema LIMIT 1"):
                return  # another process has created the tables in the meantime
            self._create_tables(session, seed)
            self._writer.execute(f"PRAGMA application_id = {_OURS}")


class PostgresDatabase(Database):
    """A ledger in PostgreSQL: several processes may write, and a row lock on the counters makes them take turns.

    A lost connection is opened again by the next transaction. A marker file in this machine's cache folder remembers
    that there is a ledger at a URL.
    """

    lock = "FOR UPDATE"
    placeholder = "%s"

    def __init__(self, url: str, access: Access, seed: int | None = None, formats: Sequence[int] = (FORMAT,)) -> None:
        try:
            import psycopg
        except ImportError:
            raise LedgerError("a ledger in PostgreSQL needs psycopg; run: pip install 'redenvelope[serve]'") from None
        super().__init__("PostgreSQL", POSTGRES, psycopg.Error, formats)
        self._url, self._driver = url, psycopg
        if (folder := cache_folder()) is not None:
            self._marker = folder / "ledgers" / sha256(_without_password(url).encode()).hexdigest()[:32]
        self._open(access, seed)
        if access in ("first", "anew") and self.format == FORMAT:
            self._remember(access)

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

    def damage(self) -> tuple[list[str], list[str]]:
        """See Database."""
        with self._errors():
            return postgres_damage(self._reader(), self.failures)

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

    def _prepare(self, access: Access, seed: int | None) -> None:
        if self.has_tables() or access == "restore":
            return
        self._require_none_before(access)
        with self.transaction() as session:
            session.rows("SELECT pg_advisory_xact_lock(?)", [_OURS])
            if not self.has_tables():  # another process may have created them in the meantime
                self._create_tables(session, seed)

    def has_tables(self) -> bool:
        """See Database."""
        return self._writer.execute("SELECT to_regclass('counters')").fetchone()[0] is not None


_HEADER, _FRAME = 32, 24
"""Bytes of the header of a write-ahead log, and of the header of each frame."""
_TRIES = 3


def lost_commits(path: Path) -> str | None:
    """A message if the write-ahead log of a SQLite database is damaged before valid frames, else None. SQLite takes
    such frames for the rest of an older log, and silently drops their commits."""
    if not path.exists():
        return None
    found = None
    for _ in range(_TRIES):  # another process may be writing
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
    """The first unreadable frame, and how many frames of the same log follow it up to a commit; None if none do."""
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
    """SQLite's two checksums. Each word is added to the last two sums, so that it has a Fibonacci number as weight."""
    words = np.frombuffer(content, dtype=f"{order}u4").astype(np.uint32)
    count, (first, second) = len(words), sums
    weights = _fibonacci(count + 1)
    before, last = int(words[:-1] @ weights[count - 1 : 0 : -1]), int(words @ weights[count:0:-1])
    older, old, new = (int(weight) for weight in weights[count - 1 :])
    return (before + old * second + older * first) & 0xFFFFFFFF, (last + new * second + old * first) & 0xFFFFFFFF


@cache
def _fibonacci(most: int) -> NDArray[np.uint32]:
    """The Fibonacci numbers 0 to `most`, modulo 2^32."""
    found = [0, 1]
    while len(found) <= most:
        found.append((found[-1] + found[-2]) & 0xFFFFFFFF)
    return np.array(found, dtype=np.uint32)

"""The ledger: one small interface, two databases behind it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from redenvelope.errors import LedgerError, UsageError
from redenvelope.ledger.book import Book, decided_rows
from redenvelope.ledger.commands import Result, execute
from redenvelope.ledger.database import chunks, marks
from redenvelope.ledger.records import Balance, Command, Decided, PastStep, Status, Tally


class Ledger(Protocol):
    """Money that is held, settled and given back. `apply` belongs to one thread at a time; reads may be another's."""

    seed: int
    """Of all draws that are paid from it: its own, so that no two campaigns draw alike, and kept for restarts."""

    def apply(self, commands: Sequence[Command]) -> list[Result]:
        """Carry commands out in one durable transaction, each with its own answer."""
        ...

    def balances(self) -> tuple[Balance, ...]:
        """Every budget now, in the order that they were funded in."""
        ...

    def pasts(self, users: Sequence[str]) -> dict[str, list[PastStep]]:
        """The earlier decisions for users, by rising step; who has none is left out."""
        ...

    def tallies(self) -> list[Tally]:
        """Decisions by step and action."""
        ...

    def decided(self, after: int = 0, most: int = 1_000) -> list[Decided]:
        """Decisions with numbers above `after`, in their order."""
        ...

    def price_notes(self, most: int = 1_000) -> list[tuple[int, str]]:
        """The last changes of the price (when, and what), oldest first."""
        ...

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, as they are committed."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


class Database(Protocol):
    """What the two databases do in ways of their own."""

    lock: str
    """Ends the first query of a transaction: it makes other writers wait."""
    seed: int
    """As it was made with."""

    def transaction(self) -> Any:
        """A block whose session is committed durably at its end, or undone."""
        ...

    def reading(self) -> Any:
        """A block whose session sees what is committed."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class SqlLedger:
    """A ledger in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.seed = database.seed

    def apply(self, commands: Sequence[Command]) -> list[Result]:
        """See Ledger."""
        with self._database.transaction() as session:
            return execute(Book.open(session, self._database.lock), commands)

    def balances(self) -> tuple[Balance, ...]:
        """See Ledger."""
        with self._database.reading() as session:
            return Book.open(session, "").balances()

    def pasts(self, users: Sequence[str]) -> dict[str, list[PastStep]]:
        """See Ledger."""
        found: dict[str, dict[int, PastStep]] = {}
        with self._database.reading() as session:
            for some in chunks(list(dict.fromkeys(users))):
                for row in session.rows(_PASTS.format(marks(len(some))), some):
                    steps = found.setdefault(row[0], {})
                    past = steps.get(row[1]) or PastStep(row[1], row[2], Status(row[3]), row[4], {})
                    if row[5] is not None:
                        past = PastStep(
                            past.step, past.action, past.status, past.reward, {**past.spent, row[5]: row[6]}
                        )
                    steps[row[1]] = past
        return {user: list(steps.values()) for user, steps in found.items()}

    def tallies(self) -> list[Tally]:
        """See Ledger."""
        columns = "step, action, decided, settled, released, expired, reward, spent"
        return [Tally(*row) for row in self.query(f"SELECT {columns} FROM tallies ORDER BY step, action")]

    def decided(self, after: int = 0, most: int = 1_000) -> list[Decided]:
        """See Ledger."""
        with self._database.reading() as session:
            cases = decided_rows(session, "decision > ? ORDER BY decision LIMIT ?", [after, most])
        return [case.now() for case in cases]

    def price_notes(self, most: int = 1_000) -> list[tuple[int, str]]:
        """See Ledger."""
        rows = self.query("SELECT at, content FROM price_notes ORDER BY note DESC LIMIT ?", [most])
        return [(int(at), str(content)) for at, content in reversed(rows)]

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """See Ledger."""
        with self._database.reading() as session:
            rows: list[tuple[Any, ...]] = session.rows(statement, values)
            return rows

    def close(self) -> None:
        """See Ledger."""
        self._database.close()


_PASTS = (
    "SELECT user_id, step, action, status, reward, budget, spent FROM decisions "
    "LEFT JOIN charges ON charges.decision = decisions.decision WHERE user_id IN ({}) ORDER BY user_id, step, budget"
)


def open_ledger(url: str, create: bool = True, seed: int | None = None) -> Ledger:
    """The ledger at `sqlite:///PATH` or `postgresql://…`; without `create` it has to be there.

    A new one draws its seed, or takes the one that is given; with another than it has, a ledger is not opened.
    """
    ledger = SqlLedger(_database(url, create, seed))
    if seed not in (None, ledger.seed):
        ledger.close()
        raise UsageError(
            f"the ledger draws with a seed of its own, and not with {seed}; leave the seed out, or begin another ledger"
        )
    return ledger


def _database(url: str, create: bool, seed: int | None) -> Database:
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator and rest.startswith("/") and len(rest) > 1:
        from redenvelope.ledger.sqlite import SqliteDatabase

        return SqliteDatabase(rest[1:], create, seed)
    if scheme in ("postgresql", "postgres") and separator:
        try:
            from redenvelope.ledger.postgres import PostgresDatabase
        except ImportError:
            raise LedgerError("a ledger in PostgreSQL needs psycopg; run: pip install 'redenvelope[serve]'") from None
        return PostgresDatabase(url, create, seed)
    raise UsageError(
        f"{_without_password(url)!r} is no ledger; write sqlite:///PATH (four slashes before an absolute path) or "
        "postgresql://USER@HOST/DATABASE"
    )


def _without_password(url: str) -> str:
    before, at, after = url.rpartition("@")
    return f"…@{after}" if at else before or after


# Group commit: commands that wait at the same time share one transaction, so that one sync of the disk serves many.


_MOST = 512
"""Commands of one transaction: more would make everybody wait for the last."""


class _Waiting(NamedTuple):
    commands: Sequence[Command]
    answer: Future[list[Result]]


class Writer:
    """One thread that writes to a ledger. An answer comes when what it says is durable, never before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, commands: Sequence[Command]) -> Future[list[Result]]:
        """Have commands carried out, all in one transaction; a LedgerError in the answer means: none of them."""
        if self._closed:
            raise LedgerError("the ledger is being closed")
        answer: Future[list[Result]] = Future()
        answer.set_running_or_notify_cancel()  # who stops waiting must not stop the writing
        self._waiting.put(_Waiting(commands, answer))
        return answer

    def close(self) -> None:
        """Write what waits, and end."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        ending = False
        while not ending:
            first = self._waiting.get()
            group = [] if first is None else [first]
            ending = first is None
            count = sum(len(one.commands) for one in group)
            while count < _MOST and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    ending = True
                    continue
                group.append(more)
                count += len(more.commands)
            if group:
                self._commit(group)

    def _commit(self, group: Sequence[_Waiting]) -> None:
        try:
            results = self._ledger.apply([command for one in group for command in one.commands])
        except BaseException as error:  # whatever it is, whoever waits has to hear of it
            for one in group:
                one.answer.set_exception(error)
            return
        start = 0
        for one in group:
            one.answer.set_result(results[start : start + len(one.commands)])
            start += len(one.commands)


# Time for a ledger: milliseconds since 1970 that never run backwards while a process lives.


Clock = Callable[[], int]
"""Milliseconds since 1970."""


def steady_clock() -> Clock:
    """A clock that is set once, when it is made, and then runs by itself.

    Somebody who sets the machine's clock changes no hold of a running process. After a restart holds may expire earlier
    or later than they said; money is safe in both cases, because a late outcome asks for money anew.
    """
    started_at, began = time.time_ns() // 1_000_000, time.monotonic_ns()
    return lambda: started_at + (time.monotonic_ns() - began) // 1_000_000

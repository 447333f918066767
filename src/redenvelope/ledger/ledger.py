"""The ledger of a campaign: money is held for decisions, settled by outcomes, and never spent beyond the total.

`Ledger` executes commands and answers queries; `Writer` is the thread through which a service sends its commands, with
group commit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec

from redenvelope.errors import LedgerError, UsageError
from redenvelope.ledger.database import Database, Session, open_database
from redenvelope.ledger.holds import Result, execute
from redenvelope.ledger.records import Balance, Change, Command, Decided, PastStep, Status, Tally
from redenvelope.ledger.transaction import Transaction, decision_states, decisions_where
from redenvelope.ledger.verification import Verification as Verification
from redenvelope.ledger.verification import verify as verify

PLAN_NOTES = "SELECT content FROM events WHERE decision = 0 AND kind = 'plan' ORDER BY event"
_PROBE = (
    "INSERT INTO counters VALUES ('probe', 1) ON CONFLICT (name) "
    "DO UPDATE SET value = CASE counters.value WHEN 1 THEN 2 ELSE 1 END"
)
"""Writes a row that nothing else reads; its value changes every time, so that there is something to write."""
_MOST_COMMANDS = 512
"""The most commands in one transaction; with more, every caller would wait for the last one."""


class Ledger:
    """A ledger on a database. One thread at a time calls `apply`; any thread may read."""

    seed: int
    """The seed of all draws: it differs between campaigns, and stays the same after a restart."""

    def __init__(self, database: Database) -> None:
        self.database, self.seed = database, database.seed
        self._last_event = 0

    def apply(self, commands: Sequence[Command]) -> list[Result]:
        """Execute commands in one durable transaction, each with its own result."""
        with self.database.transaction() as session:
            transaction = self._begin(session, self.database.lock)
            if transaction.last["event"] < self._last_event:
                raise LedgerError("an older copy of the ledger is in its place; stop the service and put it back")
            results = execute(transaction, commands)
        self._last_event = transaction.last["event"]
        return results

    def probe(self) -> None:
        """Try a durable write."""
        with self.database.transaction() as session:
            self._begin(session)
            session.run(_PROBE)

    def balances(self) -> tuple[Balance, ...]:
        """The current state of every budget, in the order in which they were funded."""
        with self.database.reading() as session:
            return self._begin(session).balances()

    def _begin(self, session: Session, lock: str = "") -> Transaction:
        """Begin a transaction; raises if the ledger was replaced or restored while it was open."""
        transaction = Transaction.begin(self.database, session, lock)
        if transaction.identity["ledger"] != self.database.ledger:
            raise LedgerError("the ledger was replaced by another one while it was open; stop the service")
        if transaction.identity["epoch"] != self.database.epoch:
            raise LedgerError("the ledger was restored from a back-up while it was open; restart the service")
        return transaction

    def now(self) -> int:
        """The time of the database, in milliseconds since 1970."""
        return int(self._rows(f"SELECT {self.database.dialect.clock}")[0][0])

    def identity(self) -> dict[str, str]:
        """The identity of the ledger and its campaign, and the last event with the head of the chain."""
        with self.database.reading() as session:
            found = self._begin(session)
        return {**found.identity, "head": found.chain, "event": str(found.last["event"])}

    def pasts(self, users: Sequence[str], requests: Sequence[str] = ()) -> tuple[dict[str, list[PastStep]], set[str]]:
        """The earlier decisions of users, in order of their steps (users without any are left out), and those of the
        requests that were decided before, both at the same moment."""
        query = (
            "SELECT user_id, step, action, status, reward, budget, spent FROM decisions LEFT JOIN charges "
            "ON charges.decision = decisions.decision WHERE user_id IN ({}) ORDER BY user_id, step, budget"
        )
        found: dict[str, dict[int, PastStep]] = {}
        with self.database.reading() as session:
            for user, step, action, status, reward, budget, spent in session.rows_in(query, list(dict.fromkeys(users))):
                steps = found.setdefault(user, {})
                before = steps[step].spent if step in steps else {}
                charged = {} if budget is None else {budget: spent}
                steps[step] = PastStep(step, action, Status(status), reward, {**before, **charged})
            known = {row[0] for row in session.rows_in("SELECT request FROM decisions WHERE request IN ({})", requests)}
        return {user: list(steps.values()) for user, steps in found.items()}, known

    def tallies(self) -> list[Tally]:
        """Counts of decisions by step and action."""
        columns = "step, action, decided, settled, released, expired, reward, spent"
        return [Tally(*row) for row in self._rows(f"SELECT {columns} FROM tallies ORDER BY step, action")]

    def decided(self, after: int = 0, most: int = 1_000) -> list[Decided]:
        """Decisions with numbers above `after`, in their order."""
        query = decisions_where("decision > ? ORDER BY decision LIMIT ?")
        with self.database.reading() as session:
            return [state.now() for state in decision_states(session, session.rows(query, [after, most]))]

    def changes(self, after: int = 0, most: int = 1_000) -> list[Change]:
        """Changes of decisions, forgotten users and restores in the events after number `after`, in order."""
        query = (
            "SELECT event, at, kind, events.reward, content, events.decision, public_id FROM events "
            "LEFT JOIN decisions ON decisions.decision = events.decision WHERE event > ? AND "
            "(public_id IS NOT NULL OR kind = 'forget' OR kind = 'restore') ORDER BY event LIMIT ?"
        )
        with self.database.reading() as session:
            rows = session.rows(query, [after, most])
            new = [row[5] for row in rows if row[2] == "decide"]
            states = decision_states(session, session.rows_in(decisions_where("decision IN ({})"), new))
            forgotten = [one for row in rows if row[2] == "forget" for one in msgspec.json.decode(row[4])["decisions"]]
            ids = dict(session.rows_in("SELECT decision, public_id FROM decisions WHERE decision IN ({})", forgotten))
        decided = {one.record.decision: one.record for one in states}
        found = []
        for event, at, kind, reward, content, number, public_id in rows:
            if kind in ("forget", "restore"):
                said = msgspec.json.decode(content)
                told = {"decision_ids": [ids[one] for one in said["decisions"]]} if kind == "forget" else {}
                content = msgspec.json.encode(told or {"new_epoch": said["epoch"]}).decode()
            of = decided[number] if kind == "decide" else None
            found.append(Change(event, at, kind, public_id or "", reward, content, of))
        return found

    def last_shared(self, epoch: str) -> int | None:
        """The last event that a reader of an earlier epoch shares with this ledger, 0 if none; None for this epoch."""
        with self.database.reading() as session:
            now = self._begin(session)
            if epoch == now.identity["epoch"]:
                return None
            query = (
                "SELECT event, content FROM events WHERE kind IN ('create', 'restore') AND decision = 0 ORDER BY event"
            )
            began = [(event, msgspec.json.decode(content)["epoch"]) for event, content in session.rows(query)]
        later = [event for (event, _), (_, before) in zip(began[1:], began, strict=False) if before == epoch]
        return later[0] - 1 if later else 0

    def unpaid(self) -> dict[str, tuple[int, int]]:
        """By budget: open decisions whose outcome was refused because money was missing, and what is held for them."""
        query = (
            "SELECT budget, count(*), sum(open) FROM decisions JOIN charges ON charges.decision = decisions.decision "
            "WHERE status = 'open' AND reward IS NOT NULL AND open > 0 GROUP BY budget"
        )
        return {budget: (int(count), int(held)) for budget, count, held in self._rows(query)}

    def plan_notes(self) -> list[str]:
        """Descriptions (JSON) of the plans that have decided, oldest first."""
        return [row[0] for row in self._rows(PLAN_NOTES)]

    def price_notes(self, most: int = 1_000) -> list[tuple[int, str]]:
        """The last changes of the prices (time and content), oldest first."""
        query = "SELECT at, content FROM events WHERE decision = 0 AND kind = 'price' ORDER BY event DESC LIMIT ?"
        rows = self._rows(query, [most])
        return [(int(at), str(content)) for at, content in reversed(rows)]

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.database.reading() as session:
            return session.rows(statement, values)


def open_ledger(url: str, create: bool = True, seed: int | None = None, read_only: bool = False) -> Ledger:
    """Open the ledger at `sqlite:///PATH` or `postgresql://…`; it must exist if `create` is false or to only read it.

    A new ledger draws a seed or takes the given one; an existing ledger refuses a seed other than its own. If a SQLite
    ledger has gone missing, only `create_ledger` makes a new one in its place.
    """
    ledger = Ledger(open_database(url, "read" if read_only else "first" if create else "write", seed))
    if seed not in (None, ledger.seed):
        ledger.close()
        raise UsageError(
            f"the ledger has a seed of its own, which is not {seed}; leave the seed out, or use a new ledger"
        )
    return ledger


def create_ledger(url: str, seed: int | None = None) -> Ledger:
    """Create a ledger where there is none, even in place of one that has gone missing."""
    ledger = Ledger(open_database(url, "anew", seed))
    if not ledger.database.is_new:
        ledger.close()
        raise UsageError("there is a ledger already; serve opens it, or choose another URL for a new one")
    return ledger


class _Submitted(NamedTuple):
    commands: Sequence[Command]
    answer: Future[list[Result]]


class Writer:
    """The one thread that writes to a ledger, with group commit.

    Commands that are submitted at the same time share a transaction, so that one sync of the disk serves many. An
    answer is given only after its transaction is durable.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._submitted: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, commands: Sequence[Command]) -> Future[list[Result]]:
        """Execute commands in one transaction; a LedgerError in the future means that none was executed."""
        if self._closed:
            raise LedgerError("the ledger is being closed")
        answer: Future[list[Result]] = Future()
        answer.set_running_or_notify_cancel()  # a caller that stops waiting must not cancel the write
        self._submitted.put(_Submitted(commands, answer))
        return answer

    def close(self) -> None:
        """Execute what was submitted, and stop the thread."""
        self._closed = True
        self._submitted.put(None)
        self._thread.join()

    def _run(self) -> None:
        ending = False
        while not ending:
            group: list[_Submitted] = []
            while True:
                one = self._submitted.get()
                if one is None:
                    ending = True
                else:
                    group.append(one)
                if self._submitted.empty() or sum(len(one.commands) for one in group) >= _MOST_COMMANDS:
                    break
            if group:
                self._commit(group)

    def _commit(self, group: Sequence[_Submitted]) -> None:
        try:
            results = iter(self._ledger.apply([command for one in group for command in one.commands]))
        except BaseException as error:  # every caller must learn of it, whatever it is
            for one in group:
                one.answer.set_exception(error)
            return
        for one in group:
            one.answer.set_result([next(results) for _ in one.commands])


Clock = Callable[[], int]
"""Milliseconds since 1970."""


def steady_clock(now: int | None = None) -> Clock:
    """A clock that is set once, from the database, and never runs backwards.

    Setting the machine's clock changes no hold of a running process. A hold expires only when both this clock and the
    database's say so, so a process whose clock is ahead ends nothing early.
    """
    started_at, began = time.time_ns() // 1_000_000 if now is None else now, time.monotonic_ns()
    return lambda: started_at + (time.monotonic_ns() - began) // 1_000_000

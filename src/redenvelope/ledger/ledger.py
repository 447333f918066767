"""The ledger of a campaign: money that is held for decisions, settled by outcomes, and never spent beyond the total.

`Ledger` executes commands and answers questions; `Writer` is the thread through which a service sends its commands;
`verify` recomputes every balance from the entries.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from redenvelope.errors import LedgerError, UsageError
from redenvelope.ledger.database import Database, Session, open_database
from redenvelope.ledger.holds import Result, execute
from redenvelope.ledger.records import Balance, Change, Command, Decided, PastStep, Status, Tally
from redenvelope.ledger.transaction import Transaction, decision_states, decisions_where

PLAN_NOTES = "SELECT content FROM events WHERE decision = 0 AND kind = 'plan' ORDER BY event"
_MOST_COMMANDS = 512
"""Commands in one transaction: with more, everybody would wait for the last one."""


class Ledger:
    """Money that is held, settled, released and expired. One thread at a time calls `apply`; any thread reads."""

    seed: int
    """The seed of all draws paid from this ledger: campaigns draw independently, and a restart draws as before."""

    def __init__(self, database: Database) -> None:
        self.database, self.seed = database, database.seed

    def apply(self, commands: Sequence[Command]) -> list[Result]:
        """Execute commands in one durable transaction, each with its own result."""
        with self.database.transaction() as session:
            return execute(self._begin(session, self.database.lock), commands)

    def balances(self) -> tuple[Balance, ...]:
        """Every budget now, in the order in which they were funded."""
        with self.database.reading() as session:
            return self._begin(session).balances()

    def _begin(self, session: Session, lock: str = "") -> Transaction:
        """Begin a transaction, unless the tables are now those of another ledger."""
        transaction = Transaction.begin(self.database, session, lock)
        if transaction.identity["ledger"] != self.database.ledger:
            raise LedgerError("the ledger was replaced by another one while it was open; stop the service")
        if transaction.identity["epoch"] != self.database.epoch:
            raise LedgerError("the ledger was restored from a back-up while it was open; restart the service")
        return transaction

    def pasts(self, users: Sequence[str], requests: Sequence[str] = ()) -> tuple[dict[str, list[PastStep]], set[str]]:
        """The earlier decisions of users, by rising step, where users without one are left out; and those of the
        requests that were decided before, as of the same moment."""
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
        """What happened to decisions after a number of an event, in its order."""
        query = (
            "SELECT event, at, kind, events.reward, content, events.decision, public_id FROM events JOIN decisions "
            "ON decisions.decision = events.decision WHERE event > ? AND events.decision > 0 ORDER BY event LIMIT ?"
        )
        with self.database.reading() as session:
            rows = session.rows(query, [after, most])
            new = [row[5] for row in rows if row[2] == "decide"]
            states = decision_states(session, session.rows_in(decisions_where("decision IN ({})"), new))
        decided = {one.record.decision: one.record for one in states}
        return [
            Change(event, at, kind, public_id, reward, content, decided[number] if kind == "decide" else None)
            for event, at, kind, reward, content, number, public_id in rows
        ]

    def plan_notes(self) -> list[str]:
        """What the plans are that have decided, oldest first; JSON."""
        return [row[0] for row in self._rows(PLAN_NOTES)]

    def price_notes(self, most: int = 1_000) -> list[tuple[int, str]]:
        """The last changes of the price (time and content), oldest first."""
        query = "SELECT at, content FROM events WHERE decision = 0 AND kind = 'price' ORDER BY event DESC LIMIT ?"
        rows = self._rows(query, [most])
        return [(int(at), str(content)) for at, content in reversed(rows)]

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.database.reading() as session:
            return session.rows(statement, values)


def open_ledger(url: str, create: bool = True, seed: int | None = None) -> Ledger:
    """Open the ledger at `sqlite:///PATH` or `postgresql://…`; without `create` it must exist.

    A new ledger draws its seed, or takes the given one; an existing ledger refuses a seed other than its own. Where a
    ledger in SQLite has gone missing, no new one is made in its place, unless by `create_ledger`.
    """
    ledger = Ledger(open_database(url, "first" if create else "never", seed))
    if seed not in (None, ledger.seed):
        ledger.close()
        raise UsageError(
            f"the ledger has a seed of its own, which is not {seed}; leave the seed out, or use a new ledger"
        )
    return ledger


def create_ledger(url: str, seed: int | None = None) -> Ledger:
    """Create a ledger where there is none, also in the place of one that has gone missing."""
    ledger = Ledger(open_database(url, "anew", seed))
    if not ledger.database.is_new:
        ledger.close()
        raise UsageError("there is a ledger already; serve opens it, or choose another URL for a new one")
    return ledger


class _Submitted(NamedTuple):
    commands: Sequence[Command]
    answer: Future[list[Result]]


class Writer:
    """The one thread that writes to a ledger: group commit.

    Commands that are submitted at the same time share a transaction, so that one sync of the disk serves many. An
    answer is given once it is durable, never before.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._submitted: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, commands: Sequence[Command]) -> Future[list[Result]]:
        """Have commands executed in one transaction; a LedgerError in the answer means that none of them was."""
        if self._closed:
            raise LedgerError("the ledger is being closed")
        answer: Future[list[Result]] = Future()
        answer.set_running_or_notify_cancel()  # a caller that stops waiting must not stop the writing
        self._submitted.put(_Submitted(commands, answer))
        return answer

    def close(self) -> None:
        """Execute what was submitted, and end."""
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
        except BaseException as error:  # every caller has to hear of it, whatever it is
            for one in group:
                one.answer.set_exception(error)
            return
        for one in group:
            one.answer.set_result([next(results) for _ in one.commands])


Clock = Callable[[], int]
"""Milliseconds since 1970."""


def steady_clock() -> Clock:
    """A clock that is set once, when the process starts, and never runs backwards.

    Setting the machine's clock changes no hold of a running process. After a restart holds may expire earlier or later
    than announced. Money is safe in both cases, because a late outcome has to be paid from what is left.
    """
    started_at, began = time.time_ns() // 1_000_000, time.monotonic_ns()
    return lambda: started_at + (time.monotonic_ns() - began) // 1_000_000


# Verification: every balance recomputed from the entries by queries of their own, and every difference reported.

_MOST_SHOWN = 20


@dataclass(frozen=True)
class Difference:
    """A row of the ledger that contradicts the entries."""

    what: str
    """Which balance of what."""
    books: str
    """What the row says."""
    entries: str
    """What the entries add up to."""

    def __str__(self) -> str:
        return f"{self.what}: the balance says {self.books}, the entries say {self.entries}"


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    decisions: int
    entries: int
    budgets: tuple[dict[str, Any], ...]
    """Balances by the entries."""
    differences: tuple[Difference, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "status": "sound" if self.is_sound else "different",
            "decisions": self.decisions,
            "entries": self.entries,
            "budgets": list(self.budgets),
            "differences": [{"what": one.what, "books": one.books, "entries": one.entries} for one in self.differences],
        }


class _Check(NamedTuple):
    """A query that finds differences: two columns that name it, what the balance says, what the entries say."""

    what: str
    query: str


_SUMS = """SELECT budget AS own, sum(total_change) AS total, sum(held_change) AS held, sum(spent_change) AS spent,
    sum(expected_change) AS expected, -sum(CASE WHEN expected_change < 0 THEN expected_change ELSE 0 END) AS closed
    FROM entries GROUP BY budget"""
_OF_DECISIONS = """SELECT decision AS number, budget AS own, sum(held_change) AS held, sum(spent_change) AS spent
    FROM entries WHERE decision > 0 GROUP BY decision, budget"""
_OF_USERS = f"""SELECT user_id AS who, own, sum(held) AS held, sum(spent) AS spent
    FROM ({_OF_DECISIONS}) AS sums JOIN decisions ON decision = number GROUP BY user_id, own"""
_RUNNING = """SELECT entry, budget, sum(total_change) OVER before AS total,
    sum(held_change + spent_change) OVER before AS committed
    FROM entries WINDOW before AS (PARTITION BY budget ORDER BY entry)"""


def _tally_query() -> str:
    names = ("decided", "settled", "released", "expired")
    stored = " || ', ' || ".join(f"tallies.{name} || ' {name}'" for name in names)
    found = " || ', ' || ".join(f"coalesce(counted.{name}, 0) || ' {name}'" for name in names)
    counts = ", ".join(f"sum(CASE WHEN status = '{name}' THEN 1 ELSE 0 END) AS {name}" for name in names[1:])
    differs = " OR ".join(f"tallies.{name} <> coalesce(counted.{name}, 0)" for name in names)
    return (
        f"SELECT tallies.step, tallies.action, {stored}, {found} FROM tallies LEFT JOIN "
        f"(SELECT step, action, count(*) AS decided, {counts} FROM decisions GROUP BY step, action) AS counted "
        f"ON counted.step = tallies.step AND counted.action = tallies.action WHERE {differs}"
    )


_CHECKS = (
    _Check(
        "budget {0}, {1}",
        " UNION ALL ".join(
            f"SELECT budget, '{name}', budgets.{column}, coalesce(sums.{name}, 0) FROM budgets "
            f"LEFT JOIN ({_SUMS}) AS sums ON own = budget WHERE budgets.{column} <> coalesce(sums.{name}, 0)"
            for name, column in (
                ("total", "total"),
                ("held", "held"),
                ("spent", "spent"),
                ("expected", "expected_thousandths"),
                ("closed", "closed_thousandths"),
            )
        ),
    ),
    _Check(
        "decision {0}, charge to {1}",
        f"SELECT charges.decision, budget, charges.open || ' held, ' || charges.spent || ' spent', "
        f"coalesce(sums.held, 0) || ' held, ' || coalesce(sums.spent, 0) || ' spent' FROM charges "
        f"LEFT JOIN ({_OF_DECISIONS}) AS sums ON number = charges.decision AND own = budget "
        "WHERE open <> coalesce(sums.held, 0) OR charges.spent <> coalesce(sums.spent, 0)",
    ),
    _Check(
        "entries of decision {0} with {1}",
        f"SELECT number, own, 'no such charge', sums.held || ' held' FROM ({_OF_DECISIONS}) AS sums "
        "LEFT JOIN charges ON decision = number AND budget = own WHERE decision IS NULL",
    ),
    _Check(
        "user {0} of {1}",
        "SELECT user_id, budget, user_balances.held || ' held, ' || user_balances.spent || ' spent', "
        "coalesce(sums.held, 0) || ' held, ' || coalesce(sums.spent, 0) || ' spent' FROM user_balances "
        f"LEFT JOIN ({_OF_USERS}) AS sums ON who = user_id AND own = budget "
        "WHERE user_balances.held <> coalesce(sums.held, 0) OR user_balances.spent <> coalesce(sums.spent, 0)",
    ),
    _Check(
        "user {0} of {1}",
        f"SELECT who, own, 'no balance', sums.held || ' held, ' || sums.spent || ' spent' FROM ({_OF_USERS}) AS sums "
        "JOIN budgets ON budgets.budget = own LEFT JOIN user_balances ON user_id = who AND user_balances.budget = own "
        "WHERE budgets.user_cap IS NOT NULL AND user_id IS NULL AND sums.held + sums.spent > 0",
    ),
    _Check(
        "decision {0} ({1})",
        "SELECT decisions.decision, status, CASE WHEN status = 'open' THEN 'a date of closing' ELSE 'money held' END, "
        "'closed decisions hold nothing, open ones are not closed' FROM decisions "
        "LEFT JOIN charges ON charges.decision = decisions.decision "
        "WHERE (status <> 'open' AND open > 0) OR ((status = 'open') <> (closed_at IS NULL))",
    ),
    _Check(
        "budget {0}, after entry {1}",
        f"SELECT budget, entry, total || ' in total', committed || ' spent and held' FROM ({_RUNNING}) AS running "
        "WHERE committed > total OR committed < 0",
    ),
    _Check("tally of step {0}, action {1}", _tally_query()),
    _Check(
        "counter of {0}{1}",
        "SELECT 'decisions', '', value, most FROM counters, "
        "(SELECT coalesce(max(decision), 0) AS most FROM decisions) AS numbers "
        "WHERE name = 'decision' AND value < most UNION ALL SELECT 'entries', '', value, number FROM counters, "
        "(SELECT count(*) AS number FROM entries) AS numbers WHERE name = 'entry' AND value <> number "
        "UNION ALL SELECT 'events', '', value, number FROM counters, "
        "(SELECT count(*) AS number FROM events) AS numbers WHERE name = 'event' AND value <> number",
    ),
)


def verify(ledger: Ledger) -> Verification:
    """Compare every balance with the entries, and check that no budget was overspent after any entry."""
    with ledger.database.reading() as session:
        differences = tuple(
            Difference(check.what.format(row[0], row[1]), str(row[2]), str(row[3]))
            for check in _CHECKS
            for row in session.rows(f"{check.query} LIMIT {_MOST_SHOWN}")
        )
        ((decisions, entries),) = session.rows(
            "SELECT (SELECT count(*) FROM decisions), (SELECT count(*) FROM entries)"
        )
        sums = session.rows(f"{_SUMS} ORDER BY budget")
    budgets = [{"budget": row[0], "total": int(row[1]), "held": int(row[2]), "spent": int(row[3])} for row in sums]
    return Verification(decisions, entries, tuple(budgets), differences)

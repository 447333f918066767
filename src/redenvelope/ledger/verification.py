"""Verification: the state of a ledger is computed again from its events, and every row that differs is reported.

The hash chain is recomputed over complete rows, balances and states are rebuilt from the events, and the database
checks its own pages, tables and constraints. Rewriting a ledger together with its chain, or removing its last events,
can only be detected with a head of the chain that was stored elsewhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import fsum, isclose
from typing import TYPE_CHECKING, Any

import msgspec

from redenvelope.ledger.chain import CHARGED, LASTING, PERSONAL, forgotten, next_link, personal_digest, seed_digest
from redenvelope.ledger.records import LARGEST_SUM, Status
from redenvelope.ledger.tables import FORMAT, IDENTITY, POSTGRES, SQLITE

if TYPE_CHECKING:
    from redenvelope.ledger.database import Session
    from redenvelope.ledger.ledger import Ledger

_UNREADABLE = (
    *(msgspec.MsgspecError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""Errors that content written by something else than a ledger may raise."""
_MOST_SHOWN = 200
_MOST_FAULTS = 20
_CHUNK = 10_000
"""Events that are read at a time."""
_STATUSES = tuple(Status)
_OUTCOMES = {"settle": Status.SETTLED, "release": Status.RELEASED, "expire": Status.EXPIRED}
_TALLY = ("decided", "settled", "released", "expired")
HEAD_DIGITS = 12
"""Digits of a head that a floating-point number holds exactly; enough to recognise it."""


@dataclass(frozen=True)
class Difference:
    """A row of the ledger that contradicts the events."""

    what: str
    """The row, and which part of it."""
    books: str
    """The value of the row."""
    entries: str
    """The value according to the events."""

    def __str__(self) -> str:
        return f"{self.what}: the ledger has {self.books}, the events say {self.entries}"


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    decisions: int
    events: int
    budgets: tuple[dict[str, Any], ...]
    """Balances according to the events."""
    differences: tuple[Difference, ...]
    identity: Mapping[str, str] | None = None
    head: str = ""
    """The chain after the last event; stored elsewhere, it proves later that no event up to it was changed."""
    head_event: int | None = None
    """The event after which the chain had the given head."""
    unchecked: tuple[str, ...] = ()
    """What could not be checked in this database."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "status": "sound" if self.is_sound else "different",
            "decisions": self.decisions,
            "events": self.events,
            **(self.identity or {}),
            "head": self.head,
            "head_event": self.head_event,
            "budgets": list(self.budgets),
            "differences": [{"what": one.what, "books": one.books, "entries": one.entries} for one in self.differences],
            "unchecked": list(self.unchecked),
        }


def verify(ledger: Ledger, head: str = "") -> Verification:
    """Recompute the chain and all balances at one moment; `head`, or its first digits, must occur in the chain."""
    damage, unchecked = ledger.database.damage()
    with ledger.database.reading() as session:
        replay = _Replay(session, head)
        try:
            replay.run()
        except (ledger.database.failures, *_UNREADABLE) as error:
            damage.append(f"rows cannot be read ({error})")
    ledger.database.release()  # the thread may be one of its own
    budgets = [
        {"budget": name, "total": one.total, "held": one.held, "spent": one.spent}
        for name, one in sorted(replay.budgets.items())
    ]
    found = [Difference("the database", said, "nothing of the kind") for said in damage] + replay.differences
    return Verification(
        *(replay.decided, replay.last, tuple(budgets), tuple(found[:_MOST_SHOWN])),
        *(replay.stored_identity, replay.chain, replay.head_event, tuple(unchecked)),
    )


def replayed(session: Session) -> list[Difference]:
    """What differs from the events, as seen by this session."""
    replay = _Replay(session, "")
    replay.run()
    return replay.differences


@dataclass(slots=True)
class _Budget:
    """A budget according to the events so far."""

    place: int
    total: int = 0
    held: int = 0
    spent: int = 0
    expected: int = 0
    closed: int = 0
    user_cap: int | None = None
    measure: str = ""
    minor_units: int = 0


class _Changed(msgspec.Struct):
    """The content of an event that changes a budget."""

    budget: str
    user_cap: int | None
    measure: str
    minor_units: int


class _Replay:
    """Replays the events of a ledger from the first to the last, some thousands of rows at a time."""

    def __init__(self, session: Session, head: str) -> None:
        self._session, self._head = session, head.lower()
        self.differences: list[Difference] = []
        self.chain, self.last, self.decided = "", 0, 0
        self.head_event: int | None = None
        self.budgets: dict[str, _Budget] = {}
        self._counters = {str(name): int(value) for name, value in session.rows("SELECT name, value FROM counters")}
        self.stored_identity = dict(session.rows("SELECT name, value FROM identity ORDER BY name"))
        self._identity: dict[str, str] = {}
        self._charges = 0
        self._forgotten: dict[int, tuple[str, ...]] = {}
        """By decision: the columns PERSONAL after its user was forgotten."""
        # By decision, starting at 1: the state according to the events, and what its row says.
        self._state, self._closed, self._reward = bytearray(1), array("q", [0]), array("d", [0.0])
        self._rows: list[tuple[Any, ...]] = [()]
        self._places = array("q", [0])
        self._steps: dict[tuple[int, str], int] = {}
        self._amounts: dict[str, tuple[array[int], array[int]]] = {}
        """By budget and decision: held and spent of its charge, minus what the events say; 0 if they agree."""
        self._spent_first = array("q", [0])
        self._users: list[str] = [""]
        self._balances: dict[tuple[str, str], list[int]] = {}
        """Held and spent by user and budget, for budgets that ever had a cap per user."""
        changes = session.rows("SELECT content FROM events WHERE decision = 0 AND kind = 'change'")
        self._capped = set()
        for (content,) in changes:
            with suppress(msgspec.MsgspecError):  # a change of the campaign, or damage, which is reported later
                said = msgspec.json.decode(content, type=_Changed)
                self._capped |= set() if said.user_cap is None else {said.budget}
        self._limits: dict[tuple[str, str], int] = {}

    def run(self) -> None:
        """Replay all events, then compare the result with the rows."""
        while rows := self._session.rows(
            "SELECT event, at, kind, decision, reward, content, entries, chain FROM events "
            f"WHERE event > ? ORDER BY event LIMIT {_CHUNK}",
            [self.last],
        ):
            self._follow(rows)
        if self._head and self.head_event is None:
            self._differs("the head that was kept", "no event with it", f"{self._head} (removed or rewritten since)")
        for check in (
            *(self._compare_decisions, self._compare_charges, self._compare_budgets, self._compare_users),
            *(self._compare_tallies, self._compare_counters),
        ):
            check()

    def _differs(self, what: str, stored: object, found: object) -> None:
        self.differences.append(Difference(what, str(stored), str(found)))

    def _follow(self, rows: Sequence[tuple[Any, ...]]) -> None:
        decided = [row[3] for row in rows if row[2] == "decide"]
        # Numbers have no gaps, so a larger one is damage, for which there may not be enough memory.
        last = min(max(decided, default=0), len(self._state) - 1 + len(decided))
        decisions, charges = self._decisions_until(last)
        self._begin_decisions(last, decisions)
        decode = msgspec.json.Decoder(list[tuple[str, int, int, int, int]]).decode
        for row in rows:
            event, chain = row[:7], row[7]
            number, at, kind, decision, reward, content, entries = event
            if number != self.last + 1:
                self._differs(f"event {self.last + 1}", "no such event", "events have no gaps")
            self.last = number
            if kind == "decide":
                link = self._decide(event, decisions.pop(decision, None), charges.get(decision, ()))
            else:
                link = next_link(self.chain, event)
            if link != chain:
                of = f", decision {decision}" if decision else ""
                self._differs(f"event {number} ({kind}{of})", f"chain {chain[:12]}…", f"{link[:12]}… by its rows")
            self.chain = chain
            if self._head and chain.startswith(self._head):
                self.head_event = number
            try:
                if decision == 0:
                    self._change(number, kind, content)
                elif kind != "decide":
                    self._outcome(number, at, kind, decision, reward, content)
                for entry in decode(entries):
                    self._post(number, decision, *entry)
            except _UNREADABLE as error:
                self._differs(f"event {number} ({kind})", "content that cannot be read", error)
        for number in decisions:
            self._differs(f"decision {number}", "a row", "no event that decided it")

    def _decisions_until(self, last: int) -> tuple[dict[int, tuple[Any, ...]], dict[int, list[tuple[Any, ...]]]]:
        """The next decisions up to number `last`, and their charges, by number."""
        between = [len(self._state) - 1, last]
        columns = ", ".join((*LASTING, *PERSONAL, "status", "reward", "closed_at", "salt", "digest"))
        query = f"SELECT {columns} FROM decisions WHERE decision > ? AND decision <= ?"
        charges: dict[int, list[tuple[Any, ...]]] = {}
        if last:
            columns = ", ".join((*CHARGED, "open", "spent"))
            for number, *charge in self._session.rows(
                f"SELECT decision, {columns} FROM charges WHERE decision > ? AND decision <= ? ORDER BY decision",
                between,
            ):
                charges.setdefault(number, []).append(tuple(charge))
        return {row[0]: row for row in self._session.rows(query, between)} if last else {}, charges

    def _decide(self, event: Sequence[Any], row: tuple[Any, ...] | None, charges: Sequence[tuple[Any, ...]]) -> str:
        """Process a decision, and return its link of the chain."""
        number = event[3]
        self.decided += 1
        if row is None:
            self._differs(f"decision {number}", "no row", f"decided by event {event[0]}")
            return next_link(self.chain, event)
        self._charges += len(charges)
        for budget, _, _, _, still_open, spent in charges:
            held_and_spent = self._amounts.get(budget)
            if held_and_spent is None:
                self._differs(f"decision {number}, charge to {budget}", "a charge", "no such budget")
                continue
            for amounts, stored in zip(held_and_spent, (still_open, spent), strict=True):
                amounts[number] += stored
        salt, digest = row[-2:]
        lasting, personal = row[: len(LASTING)], row[len(LASTING) : -5]
        digest = digest if salt is None else personal_digest(salt, personal)
        return next_link(self.chain, event, digest or "", lasting, sorted(charge[:4] for charge in charges))

    def _begin_decisions(self, last: int, decisions: Mapping[int, tuple[Any, ...]]) -> None:
        """Extend the arrays to decisions up to a number."""
        rows = [decisions.get(number) for number in range(len(self._state), last + 1)]
        blank = bytes(8 * len(rows))
        self._state.extend(bytes(len(rows)))
        self._reward.extend([float("nan")] * len(rows))
        for amounts in (self._closed, self._spent_first, *(one for pair in self._amounts.values() for one in pair)):
            amounts.frombytes(blank)
        # Status, reward, time of closing, and the columns PERSONAL if the user was forgotten.
        of_user = slice(len(LASTING), -5)
        self._rows.extend((*row[-5:-2], None if row[-1] is None else row[of_user]) if row else () for row in rows)
        steps = self._steps
        self._places.extend(steps.setdefault((row[2], row[3]) if row else (0, ""), len(steps)) for row in rows)
        if self._capped:
            self._users.extend(row[len(LASTING) + 2] if row else "" for row in rows)

    def _outcome(self, number: int, at: int, kind: str, decision: int, reward: float | None, content: str) -> None:
        if not 0 < decision < len(self._state):
            self._differs(f"event {number} ({kind})", f"decision {decision}", "no such decision")
            return
        if kind != "refuse":
            status = _OUTCOMES.get(kind)
            self._state[decision] = _STATUSES.index(status or Status(msgspec.json.decode(content)["status"]))
            self._closed[decision] = at
        if reward is not None:
            self._reward[decision] = reward

    def _change(self, number: int, kind: str, content: str) -> None:
        """Process an event that belongs to no decision."""
        if kind not in ("create", "change", "restore", "migrate", "forget"):
            return
        said = msgspec.json.decode(content)
        self._identity |= {name: said[name] for name in IDENTITY if name in said}
        if kind == "create":
            digest = seed_digest(self._counters.get("seed", 0))
            if said["seed_sha256"] != digest:
                self._differs("the seed of all draws", digest[:12], f"{said['seed_sha256'][:12]} (SHA-256)")
        elif kind == "forget":
            self._forgotten |= {one: forgotten(said["name"], one) for one in said["decisions"]}
        elif "budget" in said:
            self._change_budget(number, said)

    def _change_budget(self, number: int, said: dict[str, Any]) -> None:
        changed = msgspec.convert(said, _Changed)
        name, cap = changed.budget, changed.user_cap
        one = self.budgets.setdefault(name, _Budget(len(self.budgets) + 1))
        room = bytes(8 * len(self._state))
        self._amounts.setdefault(name, (array("q", room), array("q", room)))
        one.measure, one.minor_units = changed.measure, changed.minor_units
        if cap != one.user_cap:
            one.user_cap = cap
            for (user, budget), (held, spent) in self._balances.items():
                if budget == name:
                    self._limits[user, name] = max(cap or 0, held + spent)

    def _post(self, number: int, decision: int, budget: str, total: int, held: int, spent: int, expected: int) -> None:
        """Process an entry of an event."""
        one = self.budgets[budget]
        one.total += total
        one.held += held
        one.spent += spent
        one.expected = min(one.expected + expected, LARGEST_SUM)
        one.closed = min(one.closed - min(0, expected), LARGEST_SUM)
        if not (one.held >= 0 and one.spent >= 0 and one.held + one.spent <= one.total):
            said = f"{one.total} in total, {one.held} held, {one.spent} spent"
            self._differs(f"budget {budget}, after event {number}", said, "never overspent")
        if not decision:
            return
        own_held, own_spent = self._amounts[budget]
        own_held[decision] -= held
        own_spent[decision] -= spent
        if one.place == 1:
            self._spent_first[decision] += spent
        if budget not in self._capped:
            return
        balance = self._balances.setdefault((self._users[decision], budget), [0, 0])
        balance[0] += held
        balance[1] += spent

    def _compare_decisions(self) -> None:
        for number, row in enumerate(self._rows[1:], start=1):
            if not row:
                continue
            status, reward, closed_at, left = row
            state, found = _STATUSES[self._state[number]], self._reward[number]
            found_reward, found_close = (None if found != found else found), self._closed[number] or None
            if (status, reward, closed_at) != (state, found_reward, found_close):
                said = [
                    f"{one[0]}, reward {one[1]}, closed at {one[2]}"
                    for one in ((status, reward, closed_at), (state.value, found_reward, found_close))
                ]
                self._differs(f"decision {number}", *said)
            if left != self._forgotten.get(number):
                found_left = "forgotten" if number in self._forgotten else "not forgotten"
                self._differs(f"decision {number}", f"{left or 'a user'}", found_left)
        query = f"SELECT decision FROM decisions WHERE decision < 1 OR decision >= ? LIMIT {_MOST_SHOWN}"
        for (number,) in self._session.rows(query, [len(self._rows)]):
            self._differs(f"decision {number}", "a row", "no event that decided it")

    def _compare_charges(self) -> None:
        for budget, held_and_spent in self._amounts.items():
            for what, amounts in zip(("held", "spent"), held_and_spent, strict=True):
                for number, more in enumerate(amounts) if any(amounts) else ():
                    if more:
                        said = f"{abs(more)} {'more' if more > 0 else 'less'} {what}"
                        self._differs(f"decision {number}, charge to {budget}", said, "otherwise")
        ((charges,),) = self._session.rows("SELECT count(*) FROM charges")
        if charges != self._charges:
            self._differs("charges", f"{charges} rows", f"{self._charges} of decisions")

    def _compare_budgets(self) -> None:
        columns = (
            *("place", "total", "held", "spent", "expected_thousandths", "closed_thousandths", "user_cap", "measure"),
            "minor_units",
        )
        stored = {row[0]: row[1:] for row in self._session.rows(f"SELECT budget, {', '.join(columns)} FROM budgets")}
        for name in {**stored, **self.budgets}:
            one, row = self.budgets.get(name), stored.get(name)
            if one is None or row is None:
                self._differs(f"budget {name}", "no row" if row is None else "a row", "otherwise")
                continue
            for column, books, attribute in zip(columns, row, _Budget.__slots__, strict=True):
                if books != getattr(one, attribute):
                    self._differs(f"budget {name}, {column.partition('_thou')[0]}", books, getattr(one, attribute))

    def _compare_users(self) -> None:
        capped = {name: one.user_cap for name, one in self.budgets.items() if one.user_cap is not None}
        expected = {key: sums for key, sums in self._balances.items() if key[1] in capped}
        after = ("", "")
        while rows := self._session.rows(
            "SELECT user_id, budget, held, spent, user_cap FROM user_balances WHERE (user_id, budget) > (?, ?) "
            f"ORDER BY user_id, budget LIMIT {_CHUNK}",
            after,
        ):
            for user, budget, *books in rows:
                sums = expected.pop((user, budget), None)
                limit = self._limits.get((user, budget), capped.get(budget))
                found = [*(sums or (0, 0)), max(limit or 0, capped.get(budget) or 0)]
                if sums is None or books != found:
                    said = [f"{one[0]} held, {one[1]} spent, at most {one[2]}" for one in (books, found)]
                    self._differs(f"user {user} of {budget}", *said)
            after = rows[-1][:2]
        for (user, budget), (held, spent) in expected.items():
            self._differs(f"user {user} of {budget}", "no balance", f"{held} held, {spent} spent")

    def _compare_tallies(self) -> None:
        counts = [[0, 0, 0, 0, 0] for _ in self._steps]
        rewards: list[list[float]] = [[] for _ in self._steps]
        for number in range(1, len(self._state)):
            row, state = counts[self._places[number]], self._state[number]
            if not self._rows[number]:
                continue
            row[0] += 1
            if state:
                row[state] += 1
            if state in (1, 2):
                row[4] += self._spent_first[number]
            if self._reward[number] == self._reward[number]:
                rewards[self._places[number]].append(self._reward[number])
        expected = {key: (tuple(counts[place]), rewards[place]) for key, place in self._steps.items()}
        columns = ", ".join((*_TALLY, "spent", "reward"))
        for step, action, *row in self._session.rows(f"SELECT step, action, {columns} FROM tallies"):
            *books, reward = row
            found, given = expected.pop((step, action), ((0, 0, 0, 0, 0), []))
            if tuple(books) != found:
                self._differs(f"tally of step {step}, action {action}", *map(_counts, (books, found)))
            # Relative tolerance, because the table added the rewards in another order.
            if not isclose(reward, fsum(given), rel_tol=1e-9, abs_tol=1e-9 * fsum(map(abs, given))):
                self._differs(f"tally of step {step}, action {action}", f"reward {reward}", fsum(given))
        for (step, action), (found, _) in expected.items():
            if any(found):
                self._differs(f"tally of step {step}, action {action}", "no row", _counts(found))

    def _compare_counters(self) -> None:
        if self.decided != len(self._state) - 1:
            self._differs("decisions", f"numbers up to {len(self._state) - 1}", f"{self.decided} decided")
        for (number,) in self._session.rows("SELECT event FROM events WHERE event < 1"):
            self._differs(f"event {number}", "a row", "events begin with 1")
        for name, found in (("format", FORMAT), ("decision", len(self._state) - 1), ("event", self.last)):
            if self._counters.get(name) != found:
                self._differs(f"counter {name}", self._counters.get(name), found)
        for name, value in self.stored_identity.items() if self.last else ():
            if self._identity.get(name) != value:
                self._differs(f"{name} of the ledger", value, self._identity.get(name))
        for name in self._identity.keys() - self.stored_identity.keys():
            self._differs(f"{name} of the ledger", "nothing", self._identity[name])


def _counts(row: Sequence[int]) -> str:
    return ", ".join(f"{count} {name}" for count, name in zip(row, (*_TALLY, "spent"), strict=True))


# What a database reports about itself: damaged pages, and tables without their constraints.


def sqlite_damage(session: Session) -> Iterator[str]:
    """Faults in the pages and tables of a SQLite database."""
    for (said,) in session.rows(f"PRAGMA integrity_check({_MOST_FAULTS})"):
        if said != "ok":
            yield from str(said).splitlines()[:_MOST_FAULTS]
    for table, row, parent, _ in session.rows("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} refers to a row of {parent} that is not there"
    query = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite^_stat_' ESCAPE '^'"
    found = session.rows(query)
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
        UNION ALL SELECT oid, 'form', relkind::text || (relpersistence = 'u')::text || relrowsecurity FROM pg_class
        UNION ALL SELECT ev_class, 'rule ' || rulename, pg_get_ruledef(oid) FROM pg_rewrite
        UNION ALL SELECT inhparent, 'table with rows ' || inhrelid::regclass, '' FROM pg_inherits
    ) AS parts JOIN pg_class AS relation ON relation.oid = parts.of
    WHERE relation.oid IN ({})
"""
_NAMES = [_name(statement) for statement in POSTGRES.statements() if statement.startswith("CREATE TABLE")]


def postgres_damage(connection: Any, failed: type[Exception]) -> tuple[list[str], list[str]]:
    """Faults in the tables and pages of a PostgreSQL database, and what could not be checked.

    The tables are compared with temporary ones made by the original statements, in a transaction that is rolled back.
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
    """Rolls back a transaction on purpose."""


def _relations(connection: Any, named: str) -> dict[str, str]:
    """Columns, constraints, triggers and indices of the tables of a ledger."""
    tables = ", ".join(named.format(name) for name in _NAMES)
    found: Iterable[tuple[str, str, str]] = connection.execute(_RELATIONS.format(tables)).fetchall()
    return {f"{kind} of {table}": definition for table, kind, definition in found}


def _amcheck(connection: Any, failed: type[Exception]) -> Iterator[str]:
    """Faults that the extension amcheck finds in tables and their indices."""
    for name in _NAMES:
        try:
            query = "SELECT blkno, msg FROM verify_heapam(%s::regclass)"
            yield from (f"{name}, block {block}: {said}" for block, said in connection.execute(query, [name]))
            connection.execute(
                "SELECT bt_index_check(indexrelid, true) FROM pg_index WHERE indrelid = %s::regclass", [name]
            )
        except failed as error:
            yield f"{name}: {str(error).splitlines()[0]}"

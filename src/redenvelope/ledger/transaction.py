"""One transaction: the balances and decisions that it has loaded, the changes of its commands, the rows it writes.

Commands are executed one after the other in memory, while other writers wait, so that a refusal does not undo the other
commands. Then everything is written at once. If a change violates a CHECK, the whole transaction is rolled back.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import msgspec

from redenvelope.ledger.chain import LASTING, PERSONAL, next_link, personal_digest
from redenvelope.ledger.database import Database, Session, placeholders
from redenvelope.ledger.records import COUNTED, LARGEST_SUM, Balance, Charge, Decided, Status
from redenvelope.ledger.tables import IDENTITY

_ENCODE = msgspec.json.Encoder().encode
_CLOSED = ("status", "reward", "closed_at")
"""Columns of a decision that its outcome sets."""
_DECISION = ", ".join((*LASTING, *PERSONAL, *_CLOSED))
_COLUMNS = [name.replace("user_id", "user") for name in (*LASTING, *PERSONAL, *_CLOSED)]
_LASTING, _PERSONAL = attrgetter(*LASTING[:-2]), attrgetter(*_COLUMNS[len(LASTING) : -len(_CLOSED)])
_COUNTED_AS = (Status.OPEN, Status.SETTLED, Status.RELEASED, Status.EXPIRED)
_ENTRY = attrgetter("budget", "total_change", "held_change", "spent_change", "expected_change")
_CHARGE = attrgetter("budget", "held", "ceiling", "expected_thousandths")


@dataclass(slots=True)
class Account:
    """What a budget, or one user within a budget, has spent and holds; modified in place."""

    limit: int | None
    held: int
    spent: int
    expected: int = 0
    closed: int = 0
    """The expected cost of closed decisions."""
    user_cap: int | None = None
    """The cap per user, if this is a budget."""
    measure: str = ""
    """The part of an outcome that a budget is charged."""
    minor_units: int = 100

    @property
    def counts_actions(self) -> bool:
        """Whether this budget counts actions, which are spent when decided, without waiting for an outcome."""
        return self.measure == COUNTED

    @property
    def left(self) -> int | None:
        """What is neither held nor spent; None: no limit."""
        return None if self.limit is None else self.limit - self.held - self.spent


@dataclass(slots=True)
class DecisionState:
    """A decision as a transaction changes it."""

    record: Decided
    open: dict[str, int]
    """The amounts still held, by budget."""
    spent: dict[str, int]
    status: Status
    reward: float | None
    closed_at: int | None

    def now(self, repeated: bool = False) -> Decided:
        """The record with the changes so far."""
        return replace(
            self.record,
            status=self.status,
            reward=self.reward,
            closed_at=self.closed_at,
            spent=dict(self.spent),
            repeated=repeated,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a budget's balance."""

    budget: str
    total_change: int = 0
    held_change: int = 0
    spent_change: int = 0
    expected_change: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, with the resulting changes of balances; its number is given when it is written."""

    at: int
    kind: str
    decision: int = 0
    reward: float | None = None
    content: str = ""
    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class Transaction:
    """The state of a transaction; `begin` loads what every transaction needs."""

    session: Session
    last: dict[str, int]
    """The last numbers of decisions and events, with the other counters."""
    identity: dict[str, str]
    chain: str
    """The hash of all events so far."""
    now: int
    """The time of the database."""
    budgets: dict[str, Account]
    decisions: dict[int, DecisionState] = field(default_factory=dict)
    by_request: dict[str, DecisionState] = field(default_factory=dict)
    decided_steps: set[tuple[str, int]] = field(default_factory=set)
    """Users and steps that are decided, for users that were loaded."""
    users: dict[tuple[str, str], Account] = field(default_factory=dict)
    """By user and budget, for budgets with a cap per user."""
    loaded_users: set[str] = field(default_factory=set)
    """Users whose balances were loaded; a loaded user who is not in `users` has spent nothing."""
    tallies: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Changes by step and action: decided, settled, released, expired, reward, spent."""
    recounted: set[tuple[int, str]] = field(default_factory=set)
    """Steps and actions with a corrected reward: their sum is computed anew, since adding differences loses digits."""
    added: list[DecisionState] = field(default_factory=list)
    changed: dict[int, DecisionState] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    touched_users: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def begin(cls, database: Database, session: Session, lock: str = "") -> Transaction:
        """Lock out other writers, and load the balances."""
        last = {str(name): int(value) for name, value in session.rows(f"SELECT name, value FROM counters {lock}")}
        # Read after the lock is held: before, another writer might not have committed yet.
        identity = dict.fromkeys(IDENTITY, "") | dict(
            session.rows(
                f"SELECT 'now', CAST({database.dialect.clock} AS TEXT) UNION ALL SELECT name, value FROM identity "
                "UNION ALL SELECT 'chain', chain FROM events WHERE event = (SELECT max(event) FROM events)"
            )
        )
        chain, now = identity.pop("chain", ""), int(identity.pop("now"))
        rows = session.rows(
            "SELECT budget, total, held, spent, expected_thousandths, closed_thousandths, user_cap, measure, "
            "minor_units FROM budgets ORDER BY place"
        )
        return cls(session, last, identity, chain, now, {row[0]: Account(*row[1:]) for row in rows})

    def next_number(self, name: str) -> int:
        """The next number of a counter."""
        self.last[name] += 1
        return self.last[name]

    def load_requests(self, requests: Sequence[str], users: Iterable[str]) -> None:
        """Load the earlier decisions of these requests, and the decided steps and balances of these users."""
        self._load("request IN ({})", requests)
        distinct = list(dict.fromkeys(users))
        rows = self.session.rows_in("SELECT user_id, step FROM decisions WHERE user_id IN ({})", distinct)
        self.decided_steps.update((str(user), int(step)) for user, step in rows)
        self.load_users(distinct)

    def load_decisions(self, decisions: Iterable[int]) -> None:
        """Load decisions that are not loaded yet, with the balances of their users."""
        self._load("decision IN ({})", [number for number in dict.fromkeys(decisions) if number not in self.decisions])

    def load_due(self, now: int, most: int) -> list[int]:
        """Load the open decisions whose holds expire by `now`, the earliest first, and return their numbers."""
        rows = self.session.rows(
            "SELECT decision FROM decisions WHERE status = 'open' AND expires_at <= ? ORDER BY expires_at LIMIT ?",
            [now, most],
        )
        numbers = [int(row[0]) for row in rows]
        self.load_decisions(numbers)
        return numbers

    def load_users(self, users: Iterable[str]) -> None:
        """Load the users' balances with the budgets that have a cap per user."""
        new = [user for user in dict.fromkeys(users) if user not in self.loaded_users]
        if all(account.user_cap is None for account in self.budgets.values()):
            return
        self.loaded_users.update(new)
        query = "SELECT user_id, budget, held, spent, user_cap FROM user_balances WHERE user_id IN ({})"
        for user, budget, held, spent, cap in self.session.rows_in(query, new):
            self.users.setdefault((user, budget), Account(cap, held, spent))

    def accounts(self, user: str, budget: str) -> list[Account]:
        """All accounts that a charge counts in: the budget's, and the user's if the budget has a cap per user."""
        account = self.budgets[budget]
        if account.user_cap is None:
            return [account]
        if user not in self.loaded_users:  # otherwise the user would seem to have spent nothing
            self.load_users([user])
        return [account, self.users.setdefault((user, budget), Account(account.user_cap, 0, 0))]

    def left(self, user: str, budget: str) -> int:
        """What a budget can still pay for a user."""
        left = [left for account in self.accounts(user, budget) if (left := account.left) is not None]
        cap = self.budgets[budget].user_cap
        if cap is not None:
            # The user's own limit is the cap, or an amount above it from before the cap was lowered, which is not
            # refilled.
            own = self.users[user, budget]
            left.append(max(0, cap - own.held - own.spent))
        return min(left)

    def left_of_all(self, user: str) -> Mapping[str, int]:
        """What each budget can still pay for a user."""
        return {budget: self.left(user, budget) for budget in self.budgets}

    def post(self, event: Event, user: str, entry: Entry) -> None:
        """Add an entry to an event, and change the balances by it."""
        event.entries.append(entry)
        budget = self.budgets[entry.budget]
        if budget.user_cap is not None:
            self.touched_users.add((user, entry.budget))
        for account in self.accounts(user, entry.budget):
            account.held += entry.held_change
            account.spent += entry.spent_change
        budget.expected = min(budget.expected + entry.expected_change, LARGEST_SUM)
        budget.closed = min(budget.closed - min(0, entry.expected_change), LARGEST_SUM)

    def count(self, state: DecisionState, status: Status, change: int = 1) -> None:
        """Count a decision under a status, for its step and action; as open it is counted only once, when new."""
        if status is not Status.OPEN or change > 0:
            self._tally(state)[_COUNTED_AS.index(status)] += change

    def tally(self, state: DecisionState, reward: float, spent: int) -> None:
        """Add to the reward and the spending of a step and action."""
        row = self._tally(state)
        row[4] += reward
        row[5] += spent

    def _tally(self, state: DecisionState) -> list[float]:
        return self.tallies.setdefault((state.record.step, state.record.action), [0, 0, 0, 0, 0.0, 0])

    def add(self, state: DecisionState) -> None:
        """Add a new decision."""
        self._index(state)
        self.decided_steps.add((state.record.user, state.record.step))
        self.added.append(state)

    def balances(self) -> tuple[Balance, ...]:
        """The balances of the budgets, with all changes."""
        found = []
        for name, one in self.budgets.items():
            amounts = (one.limit or 0, one.held, one.spent, one.expected, one.closed)
            found.append(Balance(name, *amounts, one.user_cap, one.measure, one.minor_units))
        return tuple(found)

    def write(self) -> None:
        """Write all changes; others see them once the transaction is committed."""
        self._write_events()
        self._write_charges_and_outcomes()
        self.session.many(
            "UPDATE budgets SET held = ?, spent = ?, expected_thousandths = ?, closed_thousandths = ? WHERE budget = ?",
            [
                ((one := self.budgets[name]).held, one.spent, one.expected, one.closed, name)
                for name in {entry.budget: None for event in self.events for entry in event.entries}
            ],
        )
        self.session.many(
            "INSERT INTO user_balances VALUES (?, ?, ?, ?, ?) ON CONFLICT (user_id, budget) DO UPDATE SET "
            "held = excluded.held, spent = excluded.spent",
            [(*key, (own := self.users[key]).held, own.spent, own.limit) for key in sorted(self.touched_users)],
        )
        self.session.many(
            "INSERT INTO tallies VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (step, action) DO UPDATE SET "
            "decided = tallies.decided + excluded.decided, settled = tallies.settled + excluded.settled, "
            "released = tallies.released + excluded.released, expired = tallies.expired + excluded.expired, "
            "reward = tallies.reward + excluded.reward, spent = tallies.spent + excluded.spent",
            [(*key, *counts) for key, counts in self.tallies.items()],
        )
        self.session.many(
            "UPDATE tallies SET reward = (SELECT coalesce(sum(reward), 0.0) FROM decisions WHERE step = tallies.step "
            "AND action = tallies.action) WHERE step = ? AND action = ?",
            sorted(self.recounted),
        )
        counters = [(value, name) for name, value in self.last.items()]
        self.session.many("UPDATE counters SET value = ? WHERE name = ?", counters)

    def _write_events(self) -> None:
        """Write the events with their links of the chain, and the new decisions."""
        events, decisions = [], []
        for event in self.events:
            row = (
                *(self.next_number("event"), event.at, event.kind, event.decision, event.reward, event.content),
                _ENCODE([_ENTRY(entry) for entry in event.entries]).decode(),
            )
            if event.kind == "decide":
                one, salt = self.decisions[event.decision].record, secrets.token_hex(8)
                lasting = (*_LASTING(one), int(one.is_number), int(one.holdout))
                personal, charges = _PERSONAL(one), sorted(map(_CHARGE, one.charges))
                self.chain = next_link(self.chain, row, personal_digest(salt, personal), lasting, charges)
                decisions.append((*lasting, *personal, "open", None, None, salt))
            else:
                self.chain = next_link(self.chain, row)
            events.append((*row, self.chain))
        self.session.many(f"INSERT INTO events VALUES ({placeholders(8)})", events)
        columns = placeholders(len(_COLUMNS) + 1)
        self.session.many(f"INSERT INTO decisions ({_DECISION}, salt) VALUES ({columns})", decisions)

    def _write_charges_and_outcomes(self) -> None:
        self.session.many(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *(state.record.decision, one.budget, one.held, state.open[one.budget], one.ceiling),
                    *(state.spent[one.budget], one.expected_thousandths),
                )
                for state in self.added
                for one in state.record.charges
            ],
        )
        changed = self.changed.values()
        self.session.many(
            "UPDATE decisions SET status = ?, reward = ?, closed_at = ? WHERE decision = ?",
            [(state.status.value, state.reward, state.closed_at, state.record.decision) for state in changed],
        )
        self.session.many(
            "UPDATE charges SET open = ?, spent = ? WHERE decision = ? AND budget = ?",
            [
                (state.open[budget], state.spent[budget], state.record.decision, budget)
                for state in changed
                for budget in state.open
            ],
        )

    def _load(self, condition: str, values: Sequence[Any]) -> None:
        """Load decisions with the balances of their own users, who may differ from the users of the commands."""
        found = decision_states(self.session, self.session.rows_in(decisions_where(condition), values))
        for state in found:
            self._index(state)
        self.load_users([state.record.user for state in found])

    def _index(self, state: DecisionState) -> None:
        self.decisions.setdefault(state.record.decision, state)
        self.by_request.setdefault(state.record.request, self.decisions[state.record.decision])


def decisions_where(condition: str) -> str:
    """The query for `decision_states`."""
    return f"SELECT {_DECISION} FROM decisions WHERE {condition}"


def decision_states(session: Session, found: Iterable[tuple[Any, ...]]) -> list[DecisionState]:
    """Decisions with their charges, from rows of `decisions_where`."""
    rows = list(found)
    charged: dict[int, list[tuple[Any, ...]]] = {row[0]: [] for row in rows}
    query = (
        "SELECT decision, budget, held, open, ceiling, spent, expected_thousandths FROM charges "
        "WHERE decision IN ({}) ORDER BY decision, budget"
    )
    for number, *charge in session.rows_in(query, list(charged)):
        charged[number].append(tuple(charge))
    return [_state(row, charged[row[0]]) for row in rows]


def _state(row: tuple[Any, ...], charged: Sequence[tuple[Any, ...]]) -> DecisionState:
    fields = dict(zip(_COLUMNS, row, strict=True))
    spent = {budget: amount for budget, _, _, _, amount, _ in charged}
    charges = tuple(Charge(budget, held, ceiling, expected) for budget, held, _, ceiling, _, expected in charged)
    fields["is_number"], fields["holdout"] = bool(fields["is_number"]), bool(fields["holdout"])
    fields["status"] = Status(fields["status"])
    record = Decided(**fields, charges=charges, spent=spent)
    still_held = {budget: amount for budget, _, amount, _, _, _ in charged}
    return DecisionState(record, still_held, spent, record.status, record.reward, record.closed_at)

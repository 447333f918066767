"""One transaction: what it has read, what the commands changed, and the rows that it writes at its end.

Commands are decided one after the other in memory, under the lock of the writers, so that one refusal does not undo the
others; then everything is written at once. Should a change ever break a CHECK, the whole transaction is undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redenvelope.ledger.database import Session, chunks, marks
from redenvelope.ledger.records import Balance, Charge, Decided, Status

_COLUMNS = (
    "decision, request, user_id, step, action, propensity, probabilities, prices, plan, features, status, decided_at, "
    "expires_at, reward, closed_at, fingerprint, is_number"
)


@dataclass(slots=True)
class Account:
    """What a budget, or a user of it, has spent and holds; changed in place."""

    limit: int | None
    held: int
    spent: int
    expected: int = 0
    closed: int = 0
    """What was expected of decisions that are closed."""
    user_cap: int | None = None
    """Of each user, where this is a budget."""
    measure: str = ""
    """What of an outcome a budget is charged."""
    minor_units: int = 100

    @property
    def left(self) -> int | None:
        """None: without limit."""
        return None if self.limit is None else self.limit - self.held - self.spent


@dataclass(slots=True)
class Case:
    """A decision while a transaction works on it."""

    record: Decided
    fingerprint: str
    open: dict[str, int]
    """Still held, by budget."""
    spent: dict[str, int]
    status: Status
    reward: float | None
    closed_at: int | None

    def now(self, repeated: bool = False) -> Decided:
        """The decision as it stands."""
        old = self.record
        return Decided(
            decision=old.decision,
            request=old.request,
            user=old.user,
            step=old.step,
            action=old.action,
            propensity=old.propensity,
            probabilities=old.probabilities,
            prices=old.prices,
            plan=old.plan,
            features=old.features,
            status=self.status,
            decided_at=old.decided_at,
            expires_at=old.expires_at,
            reward=self.reward,
            closed_at=self.closed_at,
            charges=old.charges,
            spent=dict(self.spent),
            repeated=repeated,
            is_number=old.is_number,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the books, without its number."""

    at: int
    kind: str
    decision: int
    budget: str
    total_change: int = 0
    held_change: int = 0
    spent_change: int = 0
    expected_change: int = 0


@dataclass(slots=True)
class Book:
    """The state of a transaction; `open` reads what every transaction needs."""

    session: Session
    last: dict[str, int]
    """The last number given out, by what is numbered."""
    budgets: dict[str, Account]
    cases: dict[int, Case] = field(default_factory=dict)
    by_request: dict[str, Case] = field(default_factory=dict)
    taken: set[tuple[str, int]] = field(default_factory=set)
    """Users and steps that are decided, of the users that were looked at."""
    users: dict[tuple[str, str], Account] = field(default_factory=dict)
    """By user and budget, of budgets with a cap."""
    known_users: set[str] = field(default_factory=set)
    """Whose balances were read: who is not in `users` then has none."""
    tallies: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Changes by step and action: decided, settled, released, expired, reward, spent."""
    added: list[Case] = field(default_factory=list)
    changed: dict[int, Case] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    touched_users: set[tuple[str, str]] = field(default_factory=set)
    notes: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def open(cls, session: Session, lock: str) -> Book:
        """Take the lock of the writers, and read the balances."""
        last = {str(name): int(value) for name, value in session.rows(f"SELECT name, value FROM counters {lock}")}
        rows = session.rows(
            "SELECT budget, total, held, spent, expected_thousandths, closed_thousandths, user_cap, measure, "
            "minor_units FROM budgets ORDER BY place"
        )
        budgets = {row[0]: Account(*row[1:]) for row in rows}
        return cls(session, last, budgets)

    def number(self, name: str) -> int:
        """The next number."""
        self.last[name] += 1
        return self.last[name]

    def know_requests(self, requests: Sequence[str], users: Iterable[str]) -> None:
        """Read what was decided for requests before, and which steps of users are decided."""
        for some in chunks(requests):
            self._know_cases("request", some)
        for some in chunks(list(dict.fromkeys(users))):
            query = f"SELECT user_id, step FROM decisions WHERE user_id IN ({marks(len(some))})"
            self.taken.update((str(user), int(step)) for user, step in self.session.rows(query, some))
            self.know_users(some)

    def know_decisions(self, decisions: Iterable[int]) -> None:
        """Read decisions that are not known yet, with the balances of their users."""
        wanted = [number for number in dict.fromkeys(decisions) if number not in self.cases]
        for some in chunks(wanted):
            self._know_cases("decision", some)

    def know_users(self, users: Sequence[str]) -> None:
        """Read the balances of users with budgets that have a cap."""
        capped = [name for name, account in self.budgets.items() if account.user_cap is not None]
        new = [user for user in dict.fromkeys(users) if user not in self.known_users]
        if not capped or not new:
            return
        self.known_users.update(new)
        query = f"SELECT user_id, budget, held, spent, user_cap FROM user_balances WHERE user_id IN ({marks(len(new))})"
        for user, budget, held, spent, cap in self.session.rows(query, new):
            self.users.setdefault((user, budget), Account(cap, held, spent))

    def accounts(self, user: str, budget: str) -> list[Account]:
        """All that a charge to a budget for a user counts in."""
        account = self.budgets[budget]
        if account.user_cap is None:
            return [account]
        if user not in self.known_users:  # who was not read would be taken for somebody who has spent nothing
            self.know_users([user])
        return [account, self.users.setdefault((user, budget), Account(account.user_cap, 0, 0))]

    def left(self, user: str, budget: str) -> int:
        """What a budget can still pay for a user."""
        left = [left for account in self.accounts(user, budget) if (left := account.left) is not None]
        cap = self.budgets[budget].user_cap
        if cap is not None:
            # The user's own limit is the cap, or what was above it when it was lowered: that is never given again.
            own = self.users[user, budget]
            left.append(max(0, cap - own.held - own.spent))
        return min(left)

    def left_of_all(self, user: str) -> Mapping[str, int]:
        """What each budget can still pay for a user."""
        return {budget: self.left(user, budget) for budget in self.budgets}

    def write(self, user: str, entry: Entry) -> None:
        """Change the balances as an entry says, and remember to write it."""
        self.entries.append(entry)
        if self.budgets[entry.budget].user_cap is not None:
            self.touched_users.add((user, entry.budget))
        for account in self.accounts(user, entry.budget):
            account.held += entry.held_change
            account.spent += entry.spent_change
        budget = self.budgets[entry.budget]
        budget.expected += entry.expected_change
        budget.closed -= min(0, entry.expected_change)

    def tally(self, case: Case, place: int, reward: float = 0.0, spent: int = 0, count: int = 1) -> None:
        """Count a decision among those of its step and action."""
        key = (case.record.step, case.record.action)
        row = self.tallies.setdefault(key, [0, 0, 0, 0, 0.0, 0])
        row[place] += count
        row[4] += reward
        row[5] += spent

    def add(self, case: Case) -> None:
        """A decision that is new."""
        self._keep(case)
        self.taken.add((case.record.user, case.record.step))
        self.added.append(case)

    def balances(self) -> tuple[Balance, ...]:
        """Of the budgets, now."""
        return tuple(
            Balance(
                name,
                one.limit or 0,
                one.held,
                one.spent,
                one.expected,
                one.closed,
                one.user_cap,
                one.measure,
                one.minor_units,
            )
            for name, one in self.budgets.items()
        )

    def _know_cases(self, column: str, values: Sequence[Any]) -> None:
        """Read decisions with the balances of their own users, whoever it is that asks about them."""
        found = decided_rows(self.session, f"{column} IN ({marks(len(values))})", values)
        for case in found:
            self._keep(case)
        self.know_users([case.record.user for case in found])

    def _keep(self, case: Case) -> None:
        self.cases.setdefault(case.record.decision, case)
        self.by_request.setdefault(case.record.request, self.cases[case.record.decision])


def decided_rows(session: Session, condition: str, values: Sequence[Any]) -> list[Case]:
    """Decisions with their charges."""
    rows = session.rows(f"SELECT {_COLUMNS} FROM decisions WHERE {condition}", list(values))
    charged: dict[int, list[tuple[Any, ...]]] = {}
    for some in chunks([row[0] for row in rows]):
        query = (
            "SELECT decision, budget, held, open, ceiling, spent, expected_thousandths FROM charges "
            f"WHERE decision IN ({marks(len(some))}) ORDER BY decision, budget"
        )
        for charge in session.rows(query, some):
            charged.setdefault(charge[0], []).append(charge)
    return [_case(row, charged.get(row[0], [])) for row in rows]


def _case(row: tuple[Any, ...], charged: Sequence[tuple[Any, ...]]) -> Case:
    decision, request, user, step, action, propensity, probabilities, prices, plan, features = row[:10]
    status, decided_at, expires_at, reward, closed_at, fingerprint, is_number = row[10:]
    spent = {charge[1]: charge[5] for charge in charged}
    record = Decided(
        decision=decision,
        request=request,
        user=user,
        step=step,
        action=action,
        propensity=propensity,
        probabilities=probabilities,
        prices=prices,
        plan=plan,
        features=features,
        status=Status(status),
        decided_at=decided_at,
        expires_at=expires_at,
        reward=reward,
        closed_at=closed_at,
        charges=tuple(Charge(charge[1], charge[2], charge[4], charge[6]) for charge in charged),
        spent=spent,
        is_number=bool(is_number),
    )
    still_held = {charge[1]: charge[3] for charge in charged}
    return Case(record, fingerprint, still_held, spent, record.status, reward, closed_at)


# The end of a transaction: everything that its commands changed, written in one go.


def write_all(book: Book) -> None:
    """Write what changed; nothing is seen of it before the transaction is committed."""
    session = book.session
    first_entry = book.last["entry"] + 1
    book.last["entry"] += len(book.entries)
    _decisions(book)
    if book.entries:
        session.many(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    first_entry + place,
                    entry.at,
                    entry.kind,
                    entry.decision,
                    entry.budget,
                    entry.total_change,
                    entry.held_change,
                    entry.spent_change,
                    entry.expected_change,
                )
                for place, entry in enumerate(book.entries)
            ],
        )
        touched = {entry.budget for entry in book.entries}
        session.many(
            "UPDATE budgets SET held = ?, spent = ?, expected_thousandths = ?, closed_thousandths = ? WHERE budget = ?",
            [
                (one.held, one.spent, one.expected, one.closed, name)
                for name, one in book.budgets.items()
                if name in touched
            ],
        )
    if book.touched_users:
        session.many(
            "INSERT INTO user_balances VALUES (?, ?, ?, ?, ?) ON CONFLICT (user_id, budget) DO UPDATE SET "
            "held = excluded.held, spent = excluded.spent",
            [(*key, (own := book.users[key]).held, own.spent, own.limit) for key in sorted(book.touched_users)],
        )
    if book.tallies:
        session.many(
            "INSERT INTO tallies VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (step, action) DO UPDATE SET "
            "decided = tallies.decided + excluded.decided, settled = tallies.settled + excluded.settled, "
            "released = tallies.released + excluded.released, expired = tallies.expired + excluded.expired, "
            "reward = tallies.reward + excluded.reward, spent = tallies.spent + excluded.spent",
            [(*key, *counts) for key, counts in book.tallies.items()],
        )
    for at, content in book.notes:
        session.many("INSERT INTO price_notes VALUES (?, ?, ?)", [(book.number("note"), at, content)])
    session.many("UPDATE counters SET value = ? WHERE name = ?", [(value, name) for name, value in book.last.items()])


def _decisions(book: Book) -> None:
    session = book.session
    if book.added:
        session.many(
            "INSERT INTO decisions (decision, request, fingerprint, user_id, step, action, propensity, probabilities, "
            "prices, plan, features, status, decided_at, expires_at, is_number) "
            f"VALUES ({marks(15)})",
            [
                (
                    (one := case.record).decision,
                    one.request,
                    case.fingerprint,
                    one.user,
                    one.step,
                    one.action,
                    one.propensity,
                    one.probabilities,
                    one.prices,
                    one.plan,
                    one.features,
                    "open",
                    one.decided_at,
                    one.expires_at,
                    int(one.is_number),
                )
                for case in book.added
            ],
        )
        charges = [
            (
                case.record.decision,
                one.budget,
                one.held,
                case.open[one.budget],
                one.ceiling,
                case.spent[one.budget],
                one.expected_thousandths,
            )
            for case in book.added
            for one in case.record.charges
        ]
        if charges:
            session.many("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", charges)
    if book.changed:
        cases = list(book.changed.values())
        session.many(
            "UPDATE decisions SET status = ?, reward = ?, closed_at = ? WHERE decision = ?",
            [(case.status.value, case.reward, case.closed_at, case.record.decision) for case in cases],
        )
        changes = [
            (case.open[budget], case.spent[budget], case.record.decision, budget)
            for case in cases
            for budget in case.open
        ]
        if changes:
            session.many("UPDATE charges SET open = ?, spent = ? WHERE decision = ? AND budget = ?", changes)

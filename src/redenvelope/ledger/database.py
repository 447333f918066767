"""The tables, for both databases. Balances are rows beside the entries; the CHECKs are the last word on money."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

FORMAT = 4
"""Of the tables."""


@dataclass(frozen=True)
class Dialect:
    """How a database spells what the tables need."""

    integer: str
    real: str
    ending: str
    append_only: tuple[str, ...]
    """Statements after which entries can be added, and neither changed nor removed."""


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
    # One row each: the format, the seed of all draws, and the last number given to a decision and to an entry. A writer
    # takes the lock of this table's rows first, so that writers of several processes follow one another.
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
    # Only of users of budgets with a cap a user.
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
    # decision is 0 where a total was set.
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


def statements(dialect: Dialect) -> tuple[str, ...]:
    """What makes the tables where they are missing."""
    tables = (table.format(integer=dialect.integer, real=dialect.real, ending=dialect.ending) for table in _TABLES)
    return (*tables, *dialect.append_only)


def first_counters(seed: int | None) -> list[tuple[str, int]]:
    """What a new ledger's counters are.

    Without a seed it is drawn: with one and the same, whoever got a rare action in one campaign would get it in the
    next one too, and its log could not tell what the action did from who the user is.
    """
    drawn = secrets.randbits(63) if seed is None else seed
    return [("format", FORMAT), ("seed", drawn), ("decision", 0), ("entry", 0), ("note", 0)]


# One transaction's way to the database: the same statements for both, with ? where a value stands.


_CHUNK = 500


class Session(Protocol):
    """Statements inside of one transaction."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        ...

    def many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """A statement for each row of values."""
        ...


def marks(count: int) -> str:
    """So many values, for IN (…)."""
    return ", ".join("?" * count)


def chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Values in pieces that one statement can take."""
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]

"""The tables of a ledger, the same in SQLite and PostgreSQL.

`events` holds what happened, in the order of commits, with the resulting changes of balances; `decisions` and `charges`
hold what was decided. These rows never change, and a hash chain runs through them. Balances, states of decisions and
counts (`budgets`, `user_balances`, `tallies`, `open` and `spent` of `charges`, `status`, `reward` and `closed_at` of
`decisions`) repeat what the events say, so that nobody has to add them up.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

FORMAT = 6
"""The version of the tables."""

OLDER_FORMATS = (4, 5)
"""Older formats that can be migrated."""

EVENTS = (
    *("create", "change", "restore", "migrate", "plan", "price", "forget"),
    *("decide", "settle", "release", "expire", "refuse", "correct"),
)
"""The kinds of events; those in the first line belong to no decision.

`create` begins a ledger; `change` alters its identity or a budget; `restore` begins a new epoch; `migrate` follows the
events of an older format; `plan` describes a plan; `price` records paced prices; `forget` erases what identifies a
user. An outcome settles or releases a decision; `refuse` keeps the reward of an outcome that could not be paid;
`correct` replaces a recorded outcome.
"""

IDENTITY = ("ledger", "epoch", "campaign", "currency", "mode")
"""The identity of a ledger: a random number, another one for each creation or restore, and its campaign."""


@dataclass(frozen=True)
class Dialect:
    """What differs between databases in the statements for the tables."""

    integer: str
    real: str
    ending: str
    clock: str
    """The time of the database, in milliseconds since 1970."""
    append_only: tuple[str, ...]
    """Statements that make `events` append-only."""
    cleaning: tuple[str, ...]
    """Statements that remove overwritten content from the files of the database."""
    dropped: tuple[str, ...] = ()
    """Statements that remove what remains after tables of any format were dropped."""

    def statements(self) -> tuple[str, ...]:
        """The statements that create the tables."""
        tables = (table.format(integer=self.integer, real=self.real, ending=self.ending) for table in TABLES)
        return (*tables, *self.append_only)


SQLITE = Dialect(
    integer="INTEGER",
    real="REAL",
    ending="STRICT",
    clock="CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    append_only=tuple(
        f"CREATE TRIGGER events_{event.lower()} BEFORE {event} ON events "
        "BEGIN SELECT RAISE(ABORT, 'events are only ever added'); END"
        for event in ("UPDATE", "DELETE")
    ),
    cleaning=("PRAGMA wal_checkpoint(TRUNCATE)",),
)
POSTGRES = Dialect(
    integer="BIGINT",
    real="DOUBLE PRECISION",
    ending="",
    clock="CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    append_only=(
        "CREATE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'events are only ever added'; END $$",
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events "
        "EXECUTE FUNCTION events_append_only()",
    ),
    cleaning=("VACUUM decisions", "VACUUM user_balances"),
    dropped=("DROP FUNCTION IF EXISTS entries_append_only, events_append_only",),
)


def first_counters(seed: int | None) -> list[tuple[str, int]]:
    """The counters of a new ledger.

    Without a given seed, one is drawn. If every ledger had the same seed, a user with a rare action in one campaign
    would get it in the next one too, and the log could not separate the effect of the action from its users.
    """
    drawn = secrets.randbits(63) if seed is None else seed
    return [("format", FORMAT), ("seed", drawn), ("decision", 0), ("event", 0)]


def first_identity() -> list[tuple[str, str]]:
    """The identity of a new ledger, before its campaign is known."""
    return [*zip(IDENTITY, (secrets.token_hex(4), secrets.token_hex(4), "", "", ""), strict=True)]


TABLES = (
    # One row each for the format, the seed of all draws, and the last numbers of decisions and events. A writer locks
    # these rows first, so that writers in several processes take turns.
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value {integer} NOT NULL) {ending}",
    # One row for each of IDENTITY.
    "CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL) {ending}",
    """CREATE TABLE budgets (
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
    """CREATE TABLE user_balances (
        user_id TEXT NOT NULL,
        budget TEXT NOT NULL REFERENCES budgets,
        held {integer} NOT NULL CHECK (held >= 0),
        spent {integer} NOT NULL CHECK (spent >= 0),
        user_cap {integer} NOT NULL,
        PRIMARY KEY (user_id, budget),
        CONSTRAINT never_above_the_cap CHECK (spent + held <= user_cap)
    ) {ending}""",
    # JSON: probabilities (by label), prices (empty: control group), features (as sent), eligible (labels that could be
    # drawn; empty: all), rules (those that excluded an action), state (what the plan decided by, besides features).
    # `salt` enters the digest of what identifies the user; once the user is forgotten, the salt is erased and the
    # digest itself is stored.
    """CREATE TABLE decisions (
        decision {integer} PRIMARY KEY,
        request TEXT NOT NULL UNIQUE,
        fingerprint TEXT NOT NULL,
        user_id TEXT NOT NULL,
        step {integer} NOT NULL,
        action TEXT NOT NULL,
        is_number {integer} NOT NULL CHECK (is_number IN (0, 1)),
        holdout {integer} NOT NULL CHECK (holdout IN (0, 1)),
        propensity {real} NOT NULL CHECK (propensity > 0 AND propensity <= 1),
        probabilities TEXT NOT NULL,
        prices TEXT NOT NULL,
        plan TEXT NOT NULL,
        features TEXT NOT NULL,
        eligible TEXT NOT NULL,
        rules TEXT NOT NULL,
        state TEXT NOT NULL,
        decided_at {integer} NOT NULL,
        expires_at {integer} NOT NULL,
        public_id TEXT NOT NULL,
        salt TEXT,
        digest TEXT,
        status TEXT NOT NULL CHECK (status IN ('open', 'settled', 'released', 'expired')),
        reward {real},
        closed_at {integer},
        UNIQUE (user_id, step),
        CONSTRAINT salted_or_forgotten CHECK ((salt IS NULL) <> (digest IS NULL))
    ) {ending}""",
    "CREATE INDEX decisions_open ON decisions (expires_at) WHERE status = 'open'",
    """CREATE TABLE charges (
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
    # The numbers of events have no gaps, so a reader who has reached one of them knows what is new. `decision` is 0 if
    # there is none, and `content` is JSON or empty. `entries` are the changes of balances, as JSON: budget, and what is
    # added to its total, held, spent and expected amounts. `chain` is the hash of all events so far.
    f"""CREATE TABLE events (
        event {{integer}} PRIMARY KEY,
        at {{integer}} NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ({", ".join(f"'{kind}'" for kind in EVENTS)})),
        decision {{integer}} NOT NULL,
        reward {{real}},
        content TEXT NOT NULL,
        entries TEXT NOT NULL,
        chain TEXT NOT NULL
    ) {{ending}}""",
    "CREATE INDEX events_rare ON events (kind, event) WHERE decision = 0",
    """CREATE TABLE tallies (
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
)

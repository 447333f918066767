"""Whatever is changed in a ledger behind its back is found: rows, tables without their constraints, damaged bytes."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from redenvelope import Ledger, LedgerError, UsageError, open_ledger
from redenvelope.cli import app
from redenvelope.ledger import archive
from redenvelope.ledger.ledger import Verification, verify
from redenvelope.ledger.records import (
    Choice,
    Correct,
    Expire,
    Forget,
    Hold,
    Identify,
    NewEpoch,
    PlanNote,
    PriceNote,
)
from redenvelope.ledger.verification import replayed
from tests.ledger.asking import NOW, TTL, fund, hold, rows, settle


def _of_some(given: Hold) -> Hold:
    """The same with a list of the actions that could be drawn."""

    def choose(left: Mapping[str, int]) -> Choice | None:
        found = given.choose(left)
        return None if found is None else replace(found, eligible='["a"]')

    return replace(given, choose=choose)


def use(ledger: Ledger) -> Ledger:
    """Four decisions: settled, released, expired, open; a cap that was lowered."""
    both = {"money": 10, "pushes": 1}
    ledger.apply([Identify(NOW, "spring", "EUR", "strict", "ada"), fund(100, user_cap=60), fund(50, "pushes")])
    given = [hold("a", "u", both, expected=4_500), hold("b", "v", both), hold("c", "w", both)]
    ledger.apply([replace(_of_some(one), rules='["r"]', state="[0.5]") for one in given])
    ledger.apply([hold("d", "u", 5, 1, NOW + TTL), PriceNote(NOW, '{"price": 1}')])
    ledger.apply([settle(1, {"money": 7, "pushes": 1}), settle(2, 0), Expire(NOW + TTL)])
    ledger.apply([fund(100, user_cap=9)])
    return ledger


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    return use(ledger)


def edit(ledger: Ledger, statements: Sequence[str]) -> None:
    """Run statements as somebody does who may do everything, past triggers and foreign keys."""
    if ledger.database.lock:
        with ledger.database.transaction() as session:
            session.run("SET LOCAL session_replication_role = replica")
            for statement in statements:
                session.run(statement.replace("%", "%%"))
        return
    path = ledger.database._path  # type: ignore[attr-defined]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    connection.execute("BEGIN")
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, sql in triggers:
        connection.execute(sql)
    connection.execute("COMMIT")
    connection.close()


def test_a_sound_ledger_is_called_sound(used: Ledger) -> None:
    found = verify(used)
    assert found.is_sound, found.differences
    assert (found.decisions, found.events) == (4, 1 + 3 + 3 + 2 + 3 + 1)
    assert {"budget": "money", "total": 100, "held": 5, "spent": 7} in found.budgets
    assert found.identity is not None
    assert (found.identity["campaign"], found.identity["currency"], found.identity["mode"]) == (
        "spring",
        "EUR",
        "strict",
    )


def test_a_new_ledger_is_sound(ledger: Ledger) -> None:
    assert verify(ledger).is_sound


ROWS = [
    "DELETE FROM charges WHERE decision = 2 AND budget = 'money'",
    "INSERT INTO charges VALUES (4, 'pushes', 0, 0, 0, 0, 0)",
    "DELETE FROM user_balances WHERE user_id = 'u'",
    "INSERT INTO user_balances VALUES ('x', 'money', 1, 0, 9)",
    "DELETE FROM tallies",
    "INSERT INTO tallies VALUES (9, 'x', 1, 0, 0, 0, 0, 0)",
    "INSERT INTO budgets VALUES ('more', 3, 10, 0, 0, 0, 0, NULL, 'more', 100)",
    "DELETE FROM events WHERE event = 13",
    "DELETE FROM events WHERE event = 5",
    "INSERT INTO events VALUES (0, 0, 'settle', 4, 1, '', '[]', 'x')",
    f"UPDATE events SET decision = {10**12} WHERE event = 5",
    "INSERT INTO events VALUES (14, 0, 'settle', 4, 1, '', '[[\"money\",0,-5,5,0]]', 'x')",
    "DELETE FROM identity WHERE name = 'mode'",
    "INSERT INTO identity VALUES ('more', 'x')",
]
SEVERAL = [
    ["DELETE FROM charges WHERE decision = 3", "DELETE FROM decisions WHERE decision = 3"],
    # The features of two users change places, and so do two events.
    [
        "UPDATE decisions SET features = '{}' WHERE decision = 1",
        "UPDATE decisions SET features = '{\"x\": 1}' WHERE decision = 2",
    ],
    [f"UPDATE events SET event = {to} WHERE event = {of}" for of, to in ((10, 99), (11, 10), (99, 11))],
    # Whoever earned it gets more, and every balance agrees.
    [
        "UPDATE charges SET spent = 8 WHERE decision = 1 AND budget = 'money'",
        "UPDATE budgets SET spent = 8 WHERE budget = 'money'",
        "UPDATE user_balances SET spent = 8, user_cap = 20 WHERE user_id = 'u'",
        "UPDATE tallies SET spent = 8 WHERE settled = 1",
        "UPDATE events SET entries = replace(entries, '7', '8') WHERE event = 10",
    ],
    # The last event and all that it brought, as if it had never been.
    ["DELETE FROM events WHERE event = 13", "UPDATE counters SET value = 12 WHERE name = 'event'"],
]
TABLES = ("budgets", "user_balances", "decisions", "charges", "events", "tallies", "counters", "identity")
EDITS = [*([one] for one in ROWS), *SEVERAL]


def used_up(ledger: Ledger) -> Ledger:
    """The same, with what is rare: the control group, a refused outcome, a correction, forgotten users, a restore."""
    use(ledger).apply([replace(hold("h", "x", 3), holdout=True), hold("e", "y", 4), hold("f", "z", 4, expected=3_000)])
    ledger.apply([settle(5, 2), settle(7, 4), settle(6, 40, 2.5)])
    ledger.apply([Correct(5, 3.0, {"money": 1}, NOW + 3, by="ada", reason="typo"), PlanNote(NOW, "{}")])
    for user in ("z", "w"):
        ledger.apply([Forget(user, NOW + 4)])
    ledger.apply([NewEpoch(NOW + 5)])
    return ledger


def _others(value: object) -> list[str]:
    """Other values in the place of one, as SQL."""
    if value is None:
        return ["1", "'x'"]
    if isinstance(value, int):
        return [f"{value + 1}", f"{value - 1}", "NULL"]
    if isinstance(value, float):
        return [repr(math.nextafter(value, math.inf)), f"{value + 1}", "NULL"]
    texts = {f"{value}x", "", str(value).swapcase()} - {value}
    return ["NULL", *(_sql(one) for one in sorted(texts))]


def _sql(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def edits_of(ledger: Ledger) -> list[str]:
    """Every value of every row is changed, and every row removed."""
    found = []
    for table, key in archive._KEYS.items():
        with ledger.database.reading() as session:
            columns = session.columns(table)
        for values in rows(ledger, f"SELECT * FROM {table}"):
            row = dict(zip(columns, values, strict=True))
            where = " AND ".join(f"{name} = {_sql(row[name])}" for name in key.split(", "))
            found.append(f"DELETE FROM {table} WHERE {where}")
            found += [
                f"UPDATE {table} SET {name} = {to} WHERE {where}" for name in columns for to in _others(row[name])
            ]
    return found


def test_every_value_that_is_edited_is_found(ledger: Ledger, opened: Callable[[], Ledger]) -> None:
    """By the events, or by the database itself, which keeps its constraints here; verify looks for these too."""
    used_up(ledger)
    ledger = opened()  # in its new epoch
    edits, refused, missed = edits_of(ledger), 0, []
    for statement in edits:
        with suppress(ZeroDivisionError), ledger.database.transaction() as session:
            if ledger.database.lock:
                session.run("SET LOCAL session_replication_role = replica")
            else:
                session.run("DROP TRIGGER events_update")
                session.run("DROP TRIGGER events_delete")
            try:
                session.run(statement.replace("%", "%%"))
                differences = replayed(session)
            except ledger.database.failures:
                refused, differences = refused + 1, [None]
            if not differences:
                missed.append(statement)
            raise ZeroDivisionError  # and undo it
    # Sums of rewards in tallies are compared to nine digits.
    assert [one for one in missed if "tallies SET reward" not in one] == []
    assert refused < len(edits) / 2
    assert verify(ledger).is_sound


def test_what_is_edited_by_hand_is_found(used: Ledger) -> None:
    edit(used, [f"CREATE TABLE saved_{table} AS SELECT * FROM {table}" for table in TABLES])
    again = [f"DELETE FROM {table}" for table in TABLES]
    again += [f"INSERT INTO {table} SELECT * FROM saved_{table}" for table in TABLES]
    missed = []
    for statements in EDITS:
        edit(used, statements)
        found = verify(used).differences
        if not [one for one in found if "saved_" not in str(one)]:
            missed.append(statements)
        edit(used, again)
    assert not missed
    edit(used, [f"DROP TABLE saved_{table}" for table in TABLES])
    assert verify(used).is_sound


_CHANGE = '{"budget": 5, "user_cap": "x", "measure": 1}'
NONSENSE = ("[" * 100_000, "{}", "[]", "1", "null", '"x"', '{"status": "x"}', _CHANGE, "{")


def test_nonsense_in_an_event_is_reported_and_ends_nothing(ledger: Ledger, opened: Callable[[], Ledger]) -> None:
    used_up(ledger)
    ledger = opened()
    kept = dict(rows(ledger, "SELECT kind, min(event) FROM events GROUP BY kind"))
    for turn, event in enumerate(kept.values()):
        for column in ("content", "entries")[: 1 + turn % 2]:
            content = NONSENSE[turn % len(NONSENSE)]
            edit(ledger, [f"UPDATE events SET {column} = {_sql(content)} WHERE event = {event}"])
    found = [str(one) for one in verify(ledger).differences]
    assert all(any(f"event {event} (" in one for one in found) for event in kept.values()), found
    for content in NONSENSE:
        edit(ledger, [f"UPDATE events SET content = {_sql(content)} WHERE event = {kept['change']}"])
        assert not verify(ledger).is_sound


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE budgets SET spent = 8 WHERE place = 1", "budget money, spent: the ledger has 8, the events say 7"),
        ("UPDATE charges SET spent = 6 WHERE decision = 1 AND budget = 'money'", "decision 1, charge to money"),
        (
            "UPDATE decisions SET propensity = 0.4 WHERE decision = 1",
            "event 5 (decide, decision 1): the ledger has",
        ),
        ("UPDATE user_balances SET spent = 0 WHERE user_id = 'u'", "user u of money: the ledger has 5 held, 0 spent"),
        ("UPDATE tallies SET decided = 9 WHERE step = 1", "tally of step 1, action give 5"),
    ],
)
def test_what_differs_is_named(used: Ledger, statement: str, named: str) -> None:
    edit(used, [statement])
    found = verify(used)
    assert any(str(one).startswith(named) for one in found.differences), [str(one) for one in found.differences]


UNSAFE = {
    "sqlite": [
        "DROP TRIGGER events_update",
        "DROP TRIGGER events_delete",
        "DROP INDEX decisions_open",
        "CREATE TRIGGER more AFTER INSERT ON events BEGIN DELETE FROM tallies; END",
        "INSERT INTO sqlite_schema VALUES ('trigger', 'sqlite_more', 'events', 0, "
        "'CREATE TRIGGER sqlite_more AFTER INSERT ON events BEGIN DELETE FROM tallies; END')",
        *(
            f"UPDATE sqlite_schema SET sql = replace(sql, '{of}', '{to}')"
            for of, to in (
                ("CHECK (spent + held <= total)", "CHECK (1)"),
                ("CHECK (spent + held <= user_cap)", "CHECK (1)"),
                (" CHECK (open >= 0 AND open <= held)", ""),
                ("CHECK (spent <= ceiling)", "CHECK (spent <= 9 * ceiling)"),
                (" REFERENCES budgets", ""),
                ("''expired''", "''expired'', ''lost''"),
                ("STRICT", ""),
            )
        ),
    ],
    "postgresql": [
        "DROP TRIGGER events_append_only ON events",
        "ALTER TABLE events DISABLE TRIGGER events_append_only",
        "ALTER TABLE charges DISABLE TRIGGER ALL",
        "CREATE OR REPLACE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NULL; END $$",
        "DROP INDEX decisions_open",
        "ALTER TABLE budgets ALTER COLUMN measure DROP NOT NULL",
        "ALTER TABLE events SET UNLOGGED",
        "ALTER TABLE budgets ENABLE ROW LEVEL SECURITY",
        "CREATE RULE more AS ON UPDATE TO budgets DO INSTEAD NOTHING",
        "CREATE TABLE more () INHERITS (tallies)",
        "ALTER TABLE budgets DROP CONSTRAINT never_overspent, ADD CONSTRAINT never_overspent CHECK (true)",
        "ALTER TABLE budgets DROP CONSTRAINT never_overspent, "
        "ADD CONSTRAINT never_overspent CHECK (spent + held <= total) NOT VALID",
    ],
}


def test_missing_and_weakened_constraints_are_found(used: Ledger) -> None:
    kind = "postgresql" if used.database.lock else "sqlite"
    unsafe = UNSAFE[kind]
    if kind == "postgresql":
        names = ", ".join(f"'{table}'::regclass" for table in TABLES)
        query = f"SELECT conrelid::regclass, conname FROM pg_constraint WHERE conrelid IN ({names})"
        unsafe = [
            *unsafe,
            *(f"ALTER TABLE {table} DROP CONSTRAINT {name} CASCADE" for table, name in rows(used, query)),
        ]
        assert len(unsafe) > 40
    for statement in unsafe:
        if kind == "postgresql":
            assert _broken_in_postgresql(used, statement), statement
            continue
        path = used.database._path  # type: ignore[attr-defined]
        copy = path.with_name("copy.db")
        copy.unlink(missing_ok=True)
        with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
            source.backup(target)
            target.execute("PRAGMA writable_schema = ON")
            assert target.execute(statement).rowcount, statement
        source.close()
        target.close()
        assert _is_found(copy), statement
    assert verify(used).is_sound


def _broken_in_postgresql(ledger: Ledger, statement: str) -> bool:
    """What is found while the statement holds; it is undone."""
    connection = ledger.database._reader()  # type: ignore[attr-defined]
    found: list[str] = []
    with suppress(ZeroDivisionError), connection.transaction():
        connection.execute(statement)
        found, _ = ledger.database.damage()
        raise ZeroDivisionError
    return bool(found)


def _is_found(path: Path) -> bool:
    """Whether a ledger in SQLite cannot be opened, or is not sound."""
    try:
        return not verified(f"sqlite:///{path}").is_sound
    except LedgerError:
        return True


def verified(url: str, head: str = "") -> Verification:
    ledger = open_ledger(url, read_only=True)
    try:
        return verify(ledger, head)
    finally:
        ledger.close()


def contents(path: Path) -> object:
    """Every row of a ledger, or None where they cannot be read."""
    connection = sqlite3.connect(path)
    try:
        return [
            sorted(connection.execute(f"SELECT * FROM {table} NOT INDEXED").fetchall(), key=repr) for table in TABLES
        ]
    except sqlite3.Error:
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("file", ["l.db", "l.db-wal"])
def test_single_bits_that_flip_are_found(tmp_path: Path, file: str) -> None:
    """Every bit that changes a row is found; others may be in space that nothing uses."""
    (tmp_path / "own").mkdir()
    path = tmp_path / "own" / "l.db"
    ledger = use(open_ledger(f"sqlite:///{path}"))
    ledger.apply([hold(f"more {place}", amount=0) for place in range(60)])
    if file == "l.db":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    whole, chance, found = contents(path), np.random.default_rng(5), 0
    good = (path.parent / file).read_bytes()
    for turn in range(60):
        folder = tmp_path / f"{turn}"
        folder.mkdir()
        for each in path.parent.glob("l.db*"):
            shutil.copy(each, folder)
        (folder / "l.db-shm").unlink(missing_ok=True)
        bad = bytearray(good)
        bad[int(chance.integers(len(bad)))] ^= 1 << int(chance.integers(8))
        (folder / file).write_bytes(bad)
        is_found = _is_found(folder / "l.db")
        found += is_found
        assert is_found or contents(folder / "l.db") == whole, turn
        shutil.rmtree(folder)
    assert found >= (50 if file == "l.db-wal" else 8)
    ledger.close()


def test_damage_to_the_end_of_the_log_or_to_the_schema_is_found(tmp_path: Path) -> None:
    """A last commit with another salt looks like the rest of an older log."""
    path, bad = tmp_path / "l.db", tmp_path / "bad.db"
    ledger = use(open_ledger(f"sqlite:///{path}"))
    log, main = (tmp_path / "l.db-wal").read_bytes(), path.read_bytes()
    last = 32 + ((len(log) - 32) // 4_120 - 1) * 4_120
    assert log[16:24] == log[last + 8 : last + 16]
    for place in (*range(8, 24), 40):
        bad.write_bytes(main)
        damaged = bytearray(log)
        damaged[last + place] ^= 0x81
        (tmp_path / "bad.db-wal").write_bytes(damaged)
        assert _is_found(bad), place
    ledger.close()
    (tmp_path / "bad.db-wal").unlink()
    bad.write_bytes(path.read_bytes().replace(b"CREATE TABLE tallies", b"CREATE TABL\xc1 tallies"))
    assert _is_found(bad)


def test_a_damaged_log_is_neither_read_nor_thrown_away(tmp_path: Path) -> None:
    path, saved = tmp_path / "l.db", tmp_path / "saved"
    ledger = use(open_ledger(f"sqlite:///{path}"))
    ledger.close()
    ledger = open_ledger(f"sqlite:///{path}")
    for turn in range(4):
        ledger.apply([hold(f"more {turn}", amount=1)])
    saved.mkdir()
    for each in tmp_path.glob("l.db*"):
        shutil.copy(each, saved)
    ledger.close()
    log = saved / "l.db-wal"
    content = bytearray(log.read_bytes())
    content[9_000:9_064] = bytes(255 - one for one in content[9_000:9_064])
    log.write_bytes(content)
    found = verified(f"sqlite:///{saved}/l.db")
    assert any("commits may be lost" in str(one) for one in found.differences), found.differences
    with pytest.raises(LedgerError, match="commits may be lost"):
        open_ledger(f"sqlite:///{saved}/l.db")
    assert log.read_bytes() == content


def test_an_archive_is_verified_without_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    ledger = use(open_ledger(f"sqlite:///{tmp_path}/l.db"))
    for each in tmp_path.glob("l.db*"):
        shutil.copy(each, folder)
    ledger.close()
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    for names in (["l.db", "l.db-shm", "l.db-wal"], ["l.db", "l.db-wal"]):
        before = {each.name: each.read_bytes() for each in folder.iterdir()}
        assert sorted(before) == names
        assert verified(f"sqlite:///{folder}/l.db").is_sound
        assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
        (folder / "l.db-shm").unlink(missing_ok=True)


def test_a_head_that_was_kept_proves_what_came_before(used: Ledger, url: str) -> None:
    head = verify(used).head
    used.apply([hold("later", "x", 1)])
    found = verify(used, head[:12])
    assert (found.is_sound, found.head_event) == (True, 13)
    runner = CliRunner()
    said = runner.invoke(app, ["ledger", "verify", url, "--head", head])
    assert said.exit_code == 0, said.output
    assert "events up to 13 are those of the head" in said.output
    assert runner.invoke(app, ["ledger", "verify", url, "--head", "f" * 64]).exit_code == 3
    assert isinstance(runner.invoke(app, ["ledger", "verify", url, "--head", "abc"]).exception, UsageError)


def test_a_tail_that_is_cut_off_is_found_by_a_head_only(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    ledger = use(open_ledger(f"sqlite:///{path}"))
    shutil.copy(path, tmp_path / "nothing")
    ledger.close()
    shutil.copy(path, tmp_path / "before.db")
    ledger = open_ledger(f"sqlite:///{path}")
    ledger.apply([hold("later", "x", 1)])
    head = verify(ledger).head
    ledger.close()
    assert verified(f"sqlite:///{tmp_path}/before.db").is_sound
    assert not verified(f"sqlite:///{tmp_path}/before.db", head).is_sound


def test_a_reader_of_the_events_sees_them_in_their_order(opened: Callable[[], Ledger]) -> None:
    ledger = use(opened())
    kinds = [kind for (kind,) in rows(ledger, "SELECT kind FROM events ORDER BY event")]
    expected = ["create", "change", "change", "change", "decide", "decide", "decide", "decide", "price"]
    assert kinds == [*expected, "settle", "release", "expire", "change"]

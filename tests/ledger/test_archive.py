"""Back-ups, restores under load, migrations from older formats, and users who are forgotten."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from redenvelope import Ledger, LedgerError, UsageError, open_ledger
from redenvelope.cli import app
from redenvelope.ledger import archive
from redenvelope.ledger.archive import back_up, migrate, restore
from redenvelope.ledger.database import Session
from redenvelope.ledger.ledger import Writer, create_ledger, verify
from redenvelope.ledger.records import Decided, Done, Forget, Refusal, Refused, Settle, Settled, Status
from redenvelope.ledger.verification import replayed
from redenvelope.serve.monitoring import in_thread
from tests.ledger.asking import NOW, fund, hold, rows, settle

if TYPE_CHECKING:
    from tests.ledger.postgres_server import PostgresServer

FORMATS = Path(__file__).parent / "formats"


def report(ledger: Ledger, decision: Decided, amount: int = 1) -> object:
    (found,) = ledger.apply([Settle(decision.decision, 1.0, {"money": amount}, NOW, decision.public_id)])
    return found


def test_a_ledger_is_backed_up_and_restored_under_load(url: str, tmp_path: Path) -> None:
    """Eight threads hold and settle; what was told before the back-up is there after the restore, what was told after
    it is refused, and whoever has the ledger open goes no further."""
    ledger, file = open_ledger(url), tmp_path / "backup.db"
    ledger.apply([fund(100_000, user_cap=50)])
    writer, lock, stop = Writer(ledger), threading.Lock(), threading.Event()
    told: list[tuple[Decided, bool]] = []
    failed: list[str] = []

    def client(number: int) -> None:
        for count in range(100_000):
            if stop.is_set():
                return
            try:
                (one,) = writer.submit([hold(f"{number}-{count}", amount=3)]).result()
                assert isinstance(one, Decided)
                settles = count % 2 == 0
                if settles:
                    writer.submit([settle(one.decision, 2)]).result()
            except LedgerError as error:
                failed.append(str(error))
                return
            with lock:
                told.append((one, settles))

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()

    def wait_for(count: int) -> list[tuple[Decided, bool]]:
        while len(told) < count:
            assert not failed, failed
            stop.wait(0.005)
        with lock:
            return list(told)

    before = wait_for(60)
    made = back_up(url, file)
    assert made.is_sound, made.differences
    assert made.decisions >= len(before)
    wait_for(len(told) + 40)
    identity = restore(file, url, replace=True, by="ada")
    for thread in threads:
        thread.join(30)
    assert len(failed) == 8
    writer.close()
    assert all("restored from a back-up" in said or "not available" in said for said in failed), failed
    with pytest.raises(LedgerError, match="restored from a back-up"):
        ledger.balances()
    ledger.close()
    again = open_ledger(url)
    assert again.database.epoch == identity["epoch"] != ledger.database.epoch
    assert again.database.ledger == ledger.database.ledger
    found = verify(again, made.head)
    assert found.is_sound, found.differences
    assert (found.decisions, found.head_event) == (made.decisions, made.events)
    kept = {row[0] for row in rows(again, "SELECT public_id FROM decisions")}
    for one, settles in before:
        assert one.public_id in kept
        assert isinstance(report(again, one, 2 if settles else 1), Settled)
    lost = [one for one, _ in told if one.public_id not in kept]
    assert lost
    again.apply([hold(f"new {place}") for place in range(20)])
    for one in lost:
        refused = report(again, one)
        assert isinstance(refused, Refused)
        assert refused.refusal is Refusal.OTHER_DECISION
    assert verify(again).is_sound
    again.close()


def test_a_back_up_goes_to_an_empty_place_of_either_database(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ledger, file = open_ledger(url, seed=5), tmp_path / "backup.db"
    ledger.apply([fund(100, user_cap=20), hold("a", "u", 7)])
    back_up(url, file)
    server: PostgresServer = request.getfixturevalue("postgres")
    for place in (f"sqlite:///{tmp_path}/elsewhere.db", server.database()):
        restore(file, place)
        with pytest.raises(UsageError, match="there is a ledger at this URL"):
            restore(file, place)
        found = open_ledger(place)
        assert (found.seed, found.database.ledger) == (5, ledger.database.ledger)
        assert found.database.epoch != ledger.database.epoch
        assert isinstance(found.apply([settle(1, 7)])[0], Settled)
        assert verify(found).is_sound
        found.close()
    create_ledger(f"sqlite:///{tmp_path}/other.db").close()
    with pytest.raises(UsageError, match="another ledger"):
        restore(file, f"sqlite:///{tmp_path}/other.db", replace=True)
    ledger.close()


def test_a_restore_waits_for_who_decides_and_reads(postgres: PostgresServer, tmp_path: Path) -> None:
    """In the order in which they use the tables: otherwise each would wait for the other, and one would be ended."""
    url, file = postgres.database(), tmp_path / "backup.db"
    ledger = open_ledger(url)
    ledger.apply([fund(100), hold("a")])
    back_up(url, file)
    for first, then in (("counters FOR UPDATE", "events"), ("decisions", "charges")):
        with ledger.database.transaction() as session:
            session.rows(f"SELECT 1 FROM {first}")
            restored = in_thread(partial(restore, file, url, True), "restore")
            threading.Event().wait(0.5)
            assert session.rows(f"SELECT 1 FROM {then}")
        restored.result(30)
    ledger.close()


@pytest.mark.parametrize("before", ["nothing", "the ledger"])
def test_a_restore_that_is_interrupted_leaves_what_was_there(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """No new ledger with all of its money is in its place, and it can be restored again."""
    made, file = f"sqlite:///{tmp_path}/made.db", tmp_path / "backup.db"
    ledger = open_ledger(made if before == "nothing" else url)
    ledger.apply([fund(100), hold("a")])
    back_up(made if before == "nothing" else url, file)
    ledger.apply([hold("b")])
    ledger.close()
    copy, tables = archive._copy, iter(range(10))

    def interrupted(old: Session, new: Session) -> None:
        copy(old, new)
        if next(tables) < 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(archive, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        restore(file, url, replace=True)
    if before == "nothing":
        with pytest.raises(LedgerError):
            open_ledger(url, create=False)
    else:
        ledger = open_ledger(url, create=False)
        assert len(ledger.decided()) == 2
        ledger.close()
    restore(file, url, replace=True)
    ledger = open_ledger(url)
    assert len(ledger.decided()) == 1
    assert verify(ledger).is_sound
    ledger.close()


def test_a_back_up_never_replaces_a_ledger_in_use(tmp_path: Path) -> None:
    url, other = f"sqlite:///{tmp_path}/l.db", f"sqlite:///{tmp_path}/other.db"
    for place in (url, other):
        open_ledger(place).close()
    for name in ("l.db", "other.db"):
        with pytest.raises(UsageError, match="ledger in use"):
            back_up(url, tmp_path / name)
    with pytest.raises(UsageError, match="the ledger itself"):
        restore(tmp_path / "l.db", url, replace=True)
    for _ in range(2):  # an older back-up may be replaced
        assert back_up(url, tmp_path / "backup.db").is_sound


def test_a_back_up_that_is_not_sound_is_not_restored(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/l.db", tmp_path / "backup.db"
    ledger = open_ledger(url)
    ledger.apply([fund(100), hold("a")])
    ledger.close()
    back_up(url, file)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE budgets SET held = 9")
    connection.close()
    with pytest.raises(LedgerError, match="not sound"):
        restore(file, f"sqlite:///{tmp_path}/new.db")
    assert not (tmp_path / "new.db").exists()


def old_ledger(url: str, number: int) -> None:
    """Lay down a ledger as an older version made it."""
    script = (FORMATS / f"format_{number}.sql").read_text(encoding="utf-8")
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(script)
        connection.execute(f"PRAGMA application_id = {0x52456E76}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        return
    import psycopg

    script = re.sub(r"CREATE TRIGGER .*?END;", "", script, flags=re.S)
    script = re.sub(r"BEGIN TRANSACTION;|COMMIT;| STRICT| REFERENCES \w+", "", script)
    script = script.replace("INTEGER", "BIGINT").replace(" REAL", " DOUBLE PRECISION")
    with psycopg.connect(url, autocommit=True) as opened:
        for statement in script.split(";\n"):
            if statement.strip():
                opened.execute(statement)
        opened.execute(
            "CREATE FUNCTION entries_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'entries are only ever added'; END $$"
        )
        opened.execute(
            "CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries "
            "EXECUTE FUNCTION entries_append_only()"
        )


@pytest.mark.parametrize("number", [4, 5])
def test_a_ledger_of_an_older_format_is_migrated(url: str, number: int) -> None:
    old_ledger(url, number)
    with pytest.raises(LedgerError, match=rf"format {number}.*ledger migrate"):
        open_ledger(url)
    before, found = migrate(url, "ada")
    assert (before, found.is_sound, found.decisions) == (number, True, 7), found.differences
    ledger = open_ledger(url)
    assert ledger.seed == 7
    balances = {one.budget: (one.total, one.held, one.spent, one.user_cap) for one in ledger.balances()}
    assert balances == {"budget": (120, 9, 16, 9), "pushes": (50, 0, 2, None)}
    decided = ledger.decided()
    states = [(one.status, one.reward, one.spent.get("budget")) for one in decided]
    assert states == [
        (Status.SETTLED, 1.5, 7),
        (Status.RELEASED, 0.25, 0),
        (Status.RELEASED, 2.0, None),
        (Status.SETTLED, 3.0, 9),
        (Status.EXPIRED, None, None),
        (Status.OPEN, None, 0),
        (Status.OPEN, None, 0),
    ]
    assert [json for _, json in ledger.price_notes()] == ['{"price": 1}']
    # Ids that were given before are settled as before, and the cap counts what was spent before.
    (outcome,) = ledger.apply([Settle(7, 1.0, {"budget": 4}, NOW, decided[6].public_id)])
    assert isinstance(outcome, Settled)
    refused, *_ = ledger.apply([hold("more", "u", {"budget": 9}, step=2)])
    assert isinstance(refused, Refused)
    kinds = [kind for (kind,) in rows(ledger, "SELECT kind FROM events ORDER BY event")]
    assert kinds.count("decide") == 7
    assert kinds.count("expire") == 2
    assert verify(ledger).is_sound
    ledger.close()
    with pytest.raises(UsageError, match="nothing to migrate"):
        migrate(url)


def test_what_cannot_be_migrated_is_left_as_it_is(url: str) -> None:
    old_ledger(url, 5)
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("UPDATE budgets SET spent = 15 WHERE place = 1")
        connection.commit()
        tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'events'"
    else:
        import psycopg

        connection = psycopg.connect(url, autocommit=True)  # type: ignore[assignment]
        connection.execute("UPDATE budgets SET spent = 15 WHERE place = 1")
        tables = (
            "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema AND tablename IN ('events', 'identity')"
        )
    with pytest.raises(LedgerError, match=r"contradicts itself.*left as it is"):
        migrate(url)
    with pytest.raises(LedgerError, match="format 5"):
        open_ledger(url)
    assert connection.execute(tables).fetchall() == [(0,)]
    connection.close()


def test_a_user_is_forgotten_and_everything_still_adds_up(opened: Callable[[], Ledger], url: str) -> None:
    ledger = opened()
    ledger.apply([fund(100, user_cap=30), hold("a", "u", 7), hold("b", "u", 5, 1), hold("c", "v", 5)])
    ledger.apply([settle(1, 6)])
    head, sums = verify(ledger).head, ledger.balances()
    assert ledger.apply([Forget("u", NOW, "ada")]) == [Done(2)]
    assert ledger.apply([Forget("nobody", NOW)]) == [Done(0)]
    found = verify(ledger, head)
    assert found.is_sound, found.differences
    assert ledger.balances() == sums
    one, other, third = ledger.decided()
    assert one.user == other.user != third.user
    assert (one.action, one.reward, one.features) == ("give 7", 1.0, "{}")
    everything = str([rows(ledger, f"SELECT * FROM {table}") for table in ("decisions", "events", "user_balances")])
    assert "'u'" not in everything
    assert "'a'" not in everything
    assert isinstance(report(ledger, other, 5), Settled)  # whoever has the id can still report
    assert isinstance(ledger.apply([hold("a", "u", 30)])[0], Decided)  # a stranger now
    assert verify(ledger).is_sound
    for column in ("digest", "user_id", "features"):  # nothing of theirs is given to somebody else
        with suppress(ZeroDivisionError), ledger.database.transaction() as session:
            session.many(f"UPDATE decisions SET {column} = ? WHERE decision = 1", [("x",)])
            assert replayed(session)
            raise ZeroDivisionError
    runner = CliRunner()
    ledger.apply([hold("d", "7", 5)])
    for user in ("v", " 7.0"):
        said = runner.invoke(app, ["ledger", "forget", url, user]).output
        assert said == "1 decision(s) no longer identify the user\n"
    assert verify(ledger).is_sound
    assert isinstance(runner.invoke(app, ["ledger", "forget", url, "v"]).exception, UsageError)


def test_what_was_erased_is_not_left_in_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    ledger = open_ledger(url)
    ledger.apply([fund(10_000), *(hold(f"r{number}", f"somebody-{number}", 1) for number in range(200))])
    ledger.close()
    assert CliRunner().invoke(app, ["ledger", "forget", url, "somebody-77"]).exit_code == 0
    content = b"".join(each.read_bytes() for each in tmp_path.glob("l.db*"))
    assert b"somebody-76" in content
    assert b"somebody-77" not in content

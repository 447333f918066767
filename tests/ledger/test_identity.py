"""A ledger that went missing, was replaced or restored is noticed; ids of decisions belong to one ledger."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from redenvelope import Ledger, LedgerError, UsageError, open_ledger
from redenvelope.cli import app
from redenvelope.ledger.archive import back_up, restore
from redenvelope.ledger.ledger import create_ledger, steady_clock, verify
from redenvelope.ledger.records import (
    Begin,
    Decided,
    Done,
    Expire,
    Fund,
    Identify,
    Refusal,
    Refused,
    Settle,
    Settled,
    Status,
)
from tests.ledger.asking import NOW, TTL, fund, hold, rows, settle
from tests.ledger.test_verify import edit

if TYPE_CHECKING:
    from tests.ledger.postgres_server import PostgresServer


def one_decision(ledger: Ledger, request: str = "a") -> Decided:
    found = ledger.apply([fund(100), hold(request)])[-1]
    assert isinstance(found, Decided)
    return found


def report(ledger: Ledger, decision: Decided) -> object:
    (found,) = ledger.apply([Settle(decision.decision, 1.0, {"money": 5}, NOW, decision.public_id)])
    return found


def refusal(found: object) -> Refusal:
    assert isinstance(found, Refused)
    return found.refusal


def test_an_id_is_settled_in_its_own_ledger_only(ledger: Ledger, tmp_path: Path) -> None:
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    stranger, own = one_decision(other), one_decision(ledger)
    assert stranger.decision == own.decision
    assert refusal(report(ledger, stranger)) is Refusal.OTHER_LEDGER
    assert isinstance(report(ledger, own), Settled)
    assert ledger.apply([hold("a")])[0].public_id == own.public_id  # type: ignore[union-attr]
    other.close()


def test_an_id_from_before_a_restore_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    first = open_ledger(f"sqlite:///{path}")
    kept = one_decision(first)
    first.close()
    shutil.copy(path, tmp_path / "backup")
    again = open_ledger(f"sqlite:///{path}")
    lost = one_decision(again, "lost")
    again.close()
    shutil.copy(tmp_path / "backup", path)
    restored = open_ledger(f"sqlite:///{path}")
    assert one_decision(restored, "new").decision == lost.decision
    assert refusal(report(restored, lost)) is Refusal.OTHER_DECISION
    assert isinstance(report(restored, kept), Settled)
    restored.close()


@pytest.mark.parametrize("end", ["", "-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_is_noticed(tmp_path: Path, end: str, replaced: bool) -> None:
    path = tmp_path / "l.db"
    ledger = open_ledger(f"sqlite:///{path}")
    one_decision(ledger)
    file = tmp_path / f"l.db{end}"
    file.rename(tmp_path / "elsewhere")
    if replaced:
        shutil.copy(tmp_path / "elsewhere", file)
    for ask in (lambda: ledger.apply([hold("b")]), ledger.balances):
        with pytest.raises(LedgerError, match="removed or replaced"):
            ask()
    file.unlink(missing_ok=True)
    (tmp_path / "elsewhere").rename(file)
    assert isinstance(ledger.apply([hold("b")])[0], Decided)
    ledger.close()


def test_other_tables_in_its_place_are_noticed(opened: Callable[[], Ledger]) -> None:
    ledger = opened()
    one_decision(ledger)
    with ledger.database.transaction() as session:
        session.many("UPDATE identity SET value = 'another' WHERE name = ?", [("ledger",)])
    for ask in (lambda: ledger.apply([hold("b")]), ledger.balances):
        with pytest.raises(LedgerError, match="replaced by another"):
            ask()


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_missing_ledger_does_not_become_a_new_one(tmp_path: Path, how: str) -> None:
    url, path = f"sqlite:///{tmp_path}/l.db", tmp_path / "l.db"
    open_ledger(url).close()
    path.unlink() if how == "removed" else path.write_bytes(b"")
    with pytest.raises(LedgerError, match=r"is gone.*ledger create"):
        open_ledger(url)
    create_ledger(url).close()
    open_ledger(url).close()


def test_a_lost_database_does_not_become_a_new_ledger(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDENVELOPE_CACHE", str(tmp_path))
    url = postgres.database()
    ledger = open_ledger(url)
    one_decision(ledger)
    with ledger.database.transaction() as session:
        ledger.database.create_again(session)
        session.many("INSERT INTO counters VALUES (?, ?)", [("format", 6), ("seed", 1), ("decision", 0), ("event", 0)])
        session.many("INSERT INTO identity VALUES (?, ?)", [("ledger", "0" * 8), ("epoch", "0" * 8)])
    with pytest.raises(LedgerError, match="replaced by another"):
        ledger.apply([hold("b")])
    with pytest.raises(LedgerError, match="another ledger than the one"):
        open_ledger(url)
    with ledger.database.transaction() as session:
        for table in ("user_balances", "charges", "decisions", "budgets", "events", "tallies", "counters", "identity"):
            session.run(f"DROP TABLE {table}")
        session.run("DROP FUNCTION events_append_only")
    with pytest.raises(LedgerError, match="not available"):
        ledger.apply([hold("b")])
    with pytest.raises(LedgerError, match="is gone"):
        open_ledger(url)
    ledger.close()
    create_ledger(url).close()
    open_ledger(url).close()


def test_an_older_copy_in_its_place_is_noticed(
    opened: Callable[[], Ledger], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is open, and when it is opened again; a restore from a back-up is no such copy."""
    monkeypatch.setenv("REDENVELOPE_CACHE", str(tmp_path / "cache"))
    ledger = opened()
    one_decision(ledger)
    back_up(url, tmp_path / "backup.db")
    ledger.apply([hold("b"), hold("c")])
    ledger.database.remember()
    last = int(ledger.identity()["event"])
    edit(ledger, [f"DELETE FROM events WHERE event = {last}"])
    edit(ledger, [f"UPDATE counters SET value = {last - 1} WHERE name = 'event'"])
    with pytest.raises(LedgerError, match="older copy"):
        ledger.apply([hold("d")])
    for create in (True, False):
        with pytest.raises(LedgerError, match="older copy"):
            open_ledger(url, create=create)
    restore(tmp_path / "backup.db", url, replace=True)
    again = opened()
    again.apply([hold("e")])
    again.database.remember()
    opened().apply([hold("f")])


def test_a_copied_file_is_no_ledger_to_go_on_with(tmp_path: Path) -> None:
    url, path, copy = f"sqlite:///{tmp_path}/l.db", tmp_path / "l.db", tmp_path / "copy.db"
    ledger = open_ledger(url)
    one_decision(ledger)
    ledger.close()
    shutil.copy(path, copy)
    ledger = open_ledger(url)
    ledger.apply([hold("b")])
    ledger.database.remember()
    ledger.close()
    shutil.copy(copy, path)
    with pytest.raises(LedgerError, match="older copy"):
        open_ledger(url, create=False)


def test_a_file_has_one_ledger_by_whatever_name(tmp_path: Path) -> None:
    """Through a symbolic link the last commits are read too; a hard link would have a log of its own."""
    (tmp_path / "real").mkdir()
    path, link, hard = tmp_path / "real" / "l.db", tmp_path / "link.db", tmp_path / "hard.db"
    ledger = open_ledger(f"sqlite:///{path}")
    one_decision(ledger)
    link.symlink_to(path)
    for read_only in (True, False):
        other = open_ledger(f"sqlite:///{link}", create=False, read_only=read_only)
        assert verify(other).events == verify(ledger).events
        other.close()
    assert back_up(f"sqlite:///{link}", tmp_path / "backup.db").decisions == 1
    hard.hardlink_to(path)
    for name in (path, hard):
        with pytest.raises(LedgerError, match="hard link"):
            open_ledger(f"sqlite:///{name}", create=False)
    ledger.close()


DEFAULTS = ("extra_float_digits=0", "default_transaction_isolation=serializable", "client_encoding=LATIN1")


def test_defaults_of_the_server_change_nothing(postgres: PostgresServer) -> None:
    url = postgres.database() + "".join(f"%20-c{one.replace('=', '%3D')}" for one in DEFAULTS)
    ledgers = [open_ledger(url), open_ledger(url)]
    ledgers[0].apply([fund(100_000)])

    def decide(which: int) -> None:
        for turn in range(40):
            (one,) = ledgers[which].apply([hold(f"赵 {which} {turn}")])
            ledgers[which].apply([settle(one.decision, 1, 0.1 + 0.2)])  # type: ignore[union-attr]

    with ThreadPoolExecutor(2) as both:
        list(both.map(decide, (0, 1)))
    assert verify(ledgers[0]).is_sound
    for one in ledgers:
        one.close()


def test_a_database_that_cannot_store_every_text_is_refused(postgres: PostgresServer) -> None:
    import psycopg

    with psycopg.connect(postgres.database(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(LedgerError, match="encoding LATIN1"):
        open_ledger(postgres.database().replace("@/postgres", "@/latin"))


def begin(ledger: Ledger, *funds: Fund, mode: str = "strict", currency: str | None = "EUR") -> object:
    (found,) = ledger.apply([Begin(Identify(NOW, None, currency, mode, "ada"), funds)])
    return found


@pytest.mark.parametrize(
    ("funds", "more", "said"),
    [
        ([fund(101, user_cap=10)], {}, "the total is '1' in the ledger and '1.01' here"),
        ([fund(100)], {}, "the cap per user is '0.1' in the ledger and 'none' here"),
        ([fund(100, user_cap=11)], {}, "the cap per user"),
        ([fund(100, "other", 10)], {}, "the list of budgets is ['money'] in the ledger and ['other'] here"),
        ([fund(100, user_cap=10), fund(5, "more")], {}, "the list of budgets"),
        ([replace(fund(100, user_cap=10), minor_units=10)], {}, "the number of minor units"),
        ([replace(fund(100, user_cap=10), measure="x")], {}, "what is measured"),
        ([fund(100, user_cap=10)], {"mode": "overbook"}, "mode is 'strict' in the ledger and 'overbook' here"),
        ([fund(100, user_cap=10)], {"currency": "USD"}, "currency is 'EUR' in the ledger and 'USD' here"),
    ],
)
def test_what_is_another_campaign_is_refused_and_changes_nothing(
    opened: Callable[[], Ledger], funds: list[Fund], more: dict[str, str], said: str
) -> None:
    ledger = opened()
    assert begin(ledger, fund(100, user_cap=10)) == begin(opened(), fund(100, user_cap=10)) == Done()
    before = ledger.identity()
    found = begin(opened(), *funds, **more)  # type: ignore[arg-type]
    assert refusal(found) is Refusal.OTHER_CAMPAIGN
    assert said in found.message  # type: ignore[attr-defined]
    assert ledger.identity() == before
    assert begin(ledger, fund(100, user_cap=10), currency=None) == Done()


@pytest.mark.parametrize("missing", ["ledger", "epoch"])
def test_a_ledger_without_an_identity_is_refused_in_words(opened: Callable[[], Ledger], missing: str) -> None:
    ledger = opened()
    one_decision(ledger)
    edit(ledger, [f"DELETE FROM identity WHERE name = '{missing}'"])
    with pytest.raises(LedgerError, match="no seed or identity"):
        opened()
    with pytest.raises(LedgerError, match=r"replaced|restored"):
        ledger.apply([hold("b")])
    assert not verify(ledger).is_sound


def test_an_identity_without_budgets_is_kept_too(ledger: Ledger) -> None:
    ledger.apply([Identify(NOW, None, "EUR", "overbook")])
    for more in ({"mode": "strict"}, {"mode": "overbook", "currency": "USD"}):
        assert refusal(begin(ledger, fund(100), **more)) is Refusal.OTHER_CAMPAIGN
    assert ledger.balances() == ()
    assert begin(ledger, fund(100), mode="overbook") == Done()


def test_ledgers_are_created_and_changed_by_commands(url: str) -> None:
    runner = CliRunner()

    def run(*words: str) -> str:
        said = runner.invoke(app, ["ledger", *words])
        assert said.exit_code == 0, (said.output, said.exception)
        return said.output

    def refused(*words: str) -> str:
        said = runner.invoke(app, ["ledger", *words])
        assert isinstance(said.exception, UsageError), said.output
        return str(said.exception)

    assert "also give --budget-total" in refused("create", url, "--user-cap", "2")
    run(
        "create",
        url,
        "--budget-total",
        "10",
        "--user-cap",
        "2",
        "--currency",
        "EUR",
        "--campaign",
        "spring",
        "--by",
        "ada",
    )
    ledger = open_ledger(url, create=False)
    ledger.apply([hold("a", "u", {"budget": 150})])
    assert "1.5 of 'budget' are spent and held" in refused("change", url, "--budget-total", "1.49")
    assert "no budget 'x'" in refused("change", url, "--budget-total", "x=5")
    run("change", url, "--budget-total", "1.50", "--user-cap", "budget=1", "--mode", "overbook", "--by", "bob")
    (balance,) = ledger.balances()
    assert (balance.total, balance.user_cap, ledger.identity()["mode"]) == (150, 100, "overbook")
    assert run("change", url, "--budget-total", "1.5") == "nothing to change\n"
    assert "contradict" in refused("change", url, "--no-user-cap", "budget", "--user-cap", "budget=1")
    run("change", url, "--no-user-cap", "")
    (balance,) = ledger.balances()
    assert balance.user_cap is None
    said = [json.loads(content) for (content,) in rows(ledger, "SELECT content FROM events WHERE kind = 'change'")]
    assert [one["by"] for one in said[:4]] == ["ada", "ada", "bob", "bob"]
    assert all(at > NOW for (at,) in rows(ledger, "SELECT at FROM events WHERE kind = 'change'"))
    assert verify(ledger).is_sound
    ledger.close()


def test_a_hold_is_not_expired_by_a_clock_that_runs_ahead(opened: Callable[[], Ledger]) -> None:
    ledger, ahead = opened(), opened()
    now = ledger.now()
    ledger.apply([fund(100), hold("a", at=now)])
    late = now + 2 * 3_600_000
    assert ahead.apply([Expire(late)]) == [Done(0)]
    assert [one.status for one in ledger.decided()] == [Status.OPEN]
    ledger.apply([hold("b", at=now - 2 * TTL)])
    assert ledger.apply([Expire(late)]) == [Done(1)]


def test_the_clock_of_a_service_is_that_of_its_database(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 0)
    assert abs(steady_clock(ledger.now())() - ledger.now()) < 10_000
    assert ledger.now() > NOW


def test_another_ledger_in_its_place_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    for name in ("l", "other"):
        open_ledger(f"sqlite:///{tmp_path}/{name}.db").close()
    shutil.copy(tmp_path / "other.db", tmp_path / "l.db")
    with pytest.raises(LedgerError, match="another ledger"):
        open_ledger(url)


def test_a_ledger_is_created_once(url: str) -> None:
    create_ledger(url).close()
    with pytest.raises(UsageError, match="a ledger already"):
        create_ledger(url)

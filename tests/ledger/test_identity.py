"""A ledger that went missing, was replaced or restored is noticed; ids of decisions belong to one ledger."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from redenvelope import Ledger, LedgerError, UsageError, open_ledger
from redenvelope.ledger.ledger import create_ledger
from redenvelope.ledger.records import Decided, Refusal, Refused, Settle, Settled
from tests.ledger.asking import NOW, fund, hold


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

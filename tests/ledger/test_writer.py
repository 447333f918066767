"""Group commit: many wait, few commits; races for the last units; a thread that gives up on nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from redenvelope import Ledger, LedgerError
from redenvelope.ledger.ledger import Writer, steady_clock, verify
from redenvelope.ledger.records import Decided
from tests.ledger.asking import fund, hold, settle


class Counted:
    """A ledger that counts its transactions."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.groups = ledger, list[int]()

    def apply(self, commands: Sequence[object]) -> object:
        self.groups.append(len(commands))
        return self.ledger.apply(commands)  # type: ignore[arg-type]


def test_those_who_wait_together_are_committed_together(ledger: Ledger) -> None:
    ledger.apply([fund(10_000)])
    counted = Counted(ledger)
    writer = Writer(counted)  # type: ignore[arg-type]
    answers = [writer.submit([hold(f"{place}")]) for place in range(300)]
    decided = [answer.result(timeout=30)[0] for answer in answers]
    writer.close()
    assert [one.request for one in decided] == [f"{place}" for place in range(300)]  # type: ignore[union-attr]
    assert sum(counted.groups) == 300
    assert len(counted.groups) < 60
    with pytest.raises(LedgerError, match="closed"):
        writer.submit([hold("late")])


def test_64_clients_race_for_the_last_units(opened: Callable[[], Ledger]) -> None:
    opened().apply([fund(100)])
    assert race([opened(), opened()]) == 98


def race(ledgers: list[Ledger]) -> int:
    """64 clients want 7 units of 100 three times each, from writers of their own; what they were told they got."""
    writers = [Writer(ledger) for ledger in ledgers]

    def client(number: int) -> int:
        won = 0
        for turn in range(3):
            writer = writers[(number + turn) % 2]
            (answer,) = writer.submit([hold(f"{number}-{turn}", amount=7)]).result(timeout=60)
            if isinstance(answer, Decided):
                writer.submit([settle(answer.decision, 7)]).result(timeout=60)
                won += 7
        return won

    with ThreadPoolExecutor(64) as clients:
        won = sum(clients.map(client, range(64)))
    for writer in writers:
        writer.close()
    (balance,) = ledgers[0].balances()
    assert won == balance.spent
    assert balance.held == 0
    assert verify(ledgers[0]).is_sound
    return won


def test_an_error_reaches_everybody_who_waits_and_the_thread_goes_on(ledger: Ledger) -> None:
    ledger.apply([fund(100)])

    class Moody(Counted):
        def apply(self, commands: Sequence[object]) -> object:
            if not self.groups:
                self.groups.append(0)
                raise LedgerError("the disk is full")
            return super().apply(commands)

    writer = Writer(Moody(ledger))  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="disk"):
        writer.submit([hold("a")]).result(timeout=30)
    assert isinstance(writer.submit([hold("a")]).result(timeout=30)[0], Decided)
    writer.close()


def test_the_clock_goes_on_when_the_machine_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady_clock()
    before = clock()
    monkeypatch.setattr("time.time_ns", lambda: 0)
    assert before <= clock() < before + 60_000

"""Random commands in random groups, held against books that are kept by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from redenvelope import Ledger
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Decided, Done, Expire, Hold, Refused, Settle, Settled, Status
from tests.ledger.asking import NOW, TTL, fund, hold, settle

TOTAL, CAP = 400, 60


@dataclass
class ByHand:
    """Knows only what was asked and what was answered."""

    held: dict[int, int] = field(default_factory=dict)
    spent: dict[int, int] = field(default_factory=dict)
    expires: dict[int, int] = field(default_factory=dict)
    users: dict[int, str] = field(default_factory=dict)
    answers: dict[str, Decided] = field(default_factory=dict)

    def hear(self, command: object, answer: object) -> None:
        match command, answer:
            case Hold(), Decided():
                known = self.answers.get(command.request)
                assert (known is not None) == answer.repeated
                if known is not None:
                    assert (answer.decision, answer.action) == (known.decision, known.action)
                    return
                assert answer.decision not in self.users
                self.answers[command.request] = answer
                self.users[answer.decision] = command.user
                self.held[answer.decision] = sum(charge.held for charge in answer.charges)
                self.expires[answer.decision] = answer.expires_at
            case Settle(), Settled():
                amount = sum(command.amounts.values())
                if answer.repeated:
                    assert self.spent[command.decision] == amount
                else:
                    assert command.decision not in self.spent, "settled twice"
                    self.held.pop(command.decision, None)
                    self.spent[command.decision] = amount
                    self.expires.pop(command.decision, None)
            case Expire(), Done():
                over = [number for number, at in self.expires.items() if at <= command.at]
                assert answer.count == len(over)
                for number in over:
                    del self.held[number], self.expires[number]
            case _:
                assert isinstance(answer, Refused | Done)
        self.check()

    def check(self) -> None:
        assert sum(self.held.values()) + sum(self.spent.values()) <= TOTAL
        for user in set(self.users.values()):
            numbers = [number for number, own in self.users.items() if own == user]
            assert sum(self.held.get(number, 0) + self.spent.get(number, 0) for number in numbers) <= CAP


@pytest.mark.parametrize("seed", range(6))
def test_the_books_say_what_whoever_asked_was_told(opened: Callable[[], Ledger], seed: int) -> None:
    at_random([opened(), opened()], seed)


def at_random(ledgers: list[Ledger], seed: int) -> int:
    """Ask two ledgers of one database in turn, with a clock that goes back and forth; how many commands there were."""
    chance, asked = np.random.default_rng(seed), 0
    ledgers[0].apply([fund(TOTAL, user_cap=CAP)])
    by_hand, now = ByHand(), NOW
    for turn in range(25):
        now += int(chance.integers(-TTL // 3, TTL // 2))  # the clock may go back
        commands: list[object] = []
        for place in range(int(chance.integers(1, 9))):
            kind = chance.choice(["hold", "again", "settle", "expire"], p=[0.5, 0.1, 0.35, 0.05])
            if kind == "expire" and not any(isinstance(command, Expire) for command in commands):
                commands.append(Expire(now, most=10_000))
            elif kind == "settle" and by_hand.users:
                number = int(chance.choice(list(by_hand.users)))
                commands.append(settle(number, int(chance.integers(0, 45)), at=now))
            elif kind == "again" and by_hand.answers:
                commands.append(_as_before(by_hand, str(chance.choice(list(by_hand.answers)))))
            else:
                request, user = f"{turn}-{place}", f"user {chance.integers(8)}"
                amount, ceiling = int(chance.integers(0, 40)), int(chance.integers(40, 45))
                commands.append(hold(request, user, amount, int(chance.integers(12)), now, ceiling))
        answers = ledgers[turn % 2].apply(commands)  # type: ignore[arg-type]
        for command, answer in zip(commands, answers, strict=True):
            by_hand.hear(command, answer)
        asked += len(commands)
    (balance,) = ledgers[0].balances()
    assert balance.held == sum(by_hand.held.values())
    assert balance.spent == sum(by_hand.spent.values())
    assert balance.spent > 0
    open_ones = [one.decision for one in ledgers[1].decided() if one.status is Status.OPEN]
    assert open_ones == sorted(by_hand.expires)
    found = verify(ledgers[0])
    assert found.is_sound, found.differences
    return asked


def _as_before(by_hand: ByHand, request: str) -> Hold:
    known = by_hand.answers[request]
    (charge,) = known.charges
    return hold(request, known.user, charge.held, known.step, ceiling=charge.ceiling)

"""Random commands in random groups, held against books that are kept by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from redenvelope import Ledger
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import (
    COUNTED,
    Correct,
    Decided,
    Done,
    Expire,
    Fund,
    Hold,
    Refused,
    Settle,
    Settled,
    Status,
)
from tests.ledger.asking import NOW, TTL, hold

TOTALS, CAPS = {"money": 400, "gifts": 30}, {"money": 60, "gifts": 5}
"""Gifts are counted when they are decided; caps are per user."""


@dataclass
class ByHand:
    """Knows only what was asked and what was answered."""

    held: dict[tuple[int, str], int] = field(default_factory=dict)
    """By decision and budget."""
    spent: dict[tuple[int, str], int] = field(default_factory=dict)
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
                for charge in answer.charges:
                    books = self.spent if charge.budget == "gifts" else self.held
                    books[answer.decision, charge.budget] = charge.held
                self.expires[answer.decision] = answer.expires_at
            case Settle(), Settled():
                key, amount = (command.decision, "money"), command.amounts["money"]
                if answer.repeated:
                    assert self.spent[key] == amount
                else:
                    assert (key in self.spent) == isinstance(command, Correct), "settled twice"
                    self.held.pop(key, None)
                    self.spent[key] = amount
                    self.expires.pop(command.decision, None)
            case Expire(), Done():
                over = [number for number, at in self.expires.items() if at <= command.at]
                assert answer.count == len(over)
                for number in over:
                    del self.held[number, "money"], self.expires[number]
            case _:
                assert isinstance(answer, Refused | Done)
        self.check()

    def check(self) -> None:
        for user in {"", *self.users.values()}:
            for budget, most in (CAPS if user else TOTALS).items():
                assert self.of(self.held, budget, user) + self.of(self.spent, budget, user) <= most

    def of(self, books: Mapping[tuple[int, str], int], budget: str, user: str = "") -> int:
        """What a user, or everybody, has in a budget."""
        return sum(
            amount for (number, own), amount in books.items() if own == budget and user in ("", self.users[number])
        )


@pytest.mark.parametrize("seed", range(6))
def test_the_books_say_what_whoever_asked_was_told(opened: Callable[[], Ledger], seed: int) -> None:
    at_random([opened(), opened()], seed)


def at_random(ledgers: list[Ledger], seed: int) -> int:
    """Ask two ledgers of one database in turn, with a clock that goes back and forth; how many commands there were."""
    chance, asked = np.random.default_rng(seed), 0
    ledgers[0].apply(
        [
            Fund("money", TOTALS["money"], NOW, CAPS["money"]),
            Fund("gifts", TOTALS["gifts"], NOW, CAPS["gifts"], COUNTED, minor_units=1),
        ]
    )
    by_hand, now = ByHand(), NOW
    for turn in range(25):
        now += int(chance.integers(-TTL // 3, TTL // 2))  # the clock may go back
        commands: list[object] = []
        for place in range(int(chance.integers(1, 9))):
            kind = chance.choice(["hold", "again", "settle", "correct", "expire"], p=[0.45, 0.1, 0.3, 0.1, 0.05])
            if kind == "expire" and not any(isinstance(command, Expire) for command in commands):
                commands.append(Expire(now, most=10_000))
            elif kind in ("settle", "correct") and by_hand.users:
                number = int(chance.choice(list(by_hand.users)))
                outcome = Correct if kind == "correct" else Settle
                commands.append(outcome(number, 1.0, {"money": int(chance.integers(0, 45))}, now))
            elif kind == "again" and by_hand.answers:
                commands.append(_as_before(by_hand, str(chance.choice(list(by_hand.answers)))))
            else:
                request, user = f"{turn}-{place}", f"user {chance.integers(8)}"
                amounts = {"money": int(chance.integers(0, 40)), "gifts": int(chance.integers(0, 3))}
                ceiling = int(chance.integers(40, 45))
                commands.append(hold(request, user, amounts, int(chance.integers(12)), now, ceiling))
        answers = ledgers[turn % 2].apply(commands)  # type: ignore[arg-type]
        for command, answer in zip(commands, answers, strict=True):
            by_hand.hear(command, answer)
        asked += len(commands)
    for balance in ledgers[0].balances():
        assert balance.held == by_hand.of(by_hand.held, balance.budget)
        assert balance.spent == by_hand.of(by_hand.spent, balance.budget) > 0
    open_ones = [one.decision for one in ledgers[1].decided() if one.status is Status.OPEN]
    assert open_ones == sorted(by_hand.expires)
    found = verify(ledgers[0])
    assert found.is_sound, found.differences
    return asked


def _as_before(by_hand: ByHand, request: str) -> Hold:
    known = by_hand.answers[request]
    amounts = {charge.budget: charge.held for charge in known.charges}
    return hold(request, known.user, amounts, known.step, ceiling=known.charges[0].ceiling)

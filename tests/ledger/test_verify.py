"""Whatever is changed directly in the tables is reported."""

from __future__ import annotations

import pytest

from redenvelope import Ledger
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Expire
from tests.ledger.asking import NOW, TTL, fund, hold, settle


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """Four decisions: settled, released, expired, open."""
    ledger.apply([fund(100, user_cap=60), fund(50, "pushes")])
    both = {"money": 10, "pushes": 1}
    ledger.apply([hold("a", "u", both), hold("b", "v", both), hold("c", "w", both), hold("d", "u", 5, 1, NOW + TTL)])
    ledger.apply([settle(1, {"money": 7, "pushes": 1}), settle(2, 0), Expire(NOW + TTL)])
    return ledger


def test_sound_books_are_called_sound(used: Ledger) -> None:
    found = verify(used)
    assert found.is_sound, found.differences
    assert (found.decisions, found.entries) == (4, 2 + 7 + 6)
    assert {"budget": "money", "total": 100, "held": 5, "spent": 7} in found.budgets


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            "UPDATE budgets SET spent = 8 WHERE place = 1",
            "budget money, spent: the balance says 8, the entries say 7",
        ),
        (
            "UPDATE budgets SET held = 4 WHERE place = 1",
            "budget money, held: the balance says 4, the entries say 5",
        ),
        ("UPDATE budgets SET total = 90 WHERE budget = 'money'", "budget money, total"),
        ("UPDATE charges SET spent = 6 WHERE decision = 1 AND budget = 'money'", "decision 1, charge to money"),
        ("UPDATE charges SET open = 1 WHERE decision = 3 AND budget = 'money'", "decision 3 (expired)"),
        ("DELETE FROM charges WHERE decision = 2 AND budget = 'money'", "entries of decision 2 with money"),
        ("UPDATE user_balances SET spent = 0 WHERE user_id = 'u'", "user u of money"),
        ("DELETE FROM user_balances WHERE user_id = 'u'", "user u of money: the balance says no balance"),
        ("UPDATE decisions SET status = 'expired' WHERE decision = 4", "decision 4 (expired)"),
        ("UPDATE tallies SET decided = 9", "tally of step 0"),
        ("UPDATE counters SET value = 1 WHERE name = 'decision'", "counter of decisions"),
        (
            "INSERT INTO entries VALUES (99, 9, 1, 'money', 0, 1000, 0, 0)",
            "budget money, after entry 99: the balance says 100 in total, the entries say 1012 spent and held",
        ),
    ],
)
def test_what_differs_is_named(used: Ledger, change: str, named: str) -> None:
    with used.database.transaction() as session:
        session.many(change, [()])
    found = verify(used)
    assert not found.is_sound
    assert any(str(difference).startswith(named) for difference in found.differences), found.differences

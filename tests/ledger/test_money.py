"""What a ledger promises, command by command, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from redenvelope import Ledger, LedgerError, UsageError
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import (
    LARGEST_AMOUNT,
    LARGEST_SUM,
    Decided,
    Done,
    Expire,
    Forget,
    Fund,
    PriceNote,
    Refusal,
    Refused,
    Settled,
    Status,
)
from tests.ledger.asking import NOW, TTL, fund, hold, rows, settle


def money(ledger: Ledger, budget: str = "money") -> tuple[int, int]:
    """Held and spent."""
    (found,) = [one for one in ledger.balances() if one.budget == budget]
    return found.held, found.spent


def decided(result: object) -> Decided:
    assert isinstance(result, Decided)
    return result


def refusal(result: object) -> Refusal:
    assert isinstance(result, Refused)
    assert result.message
    return result.refusal


def test_a_hold_is_settled_released_or_expires(ledger: Ledger) -> None:
    _, one, two, three = ledger.apply([fund(100), hold("a"), hold("b"), hold("c")])
    assert money(ledger) == (30, 0)
    assert decided(one).expires_at == NOW + TTL
    first, second = ledger.apply([settle(decided(one).decision, 7), settle(decided(two).decision, 0)])
    assert first == Settled(decided(one).decision, Status.SETTLED, 1.0, {"money": 7})
    assert second == Settled(decided(two).decision, Status.RELEASED, 1.0, {"money": 0})
    assert money(ledger) == (10, 7)
    assert ledger.apply([Expire(NOW + TTL - 1)]) == [Done(0)]
    assert ledger.apply([Expire(NOW + TTL), Expire(NOW + TTL)]) == [Done(1), Done(0)]
    assert money(ledger) == (0, 7)
    assert [one.status for one in ledger.decided()] == [Status.SETTLED, Status.RELEASED, Status.EXPIRED]
    assert decided(three).status is Status.OPEN
    assert verify(ledger).is_sound


def test_the_same_request_gets_the_same_answer_and_holds_once(ledger: Ledger) -> None:
    _, first, again = ledger.apply([fund(100), hold("a", "u"), hold("a", "u")])
    (later,) = ledger.apply([hold("a", "u", at=NOW + 5_000)])
    assert replace(decided(again), repeated=False) == replace(decided(later), repeated=False) == first
    assert decided(again).repeated
    assert money(ledger) == (10, 0)
    assert refusal(ledger.apply([hold("a", "u", 20)])[0]) is Refusal.REQUEST_DIFFERS


def test_the_same_outcome_is_settled_once(ledger: Ledger) -> None:
    _, one = ledger.apply([fund(100), hold("a")])
    number = decided(one).decision
    first, again, other = ledger.apply([settle(number, 7), settle(number, 7), settle(number, 8)])
    assert replace(again, repeated=False) == first  # type: ignore[type-var]
    assert refusal(other) is Refusal.OUTCOME_DIFFERS
    assert refusal(ledger.apply([settle(number, 7, reward=2.0)])[0]) is Refusal.OUTCOME_DIFFERS
    assert refusal(ledger.apply([settle(number + 1, 7)])[0]) is Refusal.UNKNOWN_DECISION
    assert money(ledger) == (0, 7)


def test_one_refusal_does_not_fail_the_others(ledger: Ledger) -> None:
    results = ledger.apply([fund(25), hold("a"), hold("b"), hold("c"), hold("d", amount=5), hold("e", amount=1)])
    assert [isinstance(result, Decided) for result in results[1:]] == [True, True, False, True, False]
    assert refusal(results[3]) is Refusal.NOTHING_LEFT
    assert money(ledger) == (25, 0)


def test_nothing_is_settled_above_its_ceiling_or_beyond_what_is_left(ledger: Ledger) -> None:
    _, sure, booked, other = ledger.apply([fund(40), hold("a"), hold("b", ceiling=30), hold("c", amount=15)])
    assert refusal(ledger.apply([settle(decided(sure).decision, 11)])[0]) is Refusal.ABOVE_CEILING
    # 35 are held; 15 needs 5 beyond the 10 that are held for it, which is all that is left.
    assert refusal(ledger.apply([settle(decided(booked).decision, 16)])[0]) is Refusal.NOTHING_LEFT
    assert isinstance(ledger.apply([settle(decided(booked).decision, 15)])[0], Settled)
    assert money(ledger) == (25, 15)
    assert isinstance(ledger.apply([settle(decided(other).decision, 15)])[0], Settled)
    assert verify(ledger).is_sound


def test_a_late_outcome_asks_for_its_money_anew(ledger: Ledger) -> None:
    _, late, lost = ledger.apply([fund(20), hold("a"), hold("b")])
    ledger.apply([Expire(NOW + TTL)])
    assert isinstance(ledger.apply([settle(decided(late).decision, 10)])[0], Settled)
    ledger.apply([hold("c")])
    assert refusal(ledger.apply([settle(decided(lost).decision, 10)])[0]) is Refusal.NOTHING_LEFT
    assert money(ledger) == (10, 10)
    assert verify(ledger).is_sound
    assert sum(tally.expired for tally in ledger.tallies()) == 1


def test_several_budgets_are_charged_together_or_not_at_all(ledger: Ledger) -> None:
    setup = [fund(100), fund(2, "pushes")]
    both = {"money": 10, "pushes": 1}
    *_, one, two, three = ledger.apply([*setup, hold("a", amount=both), hold("b", amount=both), hold("c", amount=both)])
    assert refusal(three) is Refusal.NOTHING_LEFT
    assert money(ledger) == (20, 0)
    assert money(ledger, "pushes") == (2, 0)
    ledger.apply(
        [settle(decided(one).decision, {"money": 4, "pushes": 1}), settle(decided(two).decision, {"pushes": 1})]
    )
    assert money(ledger) == (0, 4)
    assert money(ledger, "pushes") == (0, 2)
    assert [one.budget for one in ledger.balances()] == ["money", "pushes"]
    assert ledger.pasts(["a"])[0]["a"][0].spent == {"money": 4, "pushes": 1}


def test_a_user_has_a_cap(ledger: Ledger) -> None:
    results = ledger.apply([fund(100, user_cap=15), hold("a", "u"), hold("b", "u", step=1), hold("c", "u", 5, step=1)])
    assert refusal(results[2]) is Refusal.NOTHING_LEFT
    assert isinstance(results[3], Decided)
    ledger.apply([settle(decided(results[1]).decision, 2)])
    assert isinstance(ledger.apply([hold("d", "u", 8, step=2)])[0], Decided)
    assert refusal(ledger.apply([hold("e", "u", 1, step=3)])[0]) is Refusal.NOTHING_LEFT
    assert verify(ledger).is_sound


def test_a_cap_that_changes_counts_what_was_spent_before(ledger: Ledger) -> None:
    ledger.apply([fund(100), hold("a", "u", 20), hold("b", "v", 5)])
    ledger.apply([fund(100, user_cap=12)])
    refused, fits, more = ledger.apply([hold("c", "u", 1, 1), hold("d", "v", 7, 1), hold("e", "v", 1, 2)])
    assert [refusal(refused), refusal(more)] == [Refusal.NOTHING_LEFT] * 2
    assert isinstance(fits, Decided)
    assert verify(ledger).is_sound
    ledger.apply([fund(100)])
    assert isinstance(ledger.apply([hold("f", "u", 30, 1)])[0], Decided)
    assert verify(ledger).is_sound


@pytest.mark.parametrize("asks", ["another user", "nobody"])
def test_a_late_outcome_counts_in_its_own_users_cap_whoever_asks_beside_it(ledger: Ledger, asks: str) -> None:
    _, first = ledger.apply([fund(100, user_cap=10), hold("a", "u", 8)])
    _, second = ledger.apply([Expire(NOW + TTL), hold("b", "u", 8, step=1)])
    ledger.apply([settle(decided(second).decision, 8)])
    late = settle(decided(first).decision, 8)
    beside = [hold("a", "v", 8)] if asks == "another user" else []
    *differs, refused = ledger.apply([*beside, late])
    assert [refusal(one) for one in differs] == [Refusal.REQUEST_DIFFERS] * len(beside)
    assert refusal(refused) is Refusal.NOTHING_LEFT
    assert money(ledger) == (0, 8)
    assert verify(ledger).is_sound


def test_what_expires_is_given_back_to_its_own_user_whoever_asks_beside_it(ledger: Ledger) -> None:
    both = {"money": 4, "pushes": 1}
    setup = [fund(100, user_cap=10), fund(100, "pushes", user_cap=2)]
    ledger.apply([*setup, hold("a", "u", both), hold("b", "u", both, step=1, at=NOW + 1)])
    ledger.apply([hold("a", "v", both), Expire(NOW + TTL)])
    assert money(ledger) == (4, 0)
    more, fits = ledger.apply([hold("c", "u", {"money": 7}, step=2), hold("d", "u", {"money": 6}, step=2)])
    assert refusal(more) is Refusal.NOTHING_LEFT
    assert isinstance(fits, Decided)
    assert verify(ledger).is_sound


@pytest.mark.parametrize("other", [None, 50])
def test_a_cap_holds_from_the_next_command_on(ledger: Ledger, other: int | None) -> None:
    """Whether the user's balances with another budget were read before, or nobody's."""
    ledger.apply([fund(100), fund(100, "pushes", user_cap=other), hold("a", "u", {"money": 8, "pushes": 1})])
    _, more, fits = ledger.apply([fund(100, user_cap=10), hold("b", "u", 3, step=1), hold("c", "u", 2, step=1)])
    assert refusal(more) is Refusal.NOTHING_LEFT
    assert isinstance(fits, Decided)
    assert verify(ledger).is_sound


def test_what_was_above_a_lowered_cap_is_not_given_again(ledger: Ledger) -> None:
    ledger.apply([fund(100), hold("a", "u", 20)])
    ledger.apply([fund(100, user_cap=12)])
    free, refused = ledger.apply([hold("b", "u", 0, step=1), hold("c", "u", 1, step=2)])
    assert isinstance(free, Decided)
    assert refusal(refused) is Refusal.NOTHING_LEFT
    _, more, fits = ledger.apply([Expire(NOW + TTL), hold("d", "u", 13, step=2), hold("e", "u", 12, step=2)])
    assert refusal(more) is Refusal.NOTHING_LEFT
    assert isinstance(fits, Decided)
    assert verify(ledger).is_sound


def test_a_step_is_decided_once(ledger: Ledger) -> None:
    _, first, second = ledger.apply([fund(100), hold("a", "u"), hold("b", "u")])
    assert isinstance(first, Decided)
    assert refusal(second) is Refusal.STEP_TAKEN
    assert refusal(ledger.apply([hold("c", "u")])[0]) is Refusal.STEP_TAKEN


def test_a_total_may_rise_and_fall_but_not_below_what_is_committed(ledger: Ledger) -> None:
    ledger.apply([fund(20), hold("a"), hold("b")])
    assert refusal(ledger.apply([fund(19)])[0]) is Refusal.BELOW_COMMITTED
    ledger.apply([fund(30), hold("c")])
    assert money(ledger) == (30, 0)
    assert ledger.balances()[0].total == 30
    assert verify(ledger).is_sound


def test_two_who_change_a_budget_at_once_do_not_undo_each_other(ledger: Ledger) -> None:
    """Both have read the same total and cap; the second one is told."""
    ledger.apply([fund(100, user_cap=10)])
    ledger.apply([replace(fund(200, user_cap=10), before=(100, 10))])
    with pytest.raises(UsageError, match="somebody else"):
        ledger.apply([PriceNote(NOW, "{}"), replace(fund(100, user_cap=5), before=(100, 10))])
    assert [(one.total, one.user_cap) for one in ledger.balances()] == [(200, 10)]
    assert ledger.price_notes() == []


def test_the_database_itself_refuses_to_overspend(ledger: Ledger) -> None:
    ledger.apply([fund(20), hold("a")])
    database = ledger.database
    for statement in (
        "UPDATE budgets SET spent = 11",
        "UPDATE charges SET spent = 11",
        "UPDATE events SET entries = ''",
        "DELETE FROM events",
        "UPDATE decisions SET status = 'lost'",
    ):
        with pytest.raises(LedgerError), database.transaction() as session:
            session.many(statement, [()])
    assert verify(ledger).is_sound


def test_no_sum_grows_beyond_what_a_database_counts(ledger: Ledger) -> None:
    """Expected amounts of closed decisions are added up for ever."""
    most = LARGEST_AMOUNT - 1
    ledger.apply([fund(most, user_cap=most)])
    for turn in range(3):
        ledger.apply([hold(f"{turn}", amount=most, expected=1_000 * most)])
        ledger.apply([Expire(NOW + TTL)])
    assert ledger.balances()[0].closed_thousandths == LARGEST_SUM
    assert verify(ledger).is_sound
    for given in ({"total": most + 1}, {"user_cap": most + 1}, {"minor_units": 10**7}, {"minor_units": 0}):
        with pytest.raises(UsageError):
            Fund(**{"budget": "money", "total": 0, "at": NOW, **given})  # type: ignore[arg-type]


def test_what_no_database_can_write_is_refused_in_words(ledger: Ledger) -> None:
    ledger.apply([fund(10)])
    for command in (hold("a", "\ud800"), PriceNote(2**63, "{}"), Forget("\ud800", NOW)):
        with pytest.raises(LedgerError):
            ledger.apply([command])
    assert isinstance(ledger.apply([hold("a", "\U0001f9e7")])[0], Decided)


def test_a_draw_that_cannot_be_paid_undoes_the_transaction(ledger: Ledger) -> None:
    ledger.apply([fund(5)])
    careless = replace(hold("a"), choose=lambda left: hold("a").choose({"money": 100}))
    with pytest.raises(UsageError, match="cannot pay"):
        ledger.apply([hold("b", amount=5), careless])
    assert money(ledger) == (0, 0)
    assert ledger.decided() == []


def test_what_is_committed_is_there_when_it_is_opened_again(opened: Callable[[], Ledger]) -> None:
    first = opened()
    first.apply([fund(100), hold("a", "u", expected=4_500), PriceNote(NOW, "{}")])
    first.close()
    again = opened()
    assert money(again) == (10, 0)
    assert again.balances()[0].expected_thousandths == 4_500
    assert again.pasts(["u", "v"])[0].keys() == {"u"}
    assert again.price_notes() == [(NOW, "{}")]
    assert decided(again.apply([hold("a", "u")])[0]).repeated
    (new,) = again.apply([hold("b")])
    assert decided(new).decision == 2


def test_a_ledger_of_another_format_is_refused_and_left_as_it_is(opened: Callable[[], Ledger]) -> None:
    ledger = opened()
    with ledger.database.transaction() as session:
        session.many("DELETE FROM counters WHERE name = ?", [("seed",)])
        session.many("UPDATE counters SET value = 2 WHERE name = ?", [("format",)])
    with pytest.raises(LedgerError, match=r"format 2.*use the version that made it"):
        opened()
    assert rows(ledger, "SELECT name FROM counters WHERE name = 'seed'") == []


def test_two_that_write_do_not_get_in_each_others_way(opened: Callable[[], Ledger]) -> None:
    one, other = opened(), opened()
    one.apply([fund(30)])
    results = [
        ledger.apply([hold(f"{place}-{turn}")])[0] for turn in range(2) for place, ledger in enumerate((one, other))
    ]
    assert sum(isinstance(result, Decided) for result in results) == 3
    assert refusal(results[-1]) is Refusal.NOTHING_LEFT
    assert one.balances() == other.balances()
    assert len({result.decision for result in results[:3]}) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", ["nowhere", "sqlite://", "sqlite:///", "mysql://x", "http://u:secret@h/d"])
def test_a_url_that_is_no_ledger_is_refused(wrong: str) -> None:
    from redenvelope.ledger.ledger import open_ledger

    with pytest.raises(UsageError, match="sqlite:///PATH") as caught:
        open_ledger(wrong)
    assert "secret" not in str(caught.value)

"""What is true later: rewards without their money, corrections, and a feed from which followers learn both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redenvelope import Ledger, UsageError
from redenvelope.ledger.archive import back_up, restore
from redenvelope.ledger.export import log_frame
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Correct, Decided, Expire, Forget, Refusal, Refused, Settled, Status
from redenvelope.serve.messages import ApiError
from redenvelope.serve.monitoring import log_lines
from tests.ledger.asking import NOW, TTL, fund, hold, settle

LARGEST = 1e15


def correct(decision: int, amount: int, reward: float = 1.0) -> Correct:
    return Correct(decision, reward, {"money": amount}, NOW + 2, by="Ann", reason="cents, not euros")


def money(ledger: Ledger) -> tuple[int, int, int]:
    """Held, spent, left."""
    (one,) = ledger.balances()
    return one.held, one.spent, one.left


def refusal(result: object) -> Refusal:
    assert isinstance(result, Refused)
    return result.refusal


def rewards(ledger: Ledger) -> float:
    return sum(one.reward for one in ledger.tallies())


def test_the_reward_of_a_late_outcome_is_kept_without_its_money(ledger: Ledger) -> None:
    ledger.apply([fund(10), hold("a")])
    ledger.apply([Expire(NOW + TTL), hold("b")])
    for _ in range(2):  # however often it is tried
        assert refusal(ledger.apply([settle(1, 10, 3.0)])[0]) is Refusal.NOTHING_LEFT
    assert money(ledger) == (10, 0, 0)
    assert rewards(ledger) == 3.0
    ledger.apply([settle(2, 0, 0.0)])
    frame = log_frame(ledger).frame
    assert dict(frame.select("user", "reward").rows()) == {"a": 3.0, "b": 0.0}
    assert set(frame["cost"]) == {0.0}
    assert [one.kind for one in ledger.changes()] == ["decide", "expire", "decide", "refuse", "release"]
    assert isinstance(ledger.apply([settle(1, 10, 2.0)])[0], Settled)  # there is money now
    assert (money(ledger), rewards(ledger)) == ((0, 10, 0), 2.0)
    assert verify(ledger).is_sound


def test_an_open_hold_stays_when_its_outcome_is_refused(ledger: Ledger) -> None:
    ledger.apply([fund(10), hold("a", amount=4, ceiling=20), hold("b", amount=6)])
    assert refusal(ledger.apply([settle(1, 20)])[0]) is Refusal.NOTHING_LEFT
    assert refusal(ledger.apply([settle(2, 7)])[0]) is Refusal.ABOVE_CEILING
    assert (money(ledger), rewards(ledger)) == ((10, 0, 0), 2.0)
    assert [one.status for one in ledger.decided()] == [Status.OPEN] * 2
    ledger.apply([settle(1, 0), Expire(NOW + TTL)])
    assert [(one.status, one.reward) for one in ledger.decided()] == [(Status.RELEASED, 1.0), (Status.EXPIRED, 1.0)]
    assert verify(ledger).is_sound


def test_a_correction_replaces_an_outcome(ledger: Ledger) -> None:
    ledger.apply([fund(100, user_cap=60), hold("a", "u", 50), hold("b", "u", 10, 1), hold("c", "v", 30)])
    assert refusal(ledger.apply([correct(1, 5)])[0]) is Refusal.NO_OUTCOME
    ledger.apply([settle(1, 50), settle(2, 10), settle(3, 0)])
    (found,) = ledger.apply([correct(1, 5, 7.0)])
    assert found == Settled(1, Status.SETTLED, 7.0, {"money": 5})
    assert ledger.apply([correct(1, 5, 7.0)])[0].repeated  # type: ignore[union-attr]
    assert (money(ledger), rewards(ledger)) == ((0, 15, 85), 9.0)
    assert refusal(ledger.apply([correct(1, 51)])[0]) is Refusal.ABOVE_CEILING
    assert isinstance(ledger.apply([correct(1, 0)])[0], Settled)
    assert [(one.settled, one.released) for one in ledger.tallies()] == [(1, 0), (0, 2)] or verify(ledger).is_sound
    # What was given back is given again, so that there is not enough to correct it back.
    (more,) = ledger.apply([hold("d", "u", 50, 2)])
    assert isinstance(more, Decided)
    assert refusal(ledger.apply([correct(1, 50)])[0]) is Refusal.NOTHING_LEFT
    assert next(one.reward for one in ledger.decided() if one.decision == 1) == 1.0
    assert verify(ledger).is_sound


def test_an_absurd_reward_is_refused_and_a_large_one_spoils_no_total(ledger: Ledger) -> None:
    for absurd in (1e300, -1e16, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="reward"):
            settle(1, 0, absurd)
    ledger.apply([fund(10), *(hold(f"{user}", amount=0, expected=user) for user in range(3))])
    ledger.apply([settle(1, 0, LARGEST), settle(2, 0, 0.1), settle(3, 0, 0.2)])
    ledger.apply([correct(1, 0, 0.3)])
    assert rewards(ledger) == pytest.approx(0.6, abs=1e-15)
    ledger.apply([fund(0), hold("d", amount=0, ceiling=5)])
    ledger.apply([settle(4, 5, LARGEST)])  # refused, its reward kept
    ledger.apply([settle(4, 0, 0.4)])
    assert rewards(ledger) == pytest.approx(1.0, abs=1e-15)


def test_a_reward_of_minus_nothing_breaks_no_chain(ledger: Ledger) -> None:
    """SQLite stores -0.0 as 0.0."""
    ledger.apply([fund(100), hold("a"), hold("b"), hold("c")])
    ledger.apply([settle(1, 5, -0.0), settle(2, 0, -0.0), settle(3, 11, -0.0)])
    ledger.apply([Correct(2, -0.0, {"money": 1}, NOW, by="ada", reason="typo")])
    assert verify(ledger).is_sound
    assert [one.reward for one in ledger.decided()] == [0.0, 0.0, 0.0]


def test_followers_learn_who_was_forgotten_and_that_the_ledger_was_restored(
    opened: Callable[[], Ledger], url: str, tmp_path: Path
) -> None:
    """Whoever has read on in an epoch that a restore ended is told from where to read again."""
    ledger = opened()
    ledger.apply([fund(100), hold("a", "u"), hold("b", "u", step=1), hold("c", "v")])
    ids, first = [one.public_id for one in ledger.decided()], ledger.database.epoch
    back_up(url, tmp_path / "backup.db")
    ledger.apply([Forget("u", NOW)])
    *_, last = ledger.changes()
    assert (last.kind, msgspec.json.decode(last.content)) == ("forget", {"decision_ids": ids[:2]})
    (line,) = map(msgspec.json.decode, log_lines(ledger, last.number - 1, 10, first).splitlines())
    assert line == {
        "number": last.number,
        "epoch": first,
        "change": "forget",
        "at": NOW,
        "decision_ids": ids[:2],
    }
    epochs = [first]
    for _ in range(2):  # the second restore undoes the first one too
        epochs.append(restore(tmp_path / "backup.db", url, replace=True)["epoch"])
    ledger = opened()
    ledger.apply([hold("d"), hold("e")])
    assert [ledger.last_shared(one) for one in epochs] == [last.number - 1, 0, None]
    assert [one.kind for one in ledger.changes(last.number - 1)] == ["restore", "decide", "decide"]
    for epoch, after in ((first, last.number), (epochs[1], 1)):
        with pytest.raises(ApiError, match="restored") as refused:
            log_lines(ledger, after, 10, epoch)
        assert refused.value.code == "other_epoch"
    assert len(log_lines(ledger, last.number - 1, 10, first).splitlines()) == 3
    assert len(log_lines(ledger, last.number, 10, epochs[2]).splitlines()) == 2


def test_who_follows_the_changes_knows_what_the_ledger_knows(ledger: Ledger) -> None:
    """Read in pieces, at any moment, and from any number on."""
    followed: dict[str, dict[str, Any]] = {}
    after = 0

    def follow() -> None:
        nonlocal after
        while changes := ledger.changes(after, 2):
            for one in changes:
                row = followed.setdefault(one.public_id, {})
                assert (one.decided is not None) == (not row)
                said = msgspec.json.decode(one.content) if one.content else {}
                row |= {"status": said.get("status", "expired" if row else "open")}
                row |= {} if one.reward is None else {"reward": one.reward}
                row |= {"spent": said["amounts"]} if one.kind in ("settle", "release", "correct") else {}
            after = changes[-1].number

    ledger.apply([fund(40), *(hold(name) for name in "abcd")])
    follow()
    ledger.apply([settle(1, 7), settle(2, 0, 0.5)])
    follow()
    ledger.apply([Expire(NOW + TTL), hold("e", amount=33)])
    ledger.apply([settle(3, 10, 0.25), correct(1, 4, -1.0)])
    follow()
    ledger.apply([settle(4, 3, 0.75)])
    follow()
    assert len({one.number for one in ledger.changes()}) == 12
    for one in ledger.decided():
        row = followed[one.public_id]
        assert (row["status"], row.get("reward")) == (one.status, one.reward)
        assert row.get("spent", {"money": 0}) == one.spent
    assert [one.status.value for one in ledger.decided()] == ["settled", "released", "expired", "settled", "open"]

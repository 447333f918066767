"""SIGKILL under load: what was acknowledged is there, and no unit too many is spent."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from redenvelope import Ledger
from tests.ledger.postgres_server import PostgresServer
from tests.ledger.told import CAPS, MUST_BE_ZERO, Told, campaign, killed

TOTAL = 3_000
ENOUGH = 51
"""Decisions that a check must have looked at to say anything."""


def sound(counts: dict[str, int]) -> None:
    assert counts["acknowledged"] >= ENOUGH
    assert counts["users at a cap"] > 0
    assert {name: counts[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)


def test_killed_under_load(url: str, opened: Callable[[], Ledger]) -> None:
    ledger, told, chance = opened(), Told(), random.Random(7)
    ledger.apply(campaign(TOTAL))
    for turn in range(4):
        killed(url, turn, chance.uniform(0.05, 0.4), told, at_least=ENOUGH if turn == 3 else 0)
    sound(told.check(ledger, TOTAL))


def test_the_checker_sees_what_is_overspent(url: str, opened: Callable[[], Ledger]) -> None:
    ledger, told = opened(), Told()
    ledger.apply(campaign(TOTAL, caps={}))
    killed(url, 0, 0.0, told, at_least=ENOUGH)
    counts = told.check(ledger, 30)
    assert {name for name in MUST_BE_ZERO if counts[name]} == {"overspent", "above a cap"}
    assert told.most["", "money"] > 30
    assert any(amount > CAPS[budget] for (user, budget), amount in told.most.items() if user)


def test_the_database_crashes_and_comes_back(postgres: PostgresServer, tmp_path: Path) -> None:
    from redenvelope.ledger.ledger import open_ledger

    url, told = postgres.database(), Told()
    first = open_ledger(url)
    first.apply(campaign(TOTAL))
    first.close()

    def restart() -> None:
        for _ in range(2):
            postgres.stop()
            postgres.start()
            time.sleep(0.3)

    killed(url, 1, 0.2, told, restart, at_least=ENOUGH)
    with closing(open_ledger(url)) as again:
        sound(told.check(again, TOTAL))


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    from redenvelope.ledger.ledger import open_ledger

    url, told = f"sqlite:///{tmp_path}/ledger.db", Told()
    first = open_ledger(url)
    first.apply(campaign(TOTAL))
    size = (tmp_path / "ledger.db-wal").stat().st_size
    killed(url, 1, 0.5, told, limit=size + 400_000)
    assert told.failed > 0
    assert told.held
    killed(url, 2, 0.2, told)  # there is room again
    sound(told.check(first, TOTAL))
    first.close()


@pytest.mark.slow
@pytest.mark.parametrize("turns", [60])
def test_killed_often(url: str, opened: Callable[[], Ledger], turns: int) -> None:
    ledger, told, chance = opened(), Told(), random.Random(8)
    ledger.apply(campaign(10 * TOTAL))
    for turn in range(turns):
        killed(url, turn, chance.uniform(0.0, 0.5), told)
    sound(told.check(ledger, 10 * TOTAL))

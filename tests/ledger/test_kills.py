"""SIGKILL under load: what was acknowledged is there, and no unit too many is spent."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from redenvelope.ledger.ledger import Ledger
from tests.ledger.asking import fund
from tests.ledger.postgres_server import PostgresServer
from tests.ledger.told import Told

ROOT = Path(__file__).parent.parent.parent
TOTAL = 3_000
MUST_BE_ZERO = ("lost decisions", "lost outcomes", "amounts nobody asked for", "told twice", "settled twice")
MUST_BE_ZERO += ("overspent", "differences")


def killed(url: str, turn: int, seconds: float, told: Told, meanwhile: Callable[[], None] | None = None) -> None:
    """Run the busy process for a while, and kill it."""
    command = [sys.executable, "-m", "tests.ledger.busy", url, str(turn)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while lines[-1] and lines[-1] != "ready\n":
        lines.append(process.stdout.readline())
    time.sleep(seconds)
    if meanwhile is not None:
        meanwhile()
    process.kill()
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    assert "Traceback" not in "".join(lines)
    told.hear(lines)


def sound(counts: dict[str, int]) -> None:
    assert counts["acknowledged"] > 50
    assert {name: counts[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)


def test_killed_under_load(url: str, opened: Callable[[], Ledger]) -> None:
    ledger, told, chance = opened(), Told(), random.Random(7)
    ledger.apply([fund(TOTAL)])
    for turn in range(4):
        killed(url, turn, chance.uniform(0.05, 0.4), told)
    sound(told.check(ledger, TOTAL))


def test_the_database_crashes_and_comes_back(postgres: PostgresServer, tmp_path: Path) -> None:
    from redenvelope.ledger.ledger import open_ledger

    url, told = postgres.database(), Told()
    first = open_ledger(url)
    first.apply([fund(TOTAL)])
    first.close()

    def restart() -> None:
        for _ in range(2):
            postgres.stop()
            postgres.start()
            time.sleep(0.3)

    killed(url, 1, 0.2, told, restart)
    again = open_ledger(url)
    sound(told.check(again, TOTAL))
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("turns", [60])
def test_killed_often(url: str, opened: Callable[[], Ledger], turns: int) -> None:
    ledger, told, chance = opened(), Told(), random.Random(8)
    ledger.apply([fund(10 * TOTAL)])
    for turn in range(turns):
        killed(url, turn, chance.uniform(0.0, 0.5), told)
    sound(told.check(ledger, 10 * TOTAL))

"""Faults on purpose, counted: what clients were told against what is in the books.

The checker knows nothing but what clients were told. Campaigns have money and a count of gifts, each with a cap per
user, and corrections of outcomes. On SQLite and on a PostgreSQL of its own: processes killed (SIGKILL) under load at
random moments, the database crashed and restarted, a full disk, 64 clients racing for the last units, and random
commands with outcomes that come twice, late and in another order while the clock goes back and forth. What must be 0
stands on the right, followed by how many users came to a cap.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.ledger.asking import fund
from tests.ledger.postgres_server import PostgresMissingError, PostgresServer
from tests.ledger.test_random import at_random
from tests.ledger.test_writer import race
from tests.ledger.told import MUST_BE_ZERO, Told, campaign, killed

from redenvelope.ledger.ledger import Ledger, open_ledger
from redenvelope.ledger.records import Fund

TOTAL = 2_000_000
Place = Callable[[], str]


def with_ledger(url: str, told: Told, total: int) -> dict[str, int]:
    ledger = open_ledger(url)
    counts = told.check(ledger, total)
    ledger.close()
    return counts


def funded(place: Place, funds: Sequence[Fund]) -> str:
    url = place()
    ledger = open_ledger(url)
    ledger.apply(funds)
    ledger.close()
    return url


def kills(place: Place, count: int) -> dict[str, int]:
    """Killed at a random moment, again and again, on one ledger."""
    url, told, chance = funded(place, campaign(TOTAL)), Told(), random.Random(1)
    for turn in range(count):
        killed(url, turn, chance.uniform(0.0, 0.4), told)
    return with_ledger(url, told, TOTAL)


def last_units(place: Place, count: int) -> dict[str, int]:
    """Killed while the last of the money goes."""
    little = 40 * count
    url, told, chance = funded(place, campaign(little)), Told(), random.Random(2)
    for turn in range(count):
        killed(url, turn, chance.uniform(0.0, 0.3), told)
    return with_ledger(url, told, little)


def restarts(server: PostgresServer, count: int) -> dict[str, int]:
    """The database crashes and comes back under load."""
    url, told = funded(server.database, campaign(TOTAL)), Told()

    def crash() -> None:
        for _ in range(count):
            server.stop()
            server.start()
            time.sleep(0.3)

    killed(url, 0, 0.3, told, crash)
    return with_ledger(url, told, TOTAL)


def full_disk(folder: Path, count: int) -> dict[str, int]:
    """No room for the ledger's files, then room again."""
    url, told = funded(lambda: f"sqlite:///{folder}/full.db", campaign(TOTAL)), Told()
    for turn in range(count):
        killed(url, 2 * turn, 0.4, told, limit=250_000 * (turn + 1))
        killed(url, 2 * turn + 1, 0.2, told)
    print(f"  (full disk: {told.failed} commands were refused and said so)")
    return with_ledger(url, told, TOTAL)


def races(place: Place, count: int) -> int:
    for _ in range(count):
        url = funded(place, [fund(100)])
        ledgers = [open_ledger(url), open_ledger(url)]
        assert race(ledgers) == 98
        close(ledgers)
    return count


def random_commands(place: Place, count: int) -> int:
    asked = 0
    for seed in range(count):
        url = place()
        ledgers = [open_ledger(url), open_ledger(url)]
        asked += at_random(ledgers, 1_000 + seed)
        close(ledgers)
    return asked


def close(ledgers: list[Ledger]) -> None:
    for ledger in ledgers:
        ledger.close()


def show(name: str, counts: dict[str, int]) -> bool:
    wrong = {key: counts[key] for key in MUST_BE_ZERO if counts[key]}
    said = ", ".join(f"{key} {counts[key]}" for key in (*MUST_BE_ZERO, "users at a cap"))
    print(f"{name:<38}{counts['acknowledged']:>9,} decisions {counts['outcomes']:>9,} outcomes   {said}", flush=True)
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="of each database")
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--races", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=50, help="of random commands")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, PostgresServer(durable=True) as server:
        made = iter(range(10**6))
        places: dict[str, Place] = {
            "sqlite": lambda: f"sqlite:///{name}/{next(made)}.db",
            "postgresql": server.database,
        }
        good = True
        for database, place in places.items():
            good &= show(f"{database}, {arguments.kills} x SIGKILL", kills(place, arguments.kills))
            few = max(arguments.kills // 10, 1)
            good &= show(f"{database}, {few} x SIGKILL, last units", last_units(place, few))
            print(f"{database}, {races(place, arguments.races)} races of 64 clients: 98 of 100 units given, each time")
            print(f"{database}, {random_commands(place, arguments.seeds):,} random commands: as by hand", flush=True)
        good &= show("sqlite, disk full 5 times", full_disk(Path(name), 5))
        good &= show(f"postgresql, {arguments.restarts} crashes", restarts(server, arguments.restarts))
    print("nothing lost, nothing overspent" if good else "SOMETHING IS WRONG")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    try:
        main()
    except PostgresMissingError as reason:
        sys.exit(f"PostgreSQL is needed: {reason}")

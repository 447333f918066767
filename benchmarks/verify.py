"""How long `redenvelope ledger verify` takes, and what a group of commands costs, on a ledger of many decisions.

Every user has two decisions of one budget (with --caps, also a cap per user); all but a few are settled. Processor time
is printed too, because other work may share the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from redenvelope.ledger.archive import back_up
from redenvelope.ledger.ledger import open_ledger, verify
from redenvelope.ledger.records import Charge, Choice, Fund, Hold, Settle

SECONDS = 10.0
_GROUP = 512
_FEATURES = '{"visits": 3, "city": "Lyon", "taste": 0.25, "tenure_days": 12, "segment": "new"}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=500_000)
    parser.add_argument("--caps", action="store_true")
    parser.add_argument("--ledger", help="URL of an empty place; by default a file that is removed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.ledger or f"sqlite:///{folder}/l.db"
        ledger = open_ledger(url)
        if not arguments.ledger:
            ledger.database._writer.execute("PRAGMA synchronous = OFF")
        ledger.apply([Fund("money", 10**12, 0, 10**6 if arguments.caps else None)])
        began = time.process_time()
        fill(ledger, arguments.decisions)
        per_decision = 1e6 * (time.process_time() - began) / arguments.decisions
        print(f"{arguments.decisions:,} decisions with outcomes: {per_decision:.0f} µs of processor time each")
        ledger.close()
        ledger = open_ledger(url, read_only=True)
        began, wall = time.process_time(), time.perf_counter()
        found = verify(ledger)
        seconds, wall = time.process_time() - began, time.perf_counter() - wall
        assert found.is_sound, found.differences
        said = "met" if seconds <= SECONDS else "MISSED"
        print(f"verify: {found.events:,} events, {seconds:.1f} s of processor time ({wall:.1f} s by the clock): {said}")
        began = time.process_time()
        back_up(url, Path(folder) / "backup.db")
        print(f"back-up, verified: {time.process_time() - began:.1f} s of processor time")
        ledger.close()


def fill(ledger: object, decisions: int) -> None:
    choice = Choice("coupon 2", 0.5, '{"coupon 2":0.5,"nothing":0.5}', (Charge("money", 200, 200, 120_000),))
    for first in range(0, decisions, _GROUP):
        holds = [
            Hold(f"r-{n}", "0" * 64, f"user-{n // 2}", n % 2, lambda _: choice, "[0.25]", "p" * 64, _FEATURES, n, n)
            for n in range(first, min(first + _GROUP, decisions))
        ]
        held = ledger.apply(holds)  # type: ignore[attr-defined]
        settled = [Settle(one.decision, 0.5, {"money": 150}, one.decision) for one in held if one.decision % 10]
        ledger.apply(settled)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()

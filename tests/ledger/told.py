"""An independent checker: it knows what clients were told, and nothing of how a ledger works."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from redenvelope import Ledger
from redenvelope.ledger.ledger import verify
from tests.ledger.asking import rows

__all__ = ["MUST_BE_ZERO", "Told", "killed"]

ROOT = Path(__file__).parent.parent.parent
MUST_BE_ZERO = (
    "lost decisions",
    "lost outcomes",
    "amounts nobody asked for",
    "told twice",
    "settled twice",
    "overspent",
    "differences",
)
"""Of what `check` counts."""
_PATIENCE_SECONDS = 30


@dataclass
class Told:
    """All that was acknowledged."""

    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Decision and amount, by request."""
    settling: dict[int, int] = field(default_factory=dict)
    """Asked for; whether it came about is not known."""
    settled: dict[int, int] = field(default_factory=dict)
    twice: int = 0
    failed: int = 0
    """Commands that the ledger could not carry out, and said so."""

    def hear(self, lines: Iterable[str]) -> None:
        """What a process printed; a last line without its end was never said."""
        for line in lines:
            if not line.endswith("\n"):
                continue
            word, *rest = line.split()
            if word == "held":
                self.twice += rest[0] in self.held
                self.held[rest[0]] = (int(rest[1]), int(rest[2]))
            elif word == "failed":
                self.failed += 1
            elif word == "settling":
                self.settling[int(rest[0])] = int(rest[1])
            elif word == "settled":
                self.twice += int(rest[0]) in self.settled
                self.settled[int(rest[0])] = int(rest[1])

    def check(self, ledger: Ledger, total: int) -> dict[str, int]:
        """Counts of what must be 0, and of what was looked at."""
        found = {row[0]: row for row in rows(ledger, "SELECT request, decision, status FROM decisions")}
        spent = dict(rows(ledger, "SELECT decision, spent FROM charges"))
        (balance,) = ledger.balances()
        lost = sum(request not in found or found[request][1] != number for request, (number, _) in self.held.items())
        lost_outcomes = sum(spent[number] != amount for number, amount in self.settled.items())
        wrong = sum(
            amount not in (0, self.settling.get(number, 0))
            for number, amount in spent.items()
            if number not in self.settled
        )
        settlements = rows(
            ledger, "SELECT count(*), count(DISTINCT decision) FROM events WHERE kind IN ('settle', 'release')"
        )
        return {
            "acknowledged": len(self.held),
            "outcomes": len(self.settled),
            "lost decisions": lost,
            "lost outcomes": lost_outcomes,
            "amounts nobody asked for": wrong,
            "told twice": self.twice,
            "settled twice": settlements[0][0] - settlements[0][1],
            "overspent": max(0, balance.spent + balance.held - total) + max(0, sum(spent.values()) - total),
            "differences": len(verify(ledger).differences),
        }


def killed(
    url: str,
    turn: int,
    seconds: float,
    told: Told,
    meanwhile: Callable[[], None] | None = None,
    limit: int | None = None,
    at_least: int = 0,
) -> None:
    """Run the busy process for a while, and kill it; `limit` is how large its files may become.

    It also runs until it was told of `at_least` decisions: how many a while brings is the machine's affair.
    """
    command = [sys.executable, "-m", "tests.ledger.busy", url, str(turn), *([] if limit is None else [str(limit)])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while lines[-1] and lines[-1] != "ready\n":
        lines.append(process.stdout.readline())
    # Read as it comes: a full pipe would hold the process up.
    reader = threading.Thread(target=lines.extend, args=(process.stdout,))
    reader.start()
    time.sleep(seconds)
    if meanwhile is not None:
        meanwhile()
    patience = time.monotonic() + _PATIENCE_SECONDS
    while sum(line.startswith("held ") for line in lines) < at_least and time.monotonic() < patience:
        time.sleep(0.02)
    process.kill()
    reader.join()
    process.wait()
    process.stdout.close()
    assert "Traceback" not in "".join(lines)
    told.hear(lines)

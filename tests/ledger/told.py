"""An independent checker: it knows what clients were told, and nothing of how a ledger works."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from redenvelope import Ledger
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import COUNTED, Fund
from tests.ledger.asking import NOW, rows

__all__ = ["CAPS", "MUST_BE_ZERO", "Told", "campaign", "killed"]

ROOT = Path(__file__).parent.parent.parent
MUST_BE_ZERO = (
    "lost decisions",
    "lost outcomes",
    "amounts nobody asked for",
    "told twice",
    "settled twice",
    "overspent",
    "above a cap",
    "differences",
)
"""Of what `check` counts."""
CAPS = {"money": 15, "gifts": 3}
"""Per user."""
_PATIENCE_SECONDS = 30


def campaign(total: int, caps: Mapping[str, int] = CAPS) -> list[Fund]:
    """What the busy process decides in: money, and a count of gifts, which run out at about the same time."""
    return [
        Fund("money", total, NOW, caps.get("money")),
        Fund("gifts", total // 6, NOW, caps.get("gifts"), COUNTED, minor_units=1),
    ]


@dataclass
class Told:
    """All that was asked for and acknowledged."""

    wanted: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """User, money and gifts, by request; whether they were given is not known."""
    held: dict[str, int] = field(default_factory=dict)
    """Decision, by request."""
    asked: dict[int, int] = field(default_factory=dict)
    """The last outcome or correction of a decision that was sent; whether it came about is not known."""
    settled: dict[int, int] = field(default_factory=dict)
    """The last outcome or correction of a decision that was acknowledged."""
    committed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """At least so much is held or spent now, by user (empty: all) and budget."""
    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The most that `committed` ever was."""
    twice: int = 0
    failed: int = 0
    """Commands that the ledger could not carry out, and said so."""

    def hear(self, lines: Iterable[str]) -> None:
        """What a process printed; a last line without its end was never said."""
        for line in lines:
            match line.split() if line.endswith("\n") else []:
                case ["wants", request, user, money, gifts]:
                    self.wanted[request] = (user, int(money), int(gifts))
                case ["held", request, decision]:
                    self.twice += request in self.held
                    self.held[request] = int(decision)
                    self._commit(request, *self.wanted[request][1:])
                case ["settling" | "settled" | "correcting" | "corrected" as word, request, amount]:
                    self._outcome(word, request, int(amount))
                case ["failed", *_]:
                    self.failed += 1

    def _outcome(self, word: str, request: str, amount: int) -> None:
        number, held = self.held[request], self.wanted[request][1]
        before = self._least(number, held)
        if word in ("settled", "corrected"):
            self.twice += word == "settled" and number in self.settled
            self.settled[number] = amount
        self.asked[number] = amount  # where a correction is refused, it is the amount before it
        self._commit(request, self._least(number, held) - before, 0)

    def _least(self, number: int, held: int) -> int:
        """The least money of a decision that may be held or spent."""
        return min(self.settled.get(number, held), self.asked.get(number, held))

    def _commit(self, request: str, money: int, gifts: int) -> None:
        for whose in ("", self.wanted[request][0]):
            for budget, amount in (("money", money), ("gifts", gifts)):
                self.committed[whose, budget] += amount
                self.most[whose, budget] = max(self.most[whose, budget], self.committed[whose, budget])

    def check(self, ledger: Ledger, total: int) -> dict[str, int]:
        """Counts of what must be 0, and of what was looked at."""
        found = {row[0]: row[1:] for row in rows(ledger, "SELECT request, decision, user_id FROM decisions")}
        charges = {
            (number, budget): amounts
            for number, budget, *amounts in rows(ledger, "SELECT decision, budget, held, open, spent FROM charges")
        }
        settlements = rows(
            ledger, "SELECT count(*), count(DISTINCT decision) FROM events WHERE kind IN ('settle', 'release')"
        )
        books: Counter[tuple[str, str]] = Counter()
        wrong = 0
        for request, (number, user) in found.items():
            (held, still, spent), (gifts, gifts_still, gifts_spent) = charges[number, "money"], charges[number, "gifts"]
            wrong += self.wanted.get(request) != (user, held, gifts) or (gifts_still, gifts_spent) != (0, gifts)
            wrong += number not in self.settled and spent not in (0, self.asked.get(number, 0))
            for whose in ("", user):
                books.update({(whose, "money"): still + spent, (whose, "gifts"): gifts_still + gifts_spent})
        balances = Counter({("", one.budget): one.spent + one.held for one in ledger.balances()})
        highest = books | balances | self.most  # the larger of each
        above = {key: amount - CAPS[key[1]] for key, amount in highest.items() if key[0]}
        return {
            "acknowledged": len(self.held),
            "outcomes": len(self.settled),
            "users at a cap": len({user for (user, _), more in above.items() if more >= 0}),
            "lost decisions": sum(found.get(request, [0])[0] != number for request, number in self.held.items()),
            "lost outcomes": sum(
                (number, "money") not in charges or charges[number, "money"][2] not in (amount, self.asked[number])
                for number, amount in self.settled.items()
            ),
            "amounts nobody asked for": wrong,
            "told twice": self.twice,
            "settled twice": settlements[0][0] - settlements[0][1],
            "overspent": sum(max(0, highest["", one.budget] - one.total) for one in campaign(total)),
            "above a cap": sum(more for more in above.values() if more > 0),
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

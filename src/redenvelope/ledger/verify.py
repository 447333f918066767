"""Verification: every balance recomputed from the entries by queries of their own, and every difference reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from redenvelope.ledger.ledger import Ledger

_MOST_SHOWN = 20


@dataclass(frozen=True)
class Difference:
    """A row of the ledger that contradicts the entries."""

    what: str
    """Which balance of what."""
    books: str
    """What the row says."""
    entries: str
    """What the entries add up to."""

    def __str__(self) -> str:
        return f"{self.what}: the balance says {self.books}, the entries say {self.entries}"


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    decisions: int
    entries: int
    budgets: tuple[dict[str, Any], ...]
    """Balances by the entries."""
    differences: tuple[Difference, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "status": "sound" if self.is_sound else "different",
            "decisions": self.decisions,
            "entries": self.entries,
            "budgets": list(self.budgets),
            "differences": [{"what": one.what, "books": one.books, "entries": one.entries} for one in self.differences],
        }


class _Check(NamedTuple):
    """A query that finds differences: two columns that name it, what the balance says, what the entries say."""

    what: str
    query: str


_SUMS = """SELECT budget AS own, sum(total_change) AS total, sum(held_change) AS held, sum(spent_change) AS spent,
    sum(expected_change) AS expected, -sum(CASE WHEN expected_change < 0 THEN expected_change ELSE 0 END) AS closed
    FROM entries GROUP BY budget"""
_OF_DECISIONS = """SELECT decision AS number, budget AS own, sum(held_change) AS held, sum(spent_change) AS spent
    FROM entries WHERE decision > 0 GROUP BY decision, budget"""
_OF_USERS = f"""SELECT user_id AS who, own, sum(held) AS held, sum(spent) AS spent
    FROM ({_OF_DECISIONS}) AS sums JOIN decisions ON decision = number GROUP BY user_id, own"""
_RUNNING = """SELECT entry, budget, sum(total_change) OVER before AS total,
    sum(held_change + spent_change) OVER before AS committed
    FROM entries WINDOW before AS (PARTITION BY budget ORDER BY entry)"""


def _tally_query() -> str:
    names = ("decided", "settled", "released", "expired")
    stored = " || ', ' || ".join(f"tallies.{name} || ' {name}'" for name in names)
    found = " || ', ' || ".join(f"coalesce(counted.{name}, 0) || ' {name}'" for name in names)
    counts = ", ".join(f"sum(CASE WHEN status = '{name}' THEN 1 ELSE 0 END) AS {name}" for name in names[1:])
    differs = " OR ".join(f"tallies.{name} <> coalesce(counted.{name}, 0)" for name in names)
    return (
        f"SELECT tallies.step, tallies.action, {stored}, {found} FROM tallies LEFT JOIN "
        f"(SELECT step, action, count(*) AS decided, {counts} FROM decisions GROUP BY step, action) AS counted "
        f"ON counted.step = tallies.step AND counted.action = tallies.action WHERE {differs}"
    )


_CHECKS = (
    _Check(
        "budget {0}, {1}",
        " UNION ALL ".join(
            f"SELECT budget, '{name}', budgets.{column}, coalesce(sums.{name}, 0) FROM budgets "
            f"LEFT JOIN ({_SUMS}) AS sums ON own = budget WHERE budgets.{column} <> coalesce(sums.{name}, 0)"
            for name, column in (
                ("total", "total"),
                ("held", "held"),
                ("spent", "spent"),
                ("expected", "expected_thousandths"),
                ("closed", "closed_thousandths"),
            )
        ),
    ),
    _Check(
        "decision {0}, charge to {1}",
        f"SELECT charges.decision, budget, charges.open || ' held, ' || charges.spent || ' spent', "
        f"coalesce(sums.held, 0) || ' held, ' || coalesce(sums.spent, 0) || ' spent' FROM charges "
        f"LEFT JOIN ({_OF_DECISIONS}) AS sums ON number = charges.decision AND own = budget "
        "WHERE open <> coalesce(sums.held, 0) OR charges.spent <> coalesce(sums.spent, 0)",
    ),
    _Check(
        "entries of decision {0} with {1}",
        f"SELECT number, own, 'no such charge', sums.held || ' held' FROM ({_OF_DECISIONS}) AS sums "
        "LEFT JOIN charges ON decision = number AND budget = own WHERE decision IS NULL",
    ),
    _Check(
        "user {0} of {1}",
        "SELECT user_id, budget, user_balances.held || ' held, ' || user_balances.spent || ' spent', "
        "coalesce(sums.held, 0) || ' held, ' || coalesce(sums.spent, 0) || ' spent' FROM user_balances "
        f"LEFT JOIN ({_OF_USERS}) AS sums ON who = user_id AND own = budget "
        "WHERE user_balances.held <> coalesce(sums.held, 0) OR user_balances.spent <> coalesce(sums.spent, 0)",
    ),
    _Check(
        "user {0} of {1}",
        f"SELECT who, own, 'no balance', sums.held || ' held, ' || sums.spent || ' spent' FROM ({_OF_USERS}) AS sums "
        "JOIN budgets ON budgets.budget = own LEFT JOIN user_balances ON user_id = who AND user_balances.budget = own "
        "WHERE budgets.user_cap IS NOT NULL AND user_id IS NULL AND sums.held + sums.spent > 0",
    ),
    _Check(
        "decision {0} ({1})",
        "SELECT decisions.decision, status, CASE WHEN status = 'open' THEN 'a date of closing' ELSE 'money held' END, "
        "'closed decisions hold nothing, open ones are not closed' FROM decisions "
        "LEFT JOIN charges ON charges.decision = decisions.decision "
        "WHERE (status <> 'open' AND open > 0) OR ((status = 'open') <> (closed_at IS NULL))",
    ),
    _Check(
        "budget {0}, after entry {1}",
        f"SELECT budget, entry, total || ' in total', committed || ' spent and held' FROM ({_RUNNING}) AS running "
        "WHERE committed > total OR committed < 0",
    ),
    _Check("tally of step {0}, action {1}", _tally_query()),
    _Check(
        "counter of {0}{1}",
        "SELECT 'decisions', '', value, most FROM counters, "
        "(SELECT coalesce(max(decision), 0) AS most FROM decisions) AS numbers "
        "WHERE name = 'decision' AND value < most UNION ALL SELECT 'entries', '', value, number FROM counters, "
        "(SELECT count(*) AS number FROM entries) AS numbers WHERE name = 'entry' AND value <> number",
    ),
)


def verify(ledger: Ledger) -> Verification:
    """Compare every balance with the entries, and check that no budget was overspent after any entry."""
    with ledger.database.reading() as session:
        differences = tuple(
            Difference(check.what.format(row[0], row[1]), str(row[2]), str(row[3]))
            for check in _CHECKS
            for row in session.rows(f"{check.query} LIMIT {_MOST_SHOWN}")
        )
        ((decisions, entries),) = session.rows(
            "SELECT (SELECT count(*) FROM decisions), (SELECT count(*) FROM entries)"
        )
        sums = session.rows(f"{_SUMS} ORDER BY budget")
    budgets = [{"budget": row[0], "total": int(row[1]), "held": int(row[2]), "spent": int(row[3])} for row in sums]
    return Verification(decisions, entries, tuple(budgets), differences)

"""The end of a transaction: everything that its commands changed, written in one go."""

from __future__ import annotations

from redenvelope.ledger.book import Book

__all__ = ["write_all"]


def write_all(book: Book) -> None:
    """Write what changed; nothing is seen of it before the transaction is committed."""
    session = book.session
    first_entry = book.last["entry"] + 1
    book.last["entry"] += len(book.entries)
    _decisions(book)
    if book.entries:
        session.many(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    first_entry + place,
                    entry.at,
                    entry.kind,
                    entry.decision,
                    entry.budget,
                    entry.total_change,
                    entry.held_change,
                    entry.spent_change,
                    entry.expected_change,
                )
                for place, entry in enumerate(book.entries)
            ],
        )
        touched = {entry.budget for entry in book.entries}
        session.many(
            "UPDATE budgets SET held = ?, spent = ?, expected_thousandths = ?, closed_thousandths = ? WHERE budget = ?",
            [
                (one.held, one.spent, one.expected, one.closed, name)
                for name, one in book.budgets.items()
                if name in touched
            ],
        )
    if book.touched_users:
        session.many(
            "INSERT INTO user_balances VALUES (?, ?, ?, ?, ?) ON CONFLICT (user_id, budget) DO UPDATE SET "
            "held = excluded.held, spent = excluded.spent",
            [(*key, (own := book.users[key]).held, own.spent, own.limit) for key in sorted(book.touched_users)],
        )
    if book.tallies:
        session.many(
            "INSERT INTO tallies VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (step, action) DO UPDATE SET "
            "decided = tallies.decided + excluded.decided, settled = tallies.settled + excluded.settled, "
            "released = tallies.released + excluded.released, expired = tallies.expired + excluded.expired, "
            "reward = tallies.reward + excluded.reward, spent = tallies.spent + excluded.spent",
            [(*key, *counts) for key, counts in book.tallies.items()],
        )
    for at, content in book.notes:
        session.many("INSERT INTO price_notes VALUES (?, ?, ?)", [(book.number("note"), at, content)])
    session.many("UPDATE counters SET value = ? WHERE name = ?", [(value, name) for name, value in book.last.items()])


def _decisions(book: Book) -> None:
    session = book.session
    if book.added:
        session.many(
            "INSERT INTO decisions (decision, request, fingerprint, user_id, step, action, propensity, probabilities, "
            "prices, plan, features, status, decided_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    (one := case.record).decision,
                    one.request,
                    case.fingerprint,
                    one.user,
                    one.step,
                    one.action,
                    one.propensity,
                    one.probabilities,
                    one.prices,
                    one.plan,
                    one.features,
                    "open",
                    one.decided_at,
                    one.expires_at,
                )
                for case in book.added
            ],
        )
        charges = [
            (
                case.record.decision,
                one.budget,
                one.held,
                case.open[one.budget],
                one.ceiling,
                case.spent[one.budget],
                one.expected_thousandths,
            )
            for case in book.added
            for one in case.record.charges
        ]
        if charges:
            session.many("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", charges)
    if book.changed:
        cases = list(book.changed.values())
        session.many(
            "UPDATE decisions SET status = ?, reward = ?, closed_at = ? WHERE decision = ?",
            [(case.status.value, case.reward, case.closed_at, case.record.decision) for case in cases],
        )
        changes = [
            (case.open[budget], case.spent[budget], case.record.decision, budget)
            for case in cases
            for budget in case.open
        ]
        if changes:
            session.many("UPDATE charges SET open = ?, spent = ? WHERE decision = ? AND budget = ?", changes)

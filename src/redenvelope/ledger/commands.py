"""What each command does to the books, inside of a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from redenvelope.errors import UsageError
from redenvelope.ledger.book import Account, Book, Case, Entry, write_all
from redenvelope.ledger.records import (
    COUNTED,
    Choice,
    Command,
    Decided,
    Done,
    Expire,
    Fund,
    Hold,
    PriceNote,
    Refusal,
    Refused,
    Settle,
    Settled,
    Status,
)

Result = Decided | Settled | Refused | Done
_DECIDED, _SETTLED, _RELEASED, _EXPIRED = range(4)


def execute(book: Book, commands: Sequence[Command]) -> list[Result]:
    """Carry commands out in their order, each with its own answer, and write what they changed."""
    holds = [command for command in commands if isinstance(command, Hold)]
    book.know_requests([hold.request for hold in holds], [hold.user for hold in holds])
    book.know_decisions([command.decision for command in commands if isinstance(command, Settle)])
    results = [_execute(book, command) for command in commands]
    write_all(book)
    return results


def _execute(book: Book, command: Command) -> Result:
    match command:
        case Hold():
            return _hold(book, command)
        case Settle():
            return _settle(book, command)
        case Expire():
            return _expire(book, command)
        case Fund():
            return _fund(book, command)
        case PriceNote():
            book.notes.append((command.at, command.content))
            return Done()


def _hold(book: Book, wanted: Hold) -> Result:
    before = book.by_request.get(wanted.request)
    if before is not None:
        if before.fingerprint != wanted.fingerprint:
            return Refused(Refusal.REQUEST_DIFFERS, f"request {wanted.request!r} was made before, with other content")
        return before.now(repeated=True)
    if (wanted.user, wanted.step) in book.taken:
        return Refused(Refusal.STEP_TAKEN, f"step {wanted.step} of this user is decided by another request")
    choice = wanted.choose(book.left_of_all(wanted.user))
    if choice is None:
        return Refused(Refusal.NOTHING_LEFT, "nothing that may be given can be paid from what is left")
    _require_payable(book, wanted, choice)
    counted = {charge.budget: charge.held for charge in choice.charges if _counts(book, charge.budget)}
    held = {charge.budget: 0 if charge.budget in counted else charge.held for charge in choice.charges}
    record = Decided(
        decision=book.number("decision"),
        request=wanted.request,
        user=wanted.user,
        step=wanted.step,
        action=choice.action,
        propensity=choice.propensity,
        probabilities=choice.probabilities,
        prices=wanted.prices,
        plan=wanted.plan,
        features=wanted.features,
        status=Status.OPEN,
        decided_at=wanted.at,
        expires_at=wanted.expires_at,
        reward=None,
        closed_at=None,
        charges=choice.charges,
        spent=dict.fromkeys(held, 0) | counted,
        is_number=choice.is_number,
    )
    case = Case(record, wanted.fingerprint, held, dict(record.spent), Status.OPEN, None, None)
    book.add(case)
    book.tally(case, _DECIDED)
    for charge in choice.charges:
        at_once = counted.get(charge.budget, 0)
        expected = 0 if charge.budget in counted else charge.expected_thousandths
        entry = Entry(wanted.at, "hold", record.decision, charge.budget, 0, held[charge.budget], at_once, expected)
        book.write(wanted.user, entry)
    return case.now()


def _counts(book: Book, budget: str) -> bool:
    """Whether a budget counts actions: what it counts is spent when it is decided, and no outcome is waited for."""
    return book.budgets[budget].measure == COUNTED


def _require_payable(book: Book, wanted: Hold, choice: Choice) -> None:
    """Whoever draws must draw from what can be paid: anything else is a bug, and ends the transaction."""
    budgets = [charge.budget for charge in choice.charges]
    if len(set(budgets)) != len(budgets) or not set(budgets) <= set(book.budgets):
        raise UsageError(f"a decision is charged to budgets {budgets}; there are {list(book.budgets)}, each once")
    for charge in choice.charges:
        if charge.held > book.left(wanted.user, charge.budget):
            raise UsageError(f"{charge.held} was drawn from {charge.budget!r}, which cannot pay that")


def _settle(book: Book, outcome: Settle) -> Result:
    case = book.cases.get(outcome.decision)
    if case is None:
        return Refused(Refusal.UNKNOWN_DECISION, f"there is no decision {outcome.decision}")
    amounts = _resolved(book, case, outcome)
    if case.status in (Status.SETTLED, Status.RELEASED):
        spent = {key: value for key, value in case.spent.items() if value}
        if case.reward != outcome.reward or spent != {key: value for key, value in amounts.items() if value}:
            return Refused(Refusal.OUTCOME_DIFFERS, f"decision {outcome.decision} was settled before, otherwise")
        return Settled(outcome.decision, case.status, outcome.reward, dict(case.spent), repeated=True)
    ceilings = {charge.budget: charge.ceiling for charge in case.record.charges}
    for budget, amount in amounts.items():
        if amount > ceilings.get(budget, 0):
            said = f"decision {outcome.decision} may cost {budget!r} at most {ceilings.get(budget, 0)}, not {amount}"
            return Refused(Refusal.ABOVE_CEILING, said)
        more = amount - case.open.get(budget, 0) - case.spent.get(budget, 0)
        # What is held for it is its own; what is above has to be left, now.
        if more > 0 and more > book.left(case.record.user, budget):
            said = f"{budget!r} has no {more} left beyond what was held for decision {outcome.decision}"
            return Refused(Refusal.NOTHING_LEFT, said)
    return _close(book, case, outcome, amounts)


def _resolved(book: Book, case: Case, outcome: Settle) -> dict[str, int]:
    """What an outcome costs every budget that its decision is charged to, and those that it names besides."""
    given = outcome.amounts
    measured: dict[str, int] = {}
    for budget, amount in given.items():
        if budget in book.budgets and not _counts(book, budget):
            measure = book.budgets[budget].measure
            measured[measure] = max(amount, measured.get(measure, 0))
    amounts: dict[str, int] = {}
    for charge in case.record.charges:
        if _counts(book, charge.budget):
            amounts[charge.budget] = given.get(charge.budget, case.spent[charge.budget])
        else:
            amounts[charge.budget] = given.get(charge.budget, measured.get(book.budgets[charge.budget].measure, 0))
    charged = {book.budgets[charge.budget].measure for charge in case.record.charges}
    for budget, amount in given.items():
        # Of two budgets with one measure, that of other rows may be named: it is not the one that pays.
        known = book.budgets.get(budget)
        elsewhere = known is not None and known.measure != COUNTED and known.measure in charged
        if amount and budget not in amounts and not elsewhere:
            amounts[budget] = amount
    return amounts


def _close(book: Book, case: Case, outcome: Settle, amounts: dict[str, int]) -> Settled:
    late = case.status is Status.EXPIRED
    paid = any(amount for budget, amount in amounts.items() if not _counts(book, budget))
    case.status = Status.SETTLED if paid else Status.RELEASED
    kind = "settle" if paid else "release"
    if late:
        book.tally(case, _EXPIRED, count=-1)
    first = next(iter(book.budgets), "")
    book.tally(case, _SETTLED if paid else _RELEASED, outcome.reward, amounts.get(first, 0))
    for charge in case.record.charges:
        held, spent = case.open[charge.budget], amounts.get(charge.budget, 0)
        settled = late or _counts(book, charge.budget)
        expected = 0 if settled else -charge.expected_thousandths
        change = spent - case.spent[charge.budget]
        entry = Entry(outcome.at, kind, outcome.decision, charge.budget, 0, -held, change, expected)
        book.write(case.record.user, entry)
        case.open[charge.budget], case.spent[charge.budget] = 0, spent
    case.reward, case.closed_at = outcome.reward, outcome.at
    book.changed[outcome.decision] = case
    return Settled(outcome.decision, case.status, outcome.reward, dict(case.spent))


def _expire(book: Book, command: Expire) -> Done:
    rows = book.session.rows(
        "SELECT decision FROM decisions WHERE status = 'open' AND expires_at <= ? ORDER BY expires_at LIMIT ?",
        [command.at, command.most],
    )
    numbers = [int(row[0]) for row in rows]
    book.know_decisions(numbers)
    # An outcome earlier in this transaction may have closed it.
    cases = [case for number in numbers if (case := book.cases[number]).status is Status.OPEN]
    for case in cases:
        case.status, case.closed_at = Status.EXPIRED, command.at
        book.tally(case, _EXPIRED)
        for charge in case.record.charges:
            held = case.open[charge.budget]
            expected = 0 if _counts(book, charge.budget) else -charge.expected_thousandths
            entry = Entry(command.at, "expire", case.record.decision, charge.budget, 0, -held, 0, expected)
            book.write(case.record.user, entry)
            case.open[charge.budget] = 0
        book.changed[case.record.decision] = case
    return Done(len(cases))


def _fund(book: Book, wanted: Fund) -> Result:
    account = book.budgets.get(wanted.budget)
    measure = wanted.budget if wanted.measure is None else wanted.measure
    if account is None:
        account = book.budgets[wanted.budget] = Account(0, 0, 0, measure=measure, minor_units=wanted.minor_units)
        row = (wanted.budget, len(book.budgets), measure, wanted.minor_units)
        book.session.many("INSERT INTO budgets VALUES (?, ?, 0, 0, 0, 0, 0, NULL, ?, ?)", [row])
    if (account.measure, account.minor_units) != (measure, wanted.minor_units):
        raise UsageError(
            f"{wanted.budget!r} is kept in the ledger as {_measured(account.measure, account.minor_units)}, and cannot "
            f"become {_measured(measure, wanted.minor_units)}; begin another ledger, or name the budget otherwise"
        )
    committed = account.held + account.spent
    if wanted.total < committed:
        said = f"{wanted.budget!r} has {committed} spent and held already; its total cannot be {wanted.total}"
        return Refused(Refusal.BELOW_COMMITTED, said)
    change = wanted.total - (account.limit or 0)
    account.limit = wanted.total
    if change:
        book.entries.append(Entry(wanted.at, "fund", 0, wanted.budget, change))
    if wanted.user_cap != account.user_cap:
        _cap(book, wanted)
        account.user_cap = wanted.user_cap
    book.session.many(
        "UPDATE budgets SET total = ?, user_cap = ? WHERE budget = ?", [(wanted.total, wanted.user_cap, wanted.budget)]
    )
    return Done()


def _measured(measure: str, minor_units: int) -> str:
    what = "a count of actions" if measure == COUNTED else f"an amount of {measure!r}"
    return f"{what} in {minor_units} minor units"


def _cap(book: Book, wanted: Fund) -> None:
    """Write the users' balances with a budget anew: until now they had another cap, or none was asked for.

    Who is above a new cap already keeps what is there, and gets nothing more.
    """
    if book.added or book.changed:
        raise UsageError("a cap is changed in a transaction of its own")
    book.session.many("DELETE FROM user_balances WHERE budget = ?", [(wanted.budget,)])
    book.users = {key: account for key, account in book.users.items() if key[1] != wanted.budget}
    book.known_users.clear()  # they have a balance with this budget from now on
    book.touched_users = {key for key in book.touched_users if key[1] != wanted.budget}
    if wanted.user_cap is None:
        return
    book.session.many(
        "INSERT INTO user_balances SELECT user_id, budget, sum(open), sum(charges.spent), "
        "CASE WHEN sum(open) + sum(charges.spent) > ? THEN sum(open) + sum(charges.spent) ELSE ? END "
        "FROM charges JOIN decisions ON decisions.decision = charges.decision WHERE budget = ? "
        "GROUP BY user_id, budget",
        [(wanted.user_cap, wanted.user_cap, wanted.budget)],
    )

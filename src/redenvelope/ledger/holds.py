"""The effect of each command inside one transaction: hold, settle, release, expire; change a campaign; forget a user.

A decision holds what it may cost. Its outcome settles the hold, or releases it if nothing was spent. A hold without an
outcome in time expires, and the money is free again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import msgspec

from redenvelope.errors import UsageError
from redenvelope.ledger.chain import PERSONAL, forgotten, personal_digest, seed_digest
from redenvelope.ledger.records import (
    COUNTED,
    Begin,
    Choice,
    Command,
    Correct,
    Decided,
    Done,
    Expire,
    Forget,
    Fund,
    Hold,
    Identify,
    NewEpoch,
    PlanNote,
    PriceNote,
    Refusal,
    Refused,
    Settle,
    Settled,
    Status,
)
from redenvelope.ledger.transaction import Account, DecisionState, Entry, Event, Transaction

Result = Decided | Settled | Refused | Done


def execute(transaction: Transaction, commands: Sequence[Command]) -> list[Result]:
    """Execute commands in order, each with its own result, and write the changes."""
    holds = [command for command in commands if isinstance(command, Hold)]
    transaction.load_requests([hold.request for hold in holds], [hold.user for hold in holds])
    transaction.load_decisions([command.decision for command in commands if isinstance(command, Settle)])
    if not transaction.last["event"]:
        content = transaction.identity | {"seed_sha256": seed_digest(transaction.last["seed"])}
        transaction.events.append(Event(transaction.now, "create", content=_json(content)))
    results = [_execute(transaction, command) for command in commands]
    transaction.write()
    return results


def _execute(transaction: Transaction, command: Command) -> Result:
    match command:
        case Hold():
            return _hold(transaction, command)
        case Settle():
            return _settle(transaction, command)
        case Expire():
            return _expire(transaction, command)
        case Fund():
            return _fund(transaction, command)
        case PriceNote():
            transaction.events.append(Event(command.at, "price", content=command.content))
            return Done()
        case PlanNote():
            return _note_plan(transaction, command)
        case Identify():
            return _identify(transaction, command)
        case Begin():
            return _begin(transaction, command)
        case Forget():
            return _forget(transaction, command)
        case NewEpoch():
            _set_identity(transaction, "restore", command, {"epoch": secrets.token_hex(4)})
            return Done()


def _hold(transaction: Transaction, wanted: Hold) -> Result:
    """Draw an action from those that can be paid, and hold what it may cost."""
    before = transaction.by_request.get(wanted.request)
    if before is not None:
        if before.record.fingerprint != wanted.fingerprint:
            return Refused(
                Refusal.REQUEST_DIFFERS, f"request {wanted.request!r} was sent before with different content"
            )
        return before.now(repeated=True)
    if (wanted.user, wanted.step) in transaction.decided_steps:
        return Refused(Refusal.STEP_TAKEN, f"step {wanted.step} of this user was decided by another request")
    choice = wanted.choose(transaction.left_of_all(wanted.user))
    if choice is None:
        return Refused(Refusal.NOTHING_LEFT, "what is left in the budgets pays for no eligible action")
    _require_payable(transaction, wanted, choice)
    counted = {
        charge.budget: charge.held for charge in choice.charges if transaction.budgets[charge.budget].counts_actions
    }
    held = {charge.budget: 0 if charge.budget in counted else charge.held for charge in choice.charges}
    number = transaction.next_number("decision")
    record = Decided(
        decision=number,
        request=wanted.request,
        fingerprint=wanted.fingerprint,
        user=wanted.user,
        step=wanted.step,
        action=choice.action,
        propensity=choice.propensity,
        probabilities=choice.probabilities,
        prices=wanted.prices,
        plan=wanted.plan,
        features=wanted.features,
        eligible=choice.eligible,
        rules=wanted.rules,
        state=wanted.state,
        holdout=wanted.holdout,
        status=Status.OPEN,
        decided_at=wanted.at,
        expires_at=wanted.expires_at,
        reward=None,
        closed_at=None,
        charges=choice.charges,
        spent=dict.fromkeys(held, 0) | counted,
        is_number=choice.is_number,
        public_id=f"d{number}_{transaction.identity['ledger']}_{transaction.identity['epoch']}_{secrets.token_hex(4)}",
    )
    state = DecisionState(record, held, dict(record.spent), Status.OPEN, None, None)
    transaction.add(state)
    transaction.count(state, Status.OPEN)
    transaction.events.append(event := Event(wanted.at, "decide", number))
    for charge in choice.charges:
        at_once = counted.get(charge.budget, 0)
        expected = 0 if charge.budget in counted else charge.expected_thousandths
        transaction.post(event, wanted.user, Entry(charge.budget, 0, held[charge.budget], at_once, expected))
    return record


def _require_payable(transaction: Transaction, wanted: Hold, choice: Choice) -> None:
    """Raise and thereby roll back the transaction if the drawn action cannot be paid, which is a bug of the caller."""
    budgets = [charge.budget for charge in choice.charges]
    if len(set(budgets)) != len(budgets) or not set(budgets) <= set(transaction.budgets):
        known = list(transaction.budgets)
        raise UsageError(f"a decision is charged to budgets {budgets}; charge each of {known} at most once")
    for charge in choice.charges:
        if charge.held > transaction.left(wanted.user, charge.budget):
            raise UsageError(f"an action was drawn that budget {charge.budget!r} cannot pay ({charge.held})")


def _settle(transaction: Transaction, outcome: Settle) -> Result:
    """Check an outcome, then settle or release its hold; a repeated outcome changes nothing."""
    state = transaction.decisions.get(outcome.decision)
    given, own = outcome.public_id, transaction.identity
    is_own = state is not None and given == state.record.public_id
    parts = given.split("_")  # in the oldest format, ids were numbers alone
    if not is_own and len(parts) > 1 and parts[1] != own["ledger"]:
        return Refused(Refusal.OTHER_LEDGER, f"decision {given!r} is not of this ledger, which is {own['ledger']}")
    if (given and not is_own and len(parts) == 1) or (state is None and parts[2:-1] in ([], [own["epoch"]])):
        return Refused(Refusal.UNKNOWN_DECISION, f"there is no decision {given or outcome.decision}")
    if state is None or (given and not is_own):
        message = f"decision {given!r} is not in this ledger, which was restored from a back-up made before it"
        return Refused(Refusal.OTHER_DECISION, message)
    amounts = _amounts_by_budget(transaction, state, outcome)
    is_correction, is_recorded = isinstance(outcome, Correct), state.status in (Status.SETTLED, Status.RELEASED)
    if is_recorded:
        names = {*state.spent, *amounts}
        same = all(state.spent.get(name, 0) == amounts.get(name, 0) for name in names)
        if state.reward == outcome.reward and same:
            return Settled(outcome.decision, state.status, outcome.reward, dict(state.spent), repeated=True)
    if is_recorded != is_correction:
        return _unexpected(outcome)
    refused = _unpaid(transaction, state, amounts)
    if refused is None:
        return _close(transaction, state, outcome, amounts)
    if not is_correction:
        _keep_reward(transaction, state, outcome, amounts)
    return refused


def _unexpected(outcome: Settle) -> Refused:
    if isinstance(outcome, Correct):
        message = f"decision {outcome.decision} has no recorded outcome that could be corrected"
        return Refused(Refusal.NO_OUTCOME, message)
    return Refused(Refusal.OUTCOME_DIFFERS, f"decision {outcome.decision} was already settled with a different outcome")


def _unpaid(transaction: Transaction, state: DecisionState, amounts: Mapping[str, int]) -> Refused | None:
    """Why the amounts of an outcome cannot be paid, or None if they can."""
    number, ceilings = state.record.decision, {charge.budget: charge.ceiling for charge in state.record.charges}
    for budget, amount in amounts.items():
        ceiling = ceilings.get(budget, 0)
        if amount > ceiling:
            message = f"decision {number} can cost budget {budget!r} at most {ceiling}, not {amount}"
            return Refused(Refusal.ABOVE_CEILING, message)
        more = amount - state.open.get(budget, 0) - state.spent.get(budget, 0)
        # The hold covers its own amount; the excess must be left in the budget.
        if more > 0 and more > transaction.left(state.record.user, budget):
            message = f"budget {budget!r} cannot pay {more} beyond what was held for decision {number}"
            return Refused(Refusal.NOTHING_LEFT, message)
    return None


def _keep_reward(transaction: Transaction, state: DecisionState, outcome: Settle, amounts: Mapping[str, int]) -> None:
    """Record the reward of an outcome whose amount was refused, because a log without it would be biased."""
    if state.reward == outcome.reward:
        return
    content = _json({"amounts": amounts, "status": state.status})
    transaction.events.append(Event(outcome.at, "refuse", outcome.decision, float(outcome.reward), content))
    _earn(transaction, state, outcome.reward)
    transaction.changed[outcome.decision] = state


def _amounts_by_budget(transaction: Transaction, state: DecisionState, outcome: Settle) -> dict[str, int]:
    """What an outcome charges to each budget of its decision, and to other budgets that it names."""
    given = outcome.amounts
    measured: dict[str, int] = {}
    for budget, amount in given.items():
        if budget in transaction.budgets and not transaction.budgets[budget].counts_actions:
            measure = transaction.budgets[budget].measure
            measured[measure] = max(amount, measured.get(measure, 0))
    amounts: dict[str, int] = {}
    for charge in state.record.charges:
        account = transaction.budgets[charge.budget]
        default = state.spent[charge.budget] if account.counts_actions else measured.get(account.measure, 0)
        amounts[charge.budget] = given.get(charge.budget, default)
    charged = {transaction.budgets[charge.budget].measure for charge in state.record.charges}
    for budget, amount in given.items():
        # The outcome may name a budget of other rows with the same measure; the budget of this row pays.
        known = transaction.budgets.get(budget)
        elsewhere = known is not None and not known.counts_actions and known.measure in charged
        if amount and budget not in amounts and not elsewhere:
            amounts[budget] = amount
    return amounts


def _close(transaction: Transaction, state: DecisionState, outcome: Settle, amounts: dict[str, int]) -> Settled:
    before = state.status
    paid = any(amount for budget, amount in amounts.items() if not transaction.budgets[budget].counts_actions)
    state.status = Status.SETTLED if paid else Status.RELEASED
    kind, content = "settle" if paid else "release", {}
    if isinstance(outcome, Correct):
        kind, content = "correct", {"by": outcome.by, "reason": outcome.reason}
    said = _json({"amounts": amounts, "status": state.status, **content})
    transaction.events.append(event := Event(outcome.at, kind, outcome.decision, float(outcome.reward), said))
    first = next(iter(transaction.budgets), "")
    spent_before = 0 if before in (Status.OPEN, Status.EXPIRED) else state.spent.get(first, 0)
    transaction.tally(state, 0.0, amounts.get(first, 0) - spent_before)
    transaction.count(state, before, -1)
    transaction.count(state, state.status)
    for charge in state.record.charges:
        held, spent = state.open[charge.budget], amounts.get(charge.budget, 0)
        closed = before is not Status.OPEN or transaction.budgets[charge.budget].counts_actions
        expected = 0 if closed else -charge.expected_thousandths
        change = spent - state.spent[charge.budget]
        transaction.post(event, state.record.user, Entry(charge.budget, 0, -held, change, expected))
        state.open[charge.budget], state.spent[charge.budget] = 0, spent
    _earn(transaction, state, outcome.reward)
    state.closed_at = outcome.at
    transaction.changed[outcome.decision] = state
    return Settled(outcome.decision, state.status, outcome.reward, dict(state.spent))


def _earn(transaction: Transaction, state: DecisionState, reward: float) -> None:
    """Set the reward of a decision, and update the tallies."""
    transaction.tally(state, reward - (state.reward or 0.0), 0)
    if state.reward is not None:
        transaction.recounted.add((state.record.step, state.record.action))
    state.reward = reward


def _expire(transaction: Transaction, command: Expire) -> Done:
    """Give back what is held for decisions that are due."""
    # Both clocks must have reached the time, so that one that runs ahead ends nothing early.
    at = min(command.at, transaction.now)
    numbers = transaction.load_due(at, command.most)
    # An earlier command of this transaction may have settled a decision.
    expired = [state for number in numbers if (state := transaction.decisions[number]).status is Status.OPEN]
    for state in expired:
        state.status, state.closed_at = Status.EXPIRED, at
        transaction.count(state, Status.EXPIRED)
        transaction.events.append(event := Event(at, "expire", state.record.decision))
        for charge in state.record.charges:
            held = state.open[charge.budget]
            expected = 0 if transaction.budgets[charge.budget].counts_actions else -charge.expected_thousandths
            transaction.post(event, state.record.user, Entry(charge.budget, 0, -held, 0, expected))
            state.open[charge.budget] = 0
        transaction.changed[state.record.decision] = state
    return Done(len(expired))


def _fund(transaction: Transaction, wanted: Fund) -> Result:
    """Set the total of a budget and its cap per user."""
    account = transaction.budgets.get(wanted.budget)
    measure = wanted.budget if wanted.measure is None else wanted.measure
    is_new = account is None
    if account is None:
        account = transaction.budgets[wanted.budget] = Account(0, 0, 0, measure=measure, minor_units=wanted.minor_units)
        row = (wanted.budget, len(transaction.budgets), measure, wanted.minor_units)
        transaction.session.many("INSERT INTO budgets VALUES (?, ?, 0, 0, 0, 0, 0, NULL, ?, ?)", [row])
    if (account.measure, account.minor_units) != (measure, wanted.minor_units):
        raise UsageError(
            f"budget {wanted.budget!r} is {_described(account.measure, account.minor_units)} in the ledger and cannot "
            f"become {_described(measure, wanted.minor_units)}; use another ledger, or another name for the budget"
        )
    if wanted.before not in (None, (account.limit, account.user_cap)):
        raise UsageError(f"somebody else has changed budget {wanted.budget!r} meanwhile; look at it and try again")
    committed = account.held + account.spent
    if wanted.total < committed:
        message = f"budget {wanted.budget!r} has already spent and held {committed}; its total cannot be {wanted.total}"
        return Refused(Refusal.BELOW_COMMITTED, message)
    change = wanted.total - (account.limit or 0)
    if not is_new and not change and wanted.user_cap == account.user_cap:
        return Done()
    account.limit = wanted.total
    content = {
        **{name: getattr(wanted, name) for name in ("by", "budget", "total", "user_cap", "minor_units")},
        "measure": measure,
    }
    entries = [Entry(wanted.budget, change)] if change else []
    transaction.events.append(Event(wanted.at, "change", content=_json(content), entries=entries))
    if wanted.user_cap != account.user_cap:
        _set_user_cap(transaction, wanted)
        account.user_cap = wanted.user_cap
    transaction.session.many(
        "UPDATE budgets SET total = ?, user_cap = ? WHERE budget = ?", [(wanted.total, wanted.user_cap, wanted.budget)]
    )
    return Done()


def _identify(transaction: Transaction, wanted: Identify) -> Done:
    """Set the identity of the campaign."""
    given = {"campaign": wanted.campaign, "currency": wanted.currency, "mode": wanted.mode}
    new = {name: value for name, value in given.items() if value not in (None, transaction.identity[name])}
    if new:
        _set_identity(transaction, "change", wanted, new)
    return Done()


def _note_plan(transaction: Transaction, wanted: PlanNote) -> Done:
    known = transaction.session.rows("SELECT content FROM events WHERE decision = 0 AND kind = 'plan'")
    new = [(event.content,) for event in transaction.events if event.kind == "plan"]
    if (wanted.content,) not in [*known, *new]:
        transaction.events.append(Event(wanted.at, "plan", content=wanted.content))
    return Done()


def _set_identity(transaction: Transaction, kind: str, wanted: Identify | NewEpoch, new: Mapping[str, str]) -> None:
    transaction.identity |= new
    transaction.events.append(Event(wanted.at, kind, content=_json({"by": wanted.by, **new})))
    rows = [(value, name) for name, value in new.items()]
    transaction.session.many("UPDATE identity SET value = ? WHERE name = ?", rows)


def _begin(transaction: Transaction, wanted: Begin) -> Done | Refused:
    """Begin a campaign, or report how it differs from the ledger's campaign."""
    differences = [
        f"{what} is {own!r} in the ledger and {given!r} here"
        for what, own, given in _compared(transaction, wanted)
        if own != given
    ]
    if differences:
        return Refused(Refusal.OTHER_CAMPAIGN, "; ".join(differences))
    # What is not known yet, as in a ledger of an older format, is set now.
    _identify(transaction, wanted.identity)
    for fund in wanted.funds:
        _fund(transaction, fund)
    return Done()


def _compared(transaction: Transaction, wanted: Begin) -> Iterator[tuple[str, object, object]]:
    """What must agree: its name, the ledger's value, and the wanted value."""
    for name in ("campaign", "currency", "mode"):
        own, given = transaction.identity[name], getattr(wanted.identity, name)
        if own and given is not None:
            yield name, own, given
    if not transaction.budgets:  # a new ledger
        return
    funds = {fund.budget: fund for fund in wanted.funds}
    yield "the list of budgets", sorted(transaction.budgets), sorted(funds)
    for name, fund in funds.items():
        account = transaction.budgets.get(name)
        if account is None:
            continue
        units = account.minor_units
        of = f" of budget {name!r}" if len(transaction.budgets) > 1 else ""
        yield f"the total{of}", _units(account.limit, units), _units(fund.total, fund.minor_units)
        yield f"the cap per user{of}", _units(account.user_cap, units), _units(fund.user_cap, fund.minor_units)
        yield f"what is measured{of}", account.measure, fund.budget if fund.measure is None else fund.measure
        yield f"the number of minor units{of}", units, fund.minor_units


def _units(amount: int | None, minor_units: int) -> str:
    return "none" if amount is None else f"{Decimal(amount) / minor_units:,}"


def _forget(transaction: Transaction, wanted: Forget) -> Done:
    """Replace what identifies a user: the id by a random name, common to the user's decisions; the rest by nothing."""
    if transaction.added or transaction.changed:
        raise UsageError(
            "a user cannot be forgotten in a transaction that decides or settles; forget in one of its own"
        )
    rows = transaction.session.rows(
        f"SELECT decision, salt, {', '.join(PERSONAL)} FROM decisions WHERE user_id = ?", [wanted.user]
    )
    name = f"forgotten-{secrets.token_hex(8)}"
    erased = [(*forgotten(name, number), personal_digest(salt, personal), number) for number, salt, *personal in rows]
    columns = ", ".join(f"{column} = ?" for column in PERSONAL)
    transaction.session.many(f"UPDATE decisions SET {columns}, salt = NULL, digest = ? WHERE decision = ?", erased)
    transaction.session.many("UPDATE user_balances SET user_id = ? WHERE user_id = ?", [(name, wanted.user)])
    if erased:
        content = {"by": wanted.by, "name": name, "decisions": [one[-1] for one in erased]}
        transaction.events.append(Event(wanted.at, "forget", content=_json(content)))
    return Done(len(erased))


def _json(content: object) -> str:
    return msgspec.json.encode(content).decode()


def _described(measure: str, minor_units: int) -> str:
    what = "a count of actions" if measure == COUNTED else f"an amount of {measure!r}"
    return f"{what} in {minor_units} minor units"


def _set_user_cap(transaction: Transaction, wanted: Fund) -> None:
    """Rebuild the users' balances with a budget after its cap per user changed.

    A user who is already above the new cap keeps what was given, and gets nothing more.
    """
    if transaction.added or transaction.changed:
        raise UsageError(
            "the cap per user cannot change in a transaction that decides or settles; send it in one of its own"
        )
    transaction.session.many("DELETE FROM user_balances WHERE budget = ?", [(wanted.budget,)])
    transaction.users = {key: account for key, account in transaction.users.items() if key[1] != wanted.budget}
    transaction.loaded_users.clear()  # so that their balances with this budget are loaded again
    transaction.touched_users = {key for key in transaction.touched_users if key[1] != wanted.budget}
    if wanted.user_cap is None:
        return
    transaction.session.many(
        "INSERT INTO user_balances SELECT user_id, budget, sum(open), sum(charges.spent), "
        "CASE WHEN sum(open) + sum(charges.spent) > ? THEN sum(open) + sum(charges.spent) ELSE ? END "
        "FROM charges JOIN decisions ON decisions.decision = charges.decision WHERE budget = ? "
        "GROUP BY user_id, budget",
        [(wanted.user_cap, wanted.user_cap, wanted.budget)],
    )

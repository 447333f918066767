"""The top of the page: one paragraph for readers who decide about the budget, and the main figures.

`outlook` gives the headline: keeping the budget is one question, being better than today another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from redenvelope.dual.solution import DualStatus
from redenvelope.plan.certificate import HIDDEN_ODDS, Certificate
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy
from redenvelope.report.markup import Spoken, folded, items, section, table, text
from redenvelope.wording import interval, number, price_label

_MARKS = {"good": "✓", "caution": "!", "bad": "✕"}
_SAME = 0.0005  # of the logged value; a smaller difference is called the same


def summary_section(plan: Plan) -> str:
    """What to do, total and per-user costs and rewards compared with today, and how sure they are."""
    seen, words = outlook(plan), Spoken.of(plan)
    return section("summary", "In short", _verdict(plan, seen, words), _figures(plan, words))


def _verdict(plan: Plan, seen: Outlook, words: Spoken) -> str:
    told = " ".join(_sentences(plan, seen, words))
    return (
        f'<div class="verdict {seen.kind}"><p class="headline"><span aria-hidden="true">{_MARKS[seen.kind]} </span>'
        f"<strong>{text(seen.headline)}</strong></p>"
        f'<p class="sentence">{text(told)}</p></div>'
    )


def _sentences(plan: Plan, seen: Outlook, words: Spoken) -> Iterator[str]:
    certificate = plan.certificate
    yield seen.advice
    if not certificate.is_certified:
        yield _sentence(certificate.reasons[0].message)
    yield _spends(plan, words)
    yield from (_sentence(each.sentence()) for each in certificate.budgets[1:])
    yield _earns(plan, words)
    if plan.record.untargeted is not None:
        yield plan.record.untargeted.sentence(certificate.confidence)
    if value := _worth(plan, words):
        yield value
    yield _how_sure(plan, words)


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith('.') else '.'}"


def _spends(plan: Plan, words: Spoken) -> str:
    certificate, steps = plan.certificate, plan.policy.specification.steps
    over = f"Over {steps} steps" if steps > 1 else "In its one step"
    said = f"{over} the plan costs about {words.cost(certificate.cost.estimate)} per user"
    left = certificate.budget - certificate.cost.estimate
    if certificate.target_reward is not None:
        asked = f", to reach {number(certificate.target_reward)} reward"
    else:
        side = "below" if left >= 0 else "above"
        asked = f", {words.cost(abs(left))} {side} the budget of {words.cost(certificate.budget)}"
    if words.audience is None:
        return f"{said}{asked}."
    total = words.total_cost(certificate.cost.estimate)
    if certificate.target_reward is None:
        rest = "stay unspent" if left >= 0 else "would be missing"
        total += f" of {words.total_cost(certificate.budget)}, {words.total_cost(abs(left))} {rest}"
    return f"{said}{asked}: {words.everybody}, {total}."


def _earns(plan: Plan, words: Spoken) -> str:
    certificate, row = plan.certificate, beside_logged(plan)
    reward, logged = certificate.reward.estimate, certificate.logged
    total = f", {words.total_reward(reward)} in all" if words.audience is not None else ""
    said = f"It earns {number(reward, 3)} reward per user{total}"
    if row is None:
        return f"{said}; today {number(logged['reward'], 3)} are earned for {words.cost(logged['cost'])}."
    more, dearer = row.reward_difference, row.cost_difference
    gain = _amount(number(abs(more), 3), words.total_reward(abs(more)))
    price = _amount(words.cost(abs(dearer)), words.total_cost(abs(dearer)))
    gains = f"that is {gain} {'more' if more >= 0 else 'less'} than today"
    if abs(more) <= _SAME * abs(logged["reward"]):
        gains = "that is as much as today"
    prices = f"for {price} {'more' if dearer >= 0 else 'less'}"
    if abs(dearer) <= _SAME * abs(logged["cost"]):
        prices = "for the same money"
    return f"{said}; {gains}, {prices}."


def _amount(shown: str, total: str) -> str:
    return f"{shown} ({total} in all)" if total else shown


def _worth(plan: Plan, words: Spoken) -> str:
    """What the change is worth, if the value of a unit of reward is known."""
    value, row = plan.record.money.value_per_reward, beside_logged(plan)
    between = None if row is None else net_worth(plan, row)
    if value is None or row is None or between is None:
        return ""
    gain = value * row.reward_difference - row.cost_difference
    total = f", {words.total_cost(abs(gain))} in all" if words.audience is not None else ""
    lower, upper = (words.cost(end) for end in between)
    return (
        f"At {words.cost(value)} a unit of reward, the change is worth {words.cost(abs(gain))} per user "
        f"{'more' if gain >= 0 else 'less'} than it costs{total} (between {lower} and {upper} per user)."
    )


def _how_sure(plan: Plan, words: Spoken) -> str:
    certificate, row = plan.certificate, beside_logged(plan)
    level = f"{certificate.confidence:.0%} confidence"
    if not certificate.is_certified:
        return f"These figures are estimates from {number(certificate.users)} held-out users."
    if certificate.target_reward is None:
        sure = f"the cost stays below {words.cost(certificate.cost.upper)} per user"
    else:
        sure = f"the reward is at least {number(certificate.reward.lower)} per user"
    beside = ""
    if row is not None:
        lower, upper = (number(end, 3) for end in (row.reward_difference_lower, row.reward_difference_upper))
        beside = f", and the difference in reward lies between {lower} and {upper}"
    return (
        f"How sure: on {number(certificate.users)} held-out users, {sure} with {level}{beside}. "
        "This is about the mean; one campaign can cost a little more or less by chance."
    )


def _figures(plan: Plan, words: Spoken) -> str:
    certificate = plan.certificate
    cost, reward, logged = certificate.cost, certificate.reward, certificate.logged
    budget = certificate.budget
    spent = f"the plan uses {cost.estimate / budget:.0%} of it" if budget > 0 else "nothing may be spent"
    today = f"for {words.cost(logged['cost'])}"
    entries = [
        ("Budget per user", words.cost(budget), spent, words.total_cost(budget)),
        (
            "Cost per user",
            words.cost(cost.estimate),
            _bound(certificate, f"at most {words.cost(cost.upper)}"),
            words.total_cost(cost.estimate),
        ),
        (
            "Reward per user",
            number(reward.estimate),
            _bound(certificate, f"at least {number(reward.lower)}"),
            words.total_reward(reward.estimate),
        ),
        ("Today, reward per user", number(logged["reward"]), today, words.total_reward(logged["reward"])),
    ]
    inside = "".join(
        f'<div><dt>{text(name)}</dt><dd>{text(value)}</dd><dd class="note">{text(note)}'
        + (f"<br>{text(total)} in all" if total else "")
        + "</dd></div>"
        for name, value, note, total in entries
    )
    return f'<dl class="figures">{inside}</dl>'


def _bound(certificate: Certificate, bound: str) -> str:
    """How certain a figure is: with its bound if certified, else as an estimate."""
    return f"{bound}, {certificate.confidence:.0%} sure" if certificate.is_certified else "an estimate, not assured"


# The certificate in words, with cautions and figures.


_MUCH_UNSPENT = 0.05
_NO_GAIN = "no_gain"


def certificate_section(plan: Plan) -> str:
    """The verdict in words, and the main figures."""
    certificate = plan.certificate
    certified = certificate.is_certified
    shortfall, unspent = shortfall_sentence(plan), unspent_sentence(plan)
    # The shortfall contains the reason `no_gain`, with intervals.
    others = [reason.message for reason in certificate.notes if not (shortfall and reason.rule == _NO_GAIN)]
    heading = "Also note:" if certified else "Also:"
    notes = f"<p>{heading}</p>{items(others)}" if others else ""
    cautions = f'<p class="caution">{text(shortfall)}</p>' if shortfall else ""
    told = (unspent, price_sentence(plan), hidden_sentence(plan))
    plain = "".join(f"<p>{text(sentence)}</p>" for sentence in told if sentence)
    status, _, rest = certificate.sentence().partition(":")
    verdict = (
        f'<div class="verdict {outlook(plan).kind}"><p class="sentence">'
        f'<strong class="status">{text(status)}:</strong>'
        f"{text(rest)}</p>{cautions}{notes}{plain}</div>"
    )
    promise = (
        "The certificate is about the mean over users like those in the log. One campaign can still spend more or "
        "less by chance; a hard cap on the total needs a ledger."
    )
    gain = "" if shortfall else gain_sentence(plan)
    return folded(
        "certificate",
        "The certificate, word for word",
        verdict,
        _budgets(certificate),
        f"<p>{text(gain)}</p>" if gain else "",
        f"<p>{text(promise)}</p>",
    )


def _reward_interval(row: ComparedPolicy) -> str:
    return interval(row.reward_difference_lower, row.reward_difference_upper)


def _cost_interval(row: ComparedPolicy) -> str:
    return interval(row.cost_difference_lower, row.cost_difference_upper)


def gain_sentence(plan: Plan) -> str:
    """The plan compared with what was logged, paired by user; empty if they were not compared."""
    row = beside_logged(plan)
    if row is None:
        return ""
    reward, cost = row.reward_difference, row.cost_difference
    level = f"{plan.certificate.confidence:.0%} interval"
    return (
        f"Beside what was logged for the same users, the plan earns {number(abs(reward), 3)} "
        f"{'more' if reward >= 0 else 'less'} per user ({level} {_reward_interval(row)}) and costs "
        f"{number(abs(cost), 3)} {'more' if cost >= 0 else 'less'} ({_cost_interval(row)})."
    )


def shortfall_sentence(plan: Plan) -> str:
    """A sentence if the plan earns less than what was logged, else empty."""
    row = beside_logged(plan)
    if row is None or row.reward_difference >= 0:
        return ""
    earns = "earns less" if row.reward_difference_upper < 0 else "may earn less, within chance,"
    cost = row.cost_difference
    level = f"{plan.certificate.confidence:.0%} interval"
    start = (
        f"The plan {earns} than what was logged: {number(-row.reward_difference, 3)} less per user "
        f"({level} {_reward_interval(row)})"
    )
    if cost >= 0:
        return f"{start}, and costs {number(cost, 3)} more: keep to what was logged."
    logged = plan.certificate.logged["cost"]
    less = plan.certificate.budget < logged
    reason = f" The budget is below the {number(logged)} per user that was spent." if less else ""
    return f"{start}; it costs {number(-cost, 3)} less ({_cost_interval(row)}).{reason}"


def unspent_sentence(plan: Plan) -> str:
    """Why much of the budget is unspent, if the reason is the uncertainty of the cost; else empty."""
    certificate, stop = plan.certificate, plan.record.stop
    aims_at_budget = certificate.budget > 0 and certificate.target_reward is None and len(certificate.budgets) < 2
    if not (aims_at_budget and stop.holds and stop.status == DualStatus.CONVERGED):
        return ""
    unspent = 1 - certificate.cost.estimate / certificate.budget
    if unspent < _MUCH_UNSPENT or certificate.is_under_spent:  # whose own reason says more
        return ""
    reach = certificate.cost.upper - certificate.cost.estimate
    return (
        f"The plan leaves {unspent:.0%} of the budget, because its cost is uncertain: on "
        f"{number(certificate.users)} users it may be {number(reach, 2)} more than estimated, with "
        f"{certificate.confidence:.0%} confidence. A longer log narrows the gap."
    )


def hidden_sentence(plan: Plan) -> str:
    """How strong hidden confounding would have to be; empty if this was not computed."""
    odds = plan.certificate.diagnostics.get(HIDDEN_ODDS)
    if odds is None:
        return ""
    return (
        "The estimates rely on the propensities. A hidden cause that changes the odds of actions by a factor of "
        f"{number(odds, 3)} could bring the expected cost to the budget; where actions were drawn at random, there is "
        "no such cause."
    )


def price_sentence(plan: Plan) -> str:
    """The meaning of the price of a unit of cost, or of two prices if the plan mixes two."""
    pricing, dual = plan.policy.pricing, plan.certificate.dual
    if len(plan.certificate.budgets) > 1:
        return ""
    if math.isinf(dual):  # of a plan made by an earlier version
        return "The plan saves whatever can be saved: it is the cheapest there is."
    mixed = ""
    if math.isinf(pricing.prices[0][0]) and len(pricing.shares) == 1:
        mixed = " The plan is the cheapest there is."
    elif len(pricing.shares) > 1:
        form, places = (".0%", 2) if min(pricing.shares) >= 0.01 else (".1%", 3)
        shown = [round(share, places) for share in pricing.shares[:-1]]
        shares = (*shown, 1 - sum(shown))  # so that they add up to 100 % as shown
        prices = " and ".join(
            f"λ = {price_label(row[0])} for {share:{form}} of the users"
            for row, share in zip(pricing.prices, shares, strict=True)
        )
        mixed = f" Two prices are mixed, {prices}: together they spend what the bound allows."
    if dual == 0:
        return f"The price λ is 0: the budget does not bind, and one more unit of it buys no more reward.{mixed}"
    return (
        f"The price λ is {number(dual)}: one more unit of budget per user buys about {number(dual)} more reward.{mixed}"
    )


def _budgets(certificate: Certificate) -> str:
    """A table of all budgets, if there are several or a total is known."""
    budgets = certificate.budgets
    if len(budgets) < 2 and all(each.unspent is None for each in budgets):
        return ""
    totals = any(each.unspent is not None for each in budgets)
    heads = ["budget", "per user", "spent, estimated", f"at most ({certificate.confidence:.0%})", "as logged"]
    heads += ["one more unit buys", "status", *(("total", "unspent") if totals else ())]
    rows = []
    for each in budgets:
        figures = (each.budget, each.cost.estimate, each.cost.upper, each.logged, each.dual)
        row = [each.name, *map(number, figures), str(each.status)]
        rows.append([*row, *((number(each.total), number(each.unspent)) if totals else ())])
    return table("The budgets", heads, rows)


# The headline: keeping the budget is one question, being better than today another.


Kind = Literal["good", "caution", "bad"]


@dataclass(frozen=True)
class Outlook:
    """The verdict on a plan."""

    kind: Kind
    headline: str
    advice: str


def beside_logged(plan: Plan) -> ComparedPolicy | None:
    """The plan compared with what was logged, paired by user; None if they were not compared."""
    return next((row for row in plan.record.comparison if row.policy == "plan"), None)


def outlook(plan: Plan) -> Outlook:
    """The headline; good only if the budget is kept and nothing is shown to be worse than today."""
    certificate, row = plan.certificate, beside_logged(plan)
    if not certificate.is_certified:
        return Outlook("bad", "Not to be relied on", "Do not roll it out on this evidence.")
    if certificate.is_under_spent:
        return Outlook("caution", "Keeps to the budget, but leaves most of it unspent", "Do not roll it out as it is.")
    kept = "the budget" if certificate.target_reward is None else "the target"
    if row is None:
        return _estimated(plan, kept)
    worth = net_worth(plan, row)
    more, less = row.reward_difference_lower > 0, row.reward_difference_upper < 0
    dearer, cheaper = row.cost_difference_lower > 0, row.cost_difference_upper < 0
    if more and dearer and worth is not None and worth[1] < 0:
        return Outlook(
            "caution", "Earns more than today, but costs more than that is worth", "Ask for a smaller budget."
        )
    if less and cheaper and worth is not None and worth[0] > 0:
        return Outlook("good", "Earns less than today, but saves more than that is worth", "Roll it out.")
    if more:
        price = "for less money" if cheaper else "for more money" if dearer else "for about the same money"
        return Outlook("good", f"Earns more than today, {price}", "Roll it out.")
    if less:
        advice = (
            "It saves money and gives up what that money earned: take it only if that is what you want."
            if cheaper
            else "Keep to what you do today."
        )
        return Outlook("caution", f"Keeps to {kept}, but earns less than today", advice)
    if cheaper and row.reward_difference < 0:
        return Outlook("caution", "Costs less than today, and may earn less", "Take it if saving is the aim.")
    if cheaper:
        return Outlook("good", "Costs less than today and earns about the same", "Roll it out, if saving is the aim.")
    return Outlook(
        "caution",
        f"Keeps to {kept}, but is not shown to earn more than today",
        "There is no reason to change yet: bring more users, or test the plan against today’s policy on some of them.",
    )


def net_worth(plan: Plan, row: ComparedPolicy) -> tuple[float, float] | None:
    """Bounds on the net value of the change (its worth minus its cost); None if the value of a reward is unknown.

    Both ends assume the worst: the two differences are not independent, so the interval is wider than necessary.
    """
    value = plan.record.money.value_per_reward
    if value is None:
        return None
    return (
        value * row.reward_difference_lower - row.cost_difference_upper,
        value * row.reward_difference_upper - row.cost_difference_lower,
    )


def _estimated(plan: Plan, kept: str) -> Outlook:
    """The headline if the plan was not compared with the log at this price: by its estimate alone."""
    reward, today = plan.certificate.reward, plan.certificate.logged["reward"]
    again = "The comparison with today was not made again at this budget."
    if reward.lower > today:
        return Outlook("good", f"Keeps to {kept}, and by its estimate earns more than today", again)
    if reward.upper < today:
        return Outlook("caution", f"Keeps to {kept}, but by its estimate earns less than today", again)
    return Outlook("caution", f"Keeps to {kept}; whether it earns more than today is open", again)

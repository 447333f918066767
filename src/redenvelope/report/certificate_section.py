"""The top of the page: the certificate in words, what speaks against being pleased with it, and the figures."""

from __future__ import annotations

import math

from redenvelope.dual.solution import DualStatus
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy
from redenvelope.report.markup import folded, interval, items, number, table, text
from redenvelope.report.outlook import beside_logged, outlook

__all__ = ["certificate_section", "gain_sentence", "price_sentence", "shortfall_sentence", "unspent_sentence"]

_MUCH_UNSPENT = 0.05
_NO_GAIN = "no_gain"


def certificate_section(plan: Plan) -> str:
    """The verdict in words, and the figures that matter."""
    certificate = plan.certificate
    certified = certificate.is_certified
    shortfall, unspent = shortfall_sentence(plan), unspent_sentence(plan)
    # A shortfall says what the reason of no gain says, with intervals.
    others = [reason.message for reason in certificate.notes if not (shortfall and reason.rule == _NO_GAIN)]
    heading = "To know besides:" if certified else "Also:"
    notes = f"<p>{heading}</p>{items(others)}" if others else ""
    cautions = f'<p class="caution">{text(shortfall)}</p>' if shortfall else ""
    plain = "".join(f"<p>{text(sentence)}</p>" for sentence in (unspent, price_sentence(plan)) if sentence)
    status, _, rest = certificate.sentence().partition(":")
    verdict = (
        f'<div class="verdict {outlook(plan).kind}"><p class="sentence">'
        f'<strong class="status">{text(status)}:</strong>'
        f"{text(rest)}</p>{cautions}{notes}{plain}</div>"
    )
    promise = (
        "The certificate speaks of the mean over users like those in the log. One campaign can still spend more or "
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
    """The plan beside what was logged, user by user; empty if they were not compared."""
    row = beside_logged(plan)
    if row is None:
        return ""
    reward, cost = row.reward_difference, row.cost_difference
    level = f"{plan.certificate.confidence:.0%} interval"
    return (
        f"Beside what was logged for the same users, the plan earns {number(abs(reward), 3)} "
        f"{'more' if reward >= 0 else 'less'} a user ({level} {_reward_interval(row)}) and costs "
        f"{number(abs(cost), 3)} {'more' if cost >= 0 else 'less'} ({_cost_interval(row)})."
    )


def shortfall_sentence(plan: Plan) -> str:
    """That the plan earns less than what was logged; empty if it does not."""
    row = beside_logged(plan)
    if row is None or row.reward_difference >= 0:
        return ""
    earns = "earns less" if row.reward_difference_upper < 0 else "may earn less, within chance,"
    cost = row.cost_difference
    level = f"{plan.certificate.confidence:.0%} interval"
    start = (
        f"The plan {earns} than what was logged: {number(-row.reward_difference, 3)} less a user "
        f"({level} {_reward_interval(row)})"
    )
    if cost >= 0:
        return f"{start}, and costs {number(cost, 3)} more: keep to what was logged."
    logged = plan.certificate.logged["cost"]
    reason = (
        f" The budget is below the {number(logged)} a user that was spent." if plan.certificate.budget < logged else ""
    )
    return f"{start}; it costs {number(-cost, 3)} less ({_cost_interval(row)}).{reason}"


def unspent_sentence(plan: Plan) -> str:
    """Why much of the budget is left, where the uncertainty of the cost is the reason."""
    certificate, stop = plan.certificate, plan.record.stop
    aims_at_budget = certificate.budget > 0 and certificate.target_reward is None and len(certificate.budgets) < 2
    if not (aims_at_budget and stop.holds and stop.status == DualStatus.CONVERGED):
        return ""
    unspent = 1 - certificate.cost.estimate / certificate.budget
    if unspent < _MUCH_UNSPENT:
        return ""
    reach = certificate.cost.upper - certificate.cost.estimate
    return (
        f"The plan leaves {unspent:.0%} of the budget, because its cost is known only so well: on "
        f"{number(certificate.users)} users it may be {number(reach, 2)} more than estimated, with "
        f"{certificate.confidence:.0%} confidence. A longer log narrows the gap."
    )


def price_sentence(plan: Plan) -> str:
    """What the price of a unit of cost means; two prices where the plan mixes two."""
    pricing, dual = plan.policy.pricing, plan.certificate.dual
    if len(plan.certificate.budgets) > 1:
        return ""
    if len(pricing.shares) > 1:
        prices = " and ".join(
            f"λ = {number(row[0])} for {share:.0%} of the users"
            for row, share in zip(pricing.prices, pricing.shares, strict=True)
        )
        spent = "together they spend what the bound allows. More budget moves users to the first."
        return f"Two prices are mixed, {prices}: {spent}"
    if math.isinf(dual):
        return "The price λ is infinite: the plan saves whatever can be saved, and no reward could justify more."
    if dual == 0:
        return "The price λ is 0: the budget does not bind, and one more unit of it buys no more reward."
    return f"The price λ is {number(dual)}: one more unit of budget a user buys about {number(dual)} more reward."


def _budgets(certificate: Certificate) -> str:
    """Every budget by its name, where there are several or a total is known."""
    budgets = certificate.budgets
    if len(budgets) < 2 and all(each.unspent is None for each in budgets):
        return ""
    totals = any(each.unspent is not None for each in budgets)
    heads = ["budget", "a user", "spent, estimated", f"at most ({certificate.confidence:.0%})", "as logged"]
    heads += ["one more unit buys", "status", *(("total", "unspent") if totals else ())]
    rows = []
    for each in budgets:
        figures = (each.budget, each.cost.estimate, each.cost.upper, each.logged, each.dual)
        row = [each.name, *map(number, figures), str(each.status)]
        rows.append([*row, *((number(each.total), number(each.unspent)) if totals else ())])
    return table("The budgets", heads, rows)

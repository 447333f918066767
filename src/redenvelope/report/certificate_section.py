"""The top of the page: the certificate in words, what speaks against being pleased with it, and the figures."""

from __future__ import annotations

import math
from typing import Any

from redenvelope.plan.certificate import Certificate
from redenvelope.plan.plan import Plan
from redenvelope.report.drawing import finite
from redenvelope.report.markup import compared, interval, items, number, section, text

__all__ = ["certificate_section", "gain_sentence", "price_sentence", "shortfall_sentence", "unspent_sentence"]

_MUCH_UNSPENT = 0.05
_TWO_SIDED_95 = 1.96


def certificate_section(plan: Plan) -> str:
    """The verdict in words, and the figures that matter."""
    certificate = plan.certificate
    certified = certificate.status == "certified"
    shortfall, unspent = shortfall_sentence(plan), unspent_sentence(plan)
    others = certificate.reasons if certified else certificate.reasons[1:]
    if shortfall:  # says the same, with intervals
        others = tuple(reason for reason in others if "earn less than what was logged" not in _verb(reason))
    heading = "To know besides:" if certified else "Also:"
    notes = f"<p>{heading}</p>{items(others)}" if others else ""
    cautions = f'<p class="caution">{text(shortfall)}</p>' if shortfall else ""
    plain = "".join(f"<p>{text(sentence)}</p>" for sentence in (unspent, price_sentence(plan)) if sentence)
    status, _, rest = certificate.sentence().partition(":")
    verdict = (
        f'<div class="verdict {"certified" if certified else "refused"}"><p class="sentence">'
        f'<strong class="status"><span aria-hidden="true">{"✓" if certified else "✕"} </span>{text(status)}:</strong>'
        f"{text(rest)}</p>{cautions}{notes}{plain}</div>"
    )
    promise = (
        "The certificate speaks of the mean over users like those in the log. One campaign can still spend more or "
        "less by chance; a hard cap on the total needs a ledger."
    )
    gain = "" if shortfall else gain_sentence(plan)
    return section(
        "certificate",
        "The certificate",
        verdict,
        _figures(certificate),
        f"<p>{text(gain)}</p>" if gain else "",
        f"<p>{text(promise)}</p>",
    )


def _verb(reason: str) -> str:
    return reason.replace("earns less", "earn less")


def _beside_logged(plan: Plan) -> dict[str, Any] | None:
    """The plan's row of the comparison, if it was compared in full."""
    names = [f"{target}_difference{end}" for target in ("reward", "cost") for end in ("", "_lower", "_upper")]
    rows = (row for row in compared(plan.record) if row.get("policy") == "plan" and finite(row, *names))
    return next(rows, None)


def gain_sentence(plan: Plan) -> str:
    """The plan beside what was logged, user by user; empty if they were not compared."""
    row = _beside_logged(plan)
    if row is None:
        return ""
    reward, cost = row["reward_difference"], row["cost_difference"]
    level = f"{plan.certificate.confidence:.0%} interval"
    return (
        f"Beside what was logged for the same users, the plan earns {number(abs(reward), 3)} "
        f"{'more' if reward >= 0 else 'less'} a user ({level} {interval(row, 'reward_difference')}) and costs "
        f"{number(abs(cost), 3)} {'more' if cost >= 0 else 'less'} ({interval(row, 'cost_difference')})."
    )


def shortfall_sentence(plan: Plan) -> str:
    """That the plan earns less than what was logged; empty if it does not."""
    row = _beside_logged(plan)
    if row is None or row["reward_difference"] >= 0:
        return ""
    earns = "earns less" if row["reward_difference_upper"] < 0 else "may earn less, within chance,"
    cost = row["cost_difference"]
    level = f"{plan.certificate.confidence:.0%} interval"
    start = (
        f"The plan {earns} than what was logged: {number(-row['reward_difference'], 3)} less a user "
        f"({level} {interval(row, 'reward_difference')})"
    )
    if cost >= 0:
        return f"{start}, and costs {number(cost, 3)} more: keep to what was logged."
    logged = plan.certificate.logged.get("cost", math.nan)
    reason = (
        f" The budget is below the {number(logged)} a user that was spent." if plan.certificate.budget < logged else ""
    )
    return f"{start}; it costs {number(-cost, 3)} less ({interval(row, 'cost_difference')}).{reason}"


def unspent_sentence(plan: Plan) -> str:
    """Why much of the budget is left, where the safety margin is the reason."""
    search, settings = plan.record.get("search") or {}, plan.record.get("settings") or {}
    certificate = plan.certificate
    known = finite(search, "target") and certificate.budget > 0 and certificate.target_reward is None
    if not known or not settings.get("safety") or search.get("status") != "converged":
        return ""
    unspent = 1 - search["target"] / certificate.budget
    if unspent < _MUCH_UNSPENT:
        return ""
    reach = _TWO_SIDED_95 * certificate.cost.standard_error
    return (
        f"The plan aims at {number(search['target'])} and leaves {unspent:.0%} of the budget, to be safe: on "
        f"{number(certificate.users)} users the cost is known to ± {number(reach, 2)} "
        "(95 % interval). A longer log narrows the gap; --no-safety aims at the budget itself, and is usually refused."
    )


def price_sentence(plan: Plan) -> str:
    """What the price of a unit of cost means; two prices where the plan mixes two."""
    wanted, dual = plan.policy.specification, plan.certificate.dual
    if len(wanted.duals) > 1:
        prices = " and ".join(
            f"λ = {number(price)} for {share:.0%} of the users"
            for price, share in zip(wanted.duals, wanted.shares, strict=True)
        )
        return f"Two prices are mixed, {prices}: no single one spends this much. More budget moves users to the first."
    if math.isinf(dual):
        return "The price λ is infinite: the plan saves whatever can be saved, and no reward could justify more."
    if dual == 0:
        return "The price λ is 0: the budget does not bind, and one more unit of it buys no more reward."
    return f"The price λ is {number(dual)}: one more unit of budget a user buys about {number(dual)} more reward."


def _figures(certificate: Certificate) -> str:
    cost, reward, logged = certificate.cost, certificate.reward, certificate.logged
    level = f"{certificate.confidence:.0%}"
    entries = (
        ("Cost a user", number(cost.estimate), f"at most {number(cost.upper)} with {level} confidence"),
        ("Budget a user", number(certificate.budget), _share(cost.estimate, certificate.budget)),
        ("Reward a user", number(reward.estimate), f"at least {number(reward.lower)} with {level} confidence"),
        (
            "As logged, on the same users",
            number(logged.get("reward")),
            f"reward a user, at a cost of {number(logged.get('cost'))}",
        ),
    )
    inside = "".join(
        f'<div><dt>{text(name)}</dt><dd>{text(value)}</dd><dd class="note">{text(note)}</dd></div>'
        for name, value, note in entries
    )
    return f'<dl class="figures">{inside}</dl>'


def _share(cost: float, budget: float) -> str:
    return f"the estimate uses {cost / budget:.0%} of it" if budget > 0 else "nothing may be spent"

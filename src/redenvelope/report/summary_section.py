"""The top of the page: one paragraph for whoever pays, and the figures that matter."""

from __future__ import annotations

from collections.abc import Iterator

from redenvelope.plan.certificate import Certificate
from redenvelope.plan.plan import Plan
from redenvelope.report.markup import number, section, text
from redenvelope.report.outlook import Outlook, beside_logged, net_worth, outlook
from redenvelope.report.spoken import Spoken

__all__ = ["summary_section"]

_MARKS = {"good": "✓", "caution": "!", "bad": "✕"}
_SAME = 0.0005  # of what was logged: less than that apart is the same in words


def summary_section(plan: Plan) -> str:
    """What to do, what it costs and earns in all and a user, against today, and how sure that is."""
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
    if value := _worth(plan, words):
        yield value
    yield _how_sure(plan, words)


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith('.') else '.'}"


def _spends(plan: Plan, words: Spoken) -> str:
    certificate, steps = plan.certificate, plan.policy.specification.steps
    over = f"Over {steps} steps" if steps > 1 else "In its one step"
    said = f"{over} the plan costs about {words.cost(certificate.cost.estimate)} a user"
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
    said = f"It earns {number(reward, 3)} reward a user{total}"
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
    """What the change is worth, where somebody said what a unit of reward is."""
    value, row = plan.record.money.value_per_reward, beside_logged(plan)
    between = None if row is None else net_worth(plan, row)
    if value is None or row is None or between is None:
        return ""
    gain = value * row.reward_difference - row.cost_difference
    total = f", {words.total_cost(abs(gain))} in all" if words.audience is not None else ""
    lower, upper = (words.cost(end) for end in between)
    return (
        f"At {words.cost(value)} a unit of reward, the change is worth {words.cost(abs(gain))} a user "
        f"{'more' if gain >= 0 else 'less'} than it costs{total} (between {lower} and {upper} a user)."
    )


def _how_sure(plan: Plan, words: Spoken) -> str:
    certificate, row = plan.certificate, beside_logged(plan)
    level = f"{certificate.confidence:.0%} confidence"
    if not certificate.is_certified:
        return f"These figures are estimates from {number(certificate.users)} users who had no part in making it."
    if certificate.target_reward is None:
        sure = f"the cost stays below {words.cost(certificate.cost.upper)} a user"
    else:
        sure = f"the reward is at least {number(certificate.reward.lower)} a user"
    beside = ""
    if row is not None:
        lower, upper = (number(end, 3) for end in (row.reward_difference_lower, row.reward_difference_upper))
        beside = f", and the difference in reward lies between {lower} and {upper}"
    return (
        f"How sure: on {number(certificate.users)} users who had no part in making it, {sure} with {level}{beside}. "
        "This is about the mean; one campaign can cost a little more or less by chance."
    )


def _figures(plan: Plan, words: Spoken) -> str:
    certificate = plan.certificate
    cost, reward, logged = certificate.cost, certificate.reward, certificate.logged
    budget = certificate.budget
    spent = f"the plan uses {cost.estimate / budget:.0%} of it" if budget > 0 else "nothing may be spent"
    today = f"for {words.cost(logged['cost'])}"
    entries = [
        ("Budget a user", words.cost(budget), spent, words.total_cost(budget)),
        (
            "Cost a user",
            words.cost(cost.estimate),
            _bound(certificate, f"at most {words.cost(cost.upper)}"),
            words.total_cost(cost.estimate),
        ),
        (
            "Reward a user",
            number(reward.estimate),
            _bound(certificate, f"at least {number(reward.lower)}"),
            words.total_reward(reward.estimate),
        ),
        ("Today, reward a user", number(logged["reward"]), today, words.total_reward(logged["reward"])),
    ]
    inside = "".join(
        f'<div><dt>{text(name)}</dt><dd>{text(value)}</dd><dd class="note">{text(note)}'
        + (f"<br>{text(total)} in all" if total else "")
        + "</dd></div>"
        for name, value, note, total in entries
    )
    return f'<dl class="figures">{inside}</dl>'


def _bound(certificate: Certificate, bound: str) -> str:
    """How well a figure is known, where anything is known of it."""
    return f"{bound}, {certificate.confidence:.0%} sure" if certificate.is_certified else "an estimate, not assured"

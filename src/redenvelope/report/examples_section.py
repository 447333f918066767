"""A few users with what else they could get, and why they do not."""

from __future__ import annotations

import math
from collections.abc import Iterator

from redenvelope.plan.plan import Plan
from redenvelope.plan.who import Alternative, Example
from redenvelope.report.markup import number, section, signed, table, text
from redenvelope.report.spoken import Spoken
from redenvelope.report.who_section import action_name, given_words

__all__ = ["examples_section", "reasons_why"]

_NAMES = "ABCDEF"
_ALMOST = 0.15
"""An action that is drawn with at least this chance beside the best is worth almost the same."""


def examples_section(plan: Plan) -> str:
    """Examples, where the plan remembers some."""
    given = plan.record.shares
    if given is None or not given.examples:
        return ""
    words, price = Spoken.of(plan), _price(plan)
    ahead = plan.record.planner.depth
    introduction = (
        f"Users of step {given.examples[0].step} who are typical of their group. Rewards and costs are what the "
        f"model expects {_looking(ahead)}; what an action is worth is its reward less its cost at the plan’s "
        + (
            "prices: what the budgets earn with other users."
            if price is None
            else f"price, {number(price, 3)} reward for {words.unit if words.currency else 'a unit of cost'}: what "
            "that money earns with other users."
        )
    )
    shown = "".join(
        _example(example, _NAMES[place], price, words) for place, example in enumerate(given.examples[: len(_NAMES)])
    )
    return section(
        "examples", "Some users, and why", f"<p>{text(introduction)}</p>", f'<div class="examples">{shown}</div>'
    )


def _looking(steps: int) -> str:
    return "of that step" if steps <= 1 else f"from that step on, {steps} steps ahead"


def _price(plan: Plan) -> float | None:
    """What most users follow, where two prices are mixed; None where several budgets have a price each."""
    pricing = plan.policy.pricing
    if pricing.budgets > 1:
        return None
    return float(pricing.prices[max(range(len(pricing.shares)), key=lambda row: pricing.shares[row])][0])


def _example(example: Example, name: str, price: float | None, words: Spoken) -> str:
    known = ", ".join(f"{feature} {value}" for feature, value in example.known)
    best = max(part.worth for part in example.alternatives)
    rows = [
        (
            action_name(part.action),
            f"{part.probability:.0%}",
            number(part.reward, 3),
            words.cost(part.cost),
            "not allowed" if math.isinf(part.worth) else "best" if part.worth == best else signed(part.worth - best, 2),
        )
        for part in example.alternatives
    ]
    chances = [part.probability for part in example.alternatives]
    labels = [part.action for part in example.alternatives]
    why = "" if price is None else " ".join(reasons_why(example, price, words))
    return (
        f'<article class="example" aria-labelledby="example-{name}"><h3 id="example-{name}">User {name}</h3>'
        f'<p class="note">{text(known)}</p>'
        f"<p>Would {given_words(chances, labels)}. {text(why)}</p>"
        + table(f"User {name}: every action", ("action", "chance", "reward", "cost", "worth, beside the best"), rows)
        + "</article>"
    )


def reasons_why(example: Example, price: float, words: Spoken) -> Iterator[str]:
    """Why not the next dearer action, and why not the next cheaper one."""
    allowed = [part for part in example.alternatives if not math.isinf(part.worth)]
    chosen = max(allowed, key=lambda part: part.probability)
    others = [part for part in allowed if part is not chosen]
    alike = [part for part in others if part.probability >= _ALMOST]
    if alike:
        named = " and ".join(action_name(part.action) for part in (chosen, *alike))
        yield f"{named} are worth almost the same, so the lot decides."
    if math.isinf(price):
        yield f"The plan saves whatever it can, and {action_name(chosen.action)} leads to the least cost."
        return
    if price == 0:
        yield f"Money is no limit here: {action_name(chosen.action)} earns most."
        return
    apart = [part for part in others if part not in alike]
    dearer = [part for part in apart if part.cost > chosen.cost]
    cheaper = [part for part in apart if part.cost <= chosen.cost]
    if dearer:
        yield _not_dearer(max(dearer, key=lambda part: part.worth), chosen, price, words)
    if cheaper:
        yield _not_cheaper(max(cheaper, key=lambda part: part.worth), chosen, price, words)


def _not_dearer(other: Alternative, chosen: Alternative, price: float, words: Spoken) -> str:
    name, cost, gain = action_name(other.action), other.cost - chosen.cost, other.reward - chosen.reward
    if gain <= 0:
        return f"{name} would cost {words.cost(cost)} more and earn no more."
    return (
        f"{name} would earn {number(gain, 2)} more and cost {words.cost(cost)} more; with other users that money "
        f"earns {number(price * cost, 2)}."
    )


def _not_cheaper(other: Alternative, chosen: Alternative, price: float, words: Spoken) -> str:
    name, saved, lost = action_name(other.action), chosen.cost - other.cost, chosen.reward - other.reward
    if lost <= 0:
        return f"{name} would save {words.cost(saved)} and earn as much: the two are worth the same."
    return (
        f"{name} would save {words.cost(saved)} and earn {number(lost, 2)} less; with other users the saving earns "
        f"only {number(price * saved, 2)}."
    )

"""The section about who may get what: the rules in words, and what is left to chance."""

from __future__ import annotations

from collections.abc import Iterator

from redenvelope.plan.plan import Plan
from redenvelope.report.markup import folded, items, number

__all__ = ["rules_section", "rules_sentences"]

_USERS = 10_000  # of a next log, as an example


def rules_section(plan: Plan) -> str:
    """Who may get what, and how much is left to chance."""
    return folded("rules", "Rules and exploration", items(tuple(rules_sentences(plan))))


def rules_sentences(plan: Plan) -> Iterator[str]:
    """The rules, what is left of the log by them, and exploration, one sentence each."""
    rules = plan.policy.rules
    if not rules:
        yield "There are no rules: everybody may get every action, as often as it is worth it."
    for rule in rules:
        yield f"Rule: {rule.sentence()}."
    for finding in plan.record.audit.findings:
        if finding.rule == "rules_forbid_logged":
            yield finding.message[:1].upper() + finding.message[1:] + "."
    yield from _exploration(plan)


def _exploration(plan: Plan) -> Iterator[str]:
    share, record = plan.policy.specification.explore, plan.record.exploration
    if not share:
        yield (
            "Nothing is left to chance beyond the temperature (explore 0): these decisions are hardly a log to learn "
            "another plan from."
        )
        return
    yield (
        f"{share:.1%} of the decisions are drawn evenly among what is eligible. That is part of the plan: of its "
        "price, of its certificate, and of the propensities that are written."
    )
    if record is None:
        return
    reward = plan.certificate.reward.estimate
    beside = f" ({record.reward_lost / abs(reward):.1%} of it)" if reward else ""
    yield (
        f"This costs {number(record.reward_lost, 3)} of reward a user{beside} at the same cost, by the model. In "
        f"return, of {_USERS:,} users decided for, about {record.effective_share * _USERS:,.0f} will be effective "
        "ones, at every step, for a plan that gives everything evenly."
    )

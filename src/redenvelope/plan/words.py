"""A plan in a few lines, for whoever looks at one in a notebook or a console."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redenvelope.plan.plan import Plan

__all__ = ["plan_lines", "plan_table"]


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """Five lines: what it is, whether it may be relied on, what it costs and earns, its price, where it comes from."""
    rows = _rows(plan)
    width = max(len(name) for name, _ in rows)
    first = f"Plan ({plan.certificate.status}) {_wanted(plan)}"
    return (first, *(f"  {name:<{width}}  {value}" for name, value in rows))


def plan_table(plan: Plan) -> str:
    """The same as a fragment of HTML."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in _rows(plan)
    )
    return (
        f"<div><p><b>Plan ({escape(plan.certificate.status)})</b> {escape(_wanted(plan))}</p>"
        f"<p>{escape(plan.certificate.sentence())}</p><table>{rows}</table></div>"
    )


def _wanted(plan: Plan) -> str:
    given = plan.certificate
    if given.target_reward is not None:
        return f"for a reward of {given.target_reward:.4g} a user"
    return f"for a budget of {given.budget:.4g} a user"


def _rows(plan: Plan) -> tuple[tuple[str, str], ...]:
    given, encoder = plan.certificate, plan.policy.encoder
    features = len(encoder.numbers) + len(encoder.categories)
    source = plan.record.source
    origin = f", from {source.log}" if source is not None and source.log else ""
    sure = f"{given.confidence:.0%} sure"
    return (
        (
            "costs",
            f"{given.cost.estimate:.4g} a user, at most {given.cost.upper:.4g} ({sure}); as logged "
            f"{given.logged['cost']:.4g}",
        ),
        (
            "earns",
            f"{given.reward.estimate:.4g} a user, at least {given.reward.lower:.4g} ({sure}); as logged "
            f"{given.logged['reward']:.4g}",
        ),
        ("price", f"{given.dual:.4g} of reward for one more unit of budget; {given.method}"),
        (
            "knows",
            f"{len(plan.catalogue)} actions, {plan.policy.specification.steps} steps, {features} features; checked on "
            f"{given.users:,} users{origin}",
        ),
    )

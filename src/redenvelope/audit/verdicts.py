"""An audit in sentences: what a person should know before planning."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from redenvelope.audit.audit import Audit
from redenvelope.audit.carry_over import CarryOver
from redenvelope.audit.effects import counted
from redenvelope.audit.overlap import LEAST_EFFECTIVE_USERS

__all__ = ["verdicts"]


def verdicts(audit: Audit) -> Iterator[str]:
    """The sentences, in the order a person would ask."""
    yield _assignment(audit)
    yield from _columns(audit)
    yield _monotonicity(audit)
    yield _carry_over(audit)
    yield _overlap(audit)
    yield _budget(audit)


def _assignment(audit: Audit) -> str:
    evidence = audit.assignment
    if audit.propensity_source == "estimated":
        return "Propensities are estimated, not logged: what drove the assignment unseen can bias every figure here."
    if evidence.looks_random:
        return "Assignment looks random: on users held out, the features do not predict which action was logged."
    return (
        f"Assignment depends on the features ({evidence.gain:.3f} nats a row over plain frequencies): "
        "raw averages mislead, and the figures here are weighted by 1/propensity."
    )


def _columns(audit: Audit) -> Iterator[str]:
    asked = [repr(leak.column) for leak in audit.leaks if not leak.known]
    if asked:
        yield (
            f"Perhaps not known when the action was chosen: {', '.join(asked)}. Such a column makes plans look better "
            "than they are, so none is certified until it is left out, or said to have been known."
        )


def _monotonicity(audit: Audit) -> str:
    if not audit.reversals:
        return "Dearer is better as far as the log can tell: no dearer action earns clearly less than a cheaper one."
    worst = audit.reversals[0]
    dear, cheap = worst.dear, worst.cheap
    return (
        f"Dearer is not always better: {dear.label!r} costs {dear.cost.estimate:.3g} and earns "
        f"{dear.reward.estimate:.3g}, {cheap.label!r} costs {cheap.cost.estimate:.3g} and earns "
        f"{cheap.reward.estimate:.3g} ({counted(audit.reversals)})."
    )


_CARRY_OVER = {
    "none": "Carry-over between steps is weak at most, none is visible beyond chance",
    "weak": "Carry-over between steps is weak",
    "moderate": "Carry-over between steps is moderate",
    "strong": "Carry-over between steps is strong",
}


def _carry_over(audit: Audit) -> str:
    if not audit.carry_over and audit.steps > 1:
        return "There are too few users to see whether anything carries over from one step to the next."
    if not audit.carry_over:
        return "Nobody has two steps: there is no sequence to plan, a one-step allocation will do."
    shares = ", ".join(f"{effect.outcome} {_share(effect)}" for effect in audit.carry_over)
    strongest = max((effect.strength for effect in audit.carry_over), key=list(_CARRY_OVER).index)
    gain = "little" if strongest in ("none", "weak") else "something"
    return (
        f"{_CARRY_OVER[strongest]} (the previous action's effect beside the present one's: {shares}): "
        f"planning ahead has {gain} to gain."
    )


def _share(effect: CarryOver) -> str:
    """Beside an action that does next to nothing at its own step, a share would be any number."""
    return f"{effect.share:.0%}" if effect.share <= 1 else "more than at its own step"


def _overlap(audit: Audit) -> str:
    """Judged on the users who check: whole histories for a fixed action are the worst case, single steps the best."""
    alive, last, share = audit.steps_alive, audit.overlap[-1], audit.check_share
    left = f"one fixed action keeps {last.greedy:,.0f} effective users of {last.users:,} by the last step"
    if alive == len(audit.overlap):
        return (
            f"Overlap is good: {left}, about {share * last.greedy:,.0f} of them among the {share:.0%} who check, "
            f"where a certificate needs {LEAST_EFFECTIVE_USERS}."
        )
    narrowest = min(audit.overlap, key=lambda overlap: overlap.alone)
    at_most = share * narrowest.alone
    dies = f"Trajectory weights die after {alive} step{'s' if alive != 1 else ''}: {left}."
    certificate = (
        f"A certificate weighs step by step, which leaves at most about {at_most:,.0f} effective users among the "
        f"{share:.0%} who check, and needs {LEAST_EFFECTIVE_USERS}"
    )
    if at_most >= LEAST_EFFECTIVE_USERS:
        return f"{dies} {certificate}: plans near the logged behaviour can be checked, long ones far from it cannot."
    needed = audit.users * LEAST_EFFECTIVE_USERS / at_most if at_most else inf
    enough = f"a log of about {_rounded(needed)} users" if needed < inf else "a log with that action at every step"
    return f"{dies} {certificate}: {enough} would do."


def _rounded(users: float) -> str:
    """Two digits: an extrapolation has no more."""
    return f"{float(f'{users:.1e}'):,.0f}"


def _budget(audit: Audit) -> str:
    return (
        f"Users cost {audit.logged_cost.estimate:.4g} and earned {audit.logged_reward.estimate:.4g} each as logged; "
        f"one fixed action for everybody would cost from {audit.cheapest_cost:.4g} to {audit.dearest_cost:.4g}: "
        "budgets in between make sense."
    )

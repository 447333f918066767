"""Another budget, target or audience from the same plan, without the log: its ladder is walked again."""

from __future__ import annotations

from dataclasses import replace

from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.plan.certify import Checked, Question, certify, walk
from redenvelope.plan.plan import Plan

__all__ = ["reprice"]

_REPRICED = Reason(
    "repriced",
    Weight.WARNING,
    "this certificate is from the same check users as the plan's first one. Each holds with its confidence if the "
    "budget was chosen for other reasons; whoever looks at many and takes the one that suits is less sure than that. "
    "--for-all-prices (in Python: for_all_prices=True) gives bounds that hold for all budgets at once",
)


def reprice(
    plan: Plan,
    *,
    budget: float | None = None,
    target_reward: float | None = None,
    confidence: float | None = None,
    for_all_prices: bool = False,
) -> Plan:
    """The plan for another budget (mean cost a user), or for a reward, with a certificate of its own.

    What was learned stays as it is; what was compared and shown at the old price is left out. With `for_all_prices` the
    bounds hold at once for every budget that may be asked for.
    """
    wanted = plan.record.confidence if confidence is None else confidence
    question = Question(budget, target_reward, wanted, for_all_prices)
    stop = walk(plan.ladder, question)
    policy = replace(plan.policy, pricing=plan.ladder.pricing(stop.place))
    given = plan.certificate
    checked = Checked(given.logged, given.fold_sha256, plan.record.doubts)
    certificate = certify(plan.ladder, stop, question, policy, checked)
    if not for_all_prices:
        certificate = replace(certificate, reasons=(*certificate.reasons, _REPRICED))
    record = replace(plan.record, stop=stop, confidence=wanted, comparison=(), shares=None, exploration=None)
    return replace(plan, policy=policy, certificate=certificate, record=record)

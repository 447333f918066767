"""Another budget, target or audience from the same plan, without the log, and what other budgets would buy.

The fixed-sequence test is run again on the plan's ladder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from redenvelope.dual.frontier import Frontier
from redenvelope.errors import UsageError
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.plan.certificate import BudgetFigure
from redenvelope.plan.fixed_sequence_test import BudgetTarget, Checked, Question, certify, walk
from redenvelope.plan.plan import Plan

_REPRICED = Reason(
    "repriced",
    Weight.WARNING,
    "this certificate is from the same check users as the plan's first one. Each holds with its confidence if the "
    "budget was chosen for other reasons; choosing among many by looking at their certificates lowers it. "
    "--for-all-prices (in Python: for_all_prices=True) gives bounds that hold for all budgets at once",
)


def reprice(
    plan: Plan,
    *,
    budget: float | Mapping[str, float] | None = None,
    target_reward: float | None = None,
    audience: int | None = None,
    confidence: float | None = None,
    for_all_prices: bool = False,
) -> Plan:
    """The plan for another budget (mean cost per user), or for a reward, with a certificate of its own.

    `budget` is a number, for the first budget, or numbers by the names of budgets; the others stay as they are. What
    was learned stays as it is; what was compared and shown at the old price is left out. With `for_all_prices` the
    bounds hold at once for every budget that may be asked for. Another `audience` changes what the totals are.
    """
    wanted = plan.record.confidence if confidence is None else confidence
    question = _question(plan, budget, target_reward, audience, wanted, for_all_prices)
    stop = walk(plan.ladder, question)
    policy = replace(plan.policy, pricing=plan.ladder.pricing(stop.place))
    given = plan.certificate
    logged = (given.logged_reward, *(each.logged for each in given.budgets))
    checked = Checked(logged, given.fold_sha256, plan.record.objections)
    certificate = certify(plan.ladder, stop, question, policy, checked)
    if not for_all_prices:
        certificate = replace(certificate, reasons=(*certificate.reasons, _REPRICED))
    record = replace(plan.record, stop=stop, confidence=wanted, comparison=(), shares=None, exploration=None)
    record = replace(record, untargeted=None)
    return replace(plan, policy=policy, certificate=certificate, record=record)


def _question(
    plan: Plan,
    budget: float | Mapping[str, float] | None,
    target_reward: float | None,
    audience: int | None,
    confidence: float,
    for_all_prices: bool,
) -> Question:
    """What is asked, with the names of the plan's budgets."""
    known, given = plan.certificate.budgets, _by_name(plan, budget)
    if target_reward is not None and len(known) > 1:
        raise UsageError(
            f"a target reward asks for the least cost, and the plan has {len(known)} of them; give budgets instead"
        )
    if target_reward is None and not given and audience is None:
        return Question.of(None, None, confidence)  # which says what is missing
    asked = tuple(_asked(each, given.get(each.name), audience) for each in known)
    if target_reward is not None:
        asked = (replace(asked[0], limit=given.get(asked[0].name)),)
    return Question(asked, target_reward, confidence, for_all_prices)


def _by_name(plan: Plan, budget: float | Mapping[str, float] | None) -> Mapping[str, float]:
    """The budgets that are given, by their names: a number is the first's."""
    names = [each.name for each in plan.certificate.budgets]
    given = budget if isinstance(budget, Mapping) else {} if budget is None else {names[0]: budget}
    for name in given:
        if name not in names:
            raise UsageError(f"the plan has no budget {name!r}; it has {', '.join(map(repr, names))}")
    return given


def _asked(known: BudgetFigure, limit: float | None, audience: int | None) -> BudgetTarget:
    """A budget that is asked for, or stays: with another audience the total stays, and the mean per user changes."""
    if limit is not None:
        return BudgetTarget(known.name, limit, audience or known.audience)
    if audience is not None and known.total is not None:
        return BudgetTarget(known.name, known.total / audience, audience)
    return BudgetTarget(known.name, known.budget, audience or known.audience)


def answer(plan: Plan, budget: float | Mapping[str, float] | None, reward: float | None) -> dict[str, Any]:
    """The frontier, what 10 % more or less budget buys, and answers to a budget and to a reward.

    With several budgets each has a frontier of its own, along which the others are held; a `budget` is then asked for
    by name, and a number is the first's.
    """
    given = _by_name(plan, budget)
    if len(plan.certificate.budgets) > 1 and reward is not None:
        raise UsageError("a reward asks for the least cost, and the plan has several; give --budget NAME=VALUE")
    for name, asked_for in (*given.items(), ("reward", reward)):
        if asked_for is not None and not np.isfinite(asked_for):
            raise UsageError(f"the {name} must be a number, not {asked_for}")
    first, *others = plan.certificate.budgets
    content: dict[str, Any] = {"budget": plan.certificate.budget} | _along(plan, first, given.get(first.name))
    if others:
        content["budgets"] = [
            _along(plan, each, given.get(each.name)) | {"name": each.name} for each in (first, *others)
        ]
    if reward is not None:
        content["least_cost"] = {"reward": reward, "cost": _curve(plan, first.name).cost_for(reward)}
    return content


def _curve(plan: Plan, name: str) -> Frontier:
    table = plan.along(name)
    return Frontier(*(table[column].to_numpy() for column in ("dual", "cost", "reward")))


def _along(plan: Plan, budget: BudgetFigure, wanted: float | None) -> dict[str, Any]:
    """One budget's frontier, and what some amounts of it buy."""
    table = plan.along(budget.name)
    asked = [budget.budget * factor for factor in (0.9, 1.0, 1.1)] if wanted is None else [wanted]
    rows = [
        {name: "infinity" if np.isinf(value) else value for name, value in row.items()}
        for row in table.iter_rows(named=True)
    ]
    if not rows:  # the others cannot be kept, whatever this one is
        return {"least_budget": None, "at": [], "frontier": []}
    curve = _curve(plan, budget.name)
    found = [_at(curve, value) for value in asked if value >= curve.least_budget]
    return {"least_budget": curve.least_budget, "at": found, "frontier": rows}


def _at(curve: Frontier, budget: float) -> dict[str, float]:
    return {"budget": budget, "reward": curve.reward_at(budget), "shadow_price": curve.shadow_price(budget)}

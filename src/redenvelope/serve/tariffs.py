"""The tariff of a plan: what its actions can cost, from its log or by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from redenvelope.errors import UsageError
from redenvelope.plan.plan import Plan
from redenvelope.serve.affordable import Tariff
from redenvelope.serve.funds import Kept, kept_budgets
from redenvelope.serve.settings import ServeSettings

__all__ = ["Amounts", "face_values", "tariff_of"]

Amounts = Mapping[str, Mapping[str, float]]
"""The most that actions cost, in units of currency: by budget (that under "" of those not named) and label."""
_ROUNDING = 1e-4  # of a minor unit: amounts come out of single precision


def tariff_of(plan: Plan, budgets: Sequence[str], amounts: Amounts | None, settings: ServeSettings) -> Tariff:
    """The tariff of a plan; `budgets` are their names in the ledger, `amounts` what the plan does not know itself."""
    kept = kept_budgets(plan, settings.minor_units)
    if len(kept) != len(budgets) or (len(kept) > 1 and [one.name for one in kept] != list(budgets)):
        raise UsageError(
            f"the plan keeps {len(kept)} budgets ({', '.join(one.name for one in kept)}) and the service holds "
            f"{len(budgets)} ({', '.join(budgets)}): a plan is served with all of its budgets, by their names"
        )
    unknown = sorted(set(amounts or ()) - {"", *(one.name for one in kept), *budgets})
    if unknown:
        said = f"--amounts names the budget {unknown[0]!r}, and the plan has {', '.join(map(repr, budgets))}"
        raise UsageError(f"{said}; where the name of an action has a colon, begin with one: :ACTION=AMOUNT")
    named = tuple(replace(one, name=name) for one, name in zip(kept, budgets, strict=True))
    rows = [_ceilings(plan, place, one, amounts or {}) for place, one in enumerate(named)]
    labels = plan.catalogue.labels
    return Tariff(labels, named, np.array(rows, dtype=np.int64), settings.mode, settings.overbook_margin)


def _ceilings(plan: Plan, place: int, one: Kept, amounts: Amounts) -> list[int]:
    """The most that each action can cost a budget, in minor units."""
    labels = plan.catalogue.labels
    if one.counts:
        return [int(action in one.counted) for action in range(len(labels))]
    given = amounts.get(one.name, amounts.get(""))
    values = face_values(plan, place) if given is None else _given(labels, given)
    if values is None:
        named = "" if len(plan.certificate.budgets) < 2 else f"{one.name}:"
        raise UsageError(
            f"the plan's log had costs that vary, so that what an action costs {one.name!r} at most is not known; say "
            f"it with --amounts, in units of currency: {named}{', '.join(f'{label}=…' for label in labels[:3])}"
        )
    return [math.ceil(value * one.minor_units - _ROUNDING) for value in values]


def _given(labels: Sequence[str], amounts: Mapping[str, float]) -> list[float]:
    unknown = [label for label in amounts if label not in labels]
    if unknown:
        raise UsageError(f"--amounts names {unknown[0]!r}, which is no action of the plan; it has {', '.join(labels)}")
    missing = [label for label in labels if label not in amounts]
    if missing:
        raise UsageError(
            f"--amounts says nothing of {missing[0]!r}; give what every action costs at most, 0 if nothing"
        )
    if any(not 0 <= value < 1e12 for value in amounts.values()):
        raise UsageError("--amounts must be numbers of at least 0")
    return [float(amounts[label]) for label in labels]


def face_values(plan: Plan, budget: int = 0) -> list[float] | None:
    """What each action costs a budget when it is consumed, where the log showed one amount for each; else None."""
    source, measured = plan.policy.source, 1
    if source.charges is not None:
        measured = source.charges.budgets[budget].measured or 0
    if measured == 0:  # the reward, which no face value bounds
        return None
    targets: Any = getattr(getattr(source, "model", None), "targets", None)
    if targets is not None:
        costing = targets.costs[measured - 1]
    else:
        costing = getattr(getattr(source, "values", None), "immediate", None) if measured == 1 else None
    costing = getattr(costing, "costing", costing)
    amounts = getattr(costing, "amounts", None)
    return None if amounts is None else [float(amount) for amount in np.asarray(amounts)]

"""What somebody who looks at a campaign sees: the money, the price and why, who gets what."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import polars as pl

from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import COUNTED, Balance, Decided, Tally
from redenvelope.serve.metrics import Metrics, escaped
from redenvelope.serve.settings import ServeSettings
from redenvelope.serve.use import InUse

__all__ = ["campaign_view", "gauges", "log_row"]

_MOST_NOTES = 500


def campaign_view(ledger: Ledger, use: InUse, settings: ServeSettings, metrics: Metrics, now: int) -> dict[str, Any]:
    """All of a campaign in plain data; amounts are in minor units, costs a user in units of currency."""
    balances, tallies = {one.budget: one for one in ledger.balances()}, ledger.tallies()
    certificate = use.plan.plan.certificate
    first = [tally.decided for tally in tallies if tally.step == use.plan.first_step]
    return {
        "at": now,
        "plan": {
            "sha256": use.plan.sha256,
            "certificate": certificate.status,
            "budget": certificate.budget,
            "cost": certificate.cost.estimate,
            "budgets": _budgets(use),
            "reward": certificate.reward.estimate,
            "actions": list(use.plan.labels),
            "steps": use.plan.steps,
            "first_step": use.plan.first_step,
            "needs_history": use.plan.needs_history,
        },
        "mode": settings.mode,
        "minor_units": settings.minor_units,
        "audience": settings.audience,
        "users": sum(first),
        "decisions": sum(tally.decided for tally in tallies),
        "reward": sum(tally.reward for tally in tallies),
        "budgets": [_balance(balances[name]) for name in use.tariff.budgets],
        "tallies": [msgspec.to_builtins(_tally(one)) for one in tallies],
        "refusals": dict(metrics.refusals),
        "price": {
            "budgets": list(use.tariff.budgets),
            "prices": [[_finite(price) for price in row] for row in use.pricing.prices],
            "shares": list(use.pricing.shares),
        },
        "pacing": _pacing(use, settings),
        "price_notes": [{"at": at, **msgspec.json.decode(content)} for at, content in ledger.price_notes(_MOST_NOTES)],
        "frontier": _frontier(use.plan.plan.frontier),
        "frontiers": _frontiers(use),
    }


def log_row(one: Decided) -> dict[str, Any]:
    """A decision as a line of the log."""
    return {
        "decision_id": f"d{one.decision}",
        "request_id": one.request,
        "user": one.user,
        "step": one.step,
        "action": one.action,
        "propensity": one.propensity,
        "status": one.status.value,
        "reward": one.reward,
        "amounts": dict(one.spent),
        "prices": msgspec.json.decode(one.prices),
        "plan": one.plan,
        "features": msgspec.json.decode(one.features),
        "decided_at": one.decided_at,
        "closed_at": one.closed_at,
    }


def gauges(ledger: Ledger, use: InUse | None) -> dict[str, list[tuple[str, float]]]:
    """Balances and prices, for the metrics."""
    balances = ledger.balances()
    found: dict[str, list[tuple[str, float]]] = {}
    for name in ("total", "spent", "held", "left"):
        found[f"budget_{name}"] = [(_label(one.budget), float(getattr(one, name))) for one in balances]
    if use is not None:
        rows = list(zip(use.pricing.prices, use.pricing.shares, strict=True))
        found["price"] = [
            (_label(name), sum(share * row[place] for row, share in rows if math.isfinite(row[place])))
            for place, name in enumerate(use.tariff.budgets)
        ]
        if use.pacer is not None and use.pacer.beliefs:
            beliefs = zip(use.tariff.budgets, use.pacer.beliefs, strict=True)
            found["cost_ratio"] = [(_label(name), one.cost_ratio) for name, one in beliefs]
    return found


def _label(budget: str) -> str:
    return f'{{budget="{escaped(budget)}"}}'


def _balance(one: Balance) -> dict[str, Any]:
    return {
        "budget": one.budget,
        "total": one.total,
        "spent": one.spent,
        "held": one.held,
        "left": one.left,
        "user_cap": one.user_cap,
        "counts_actions": one.measure == COUNTED,
        "minor_units": one.minor_units,
    }


def _tally(one: Tally) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Tally.__slots__}


def _pacing(use: InUse, settings: ServeSettings) -> dict[str, Any]:
    if use.pacer is None:
        why = "pacing is off" if settings.pacing is None else "without an audience it is not known who is still to come"
        return {"paced": False, "why": f"{why}: the price stays as it is"}
    beliefs = use.beliefs()
    alone = next(iter(beliefs.values())) if len(beliefs) == 1 else {}
    return {"paced": True, "every": use.pacer.every, **alone, "budgets": beliefs}


def _budgets(use: InUse) -> list[dict[str, Any]]:
    """What the plan was made for, of each budget: means a user, and what one more unit of it buys."""
    return [
        {"budget": name, "limit": one.budget, "cost": one.cost.estimate, "dual": _finite(one.dual)}
        for name, one in zip(use.tariff.budgets, use.plan.plan.certificate.budgets, strict=False)
    ]


def _frontiers(use: InUse) -> dict[str, list[dict[str, float | None]]]:
    """With several budgets, the frontier along each while the others are held."""
    names = use.tariff.budgets
    return {} if len(names) < 2 else {name: _frontier(use.plan.plan.along(name)) for name in names}


def _frontier(found: pl.DataFrame) -> list[dict[str, float | None]]:
    """A frontier: price, cost and reward a user, by rising cost."""
    table = found.select("dual", "cost", "reward").sort("cost")
    return [{name: _finite(value) for name, value in row.items()} for row in table.iter_rows(named=True)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

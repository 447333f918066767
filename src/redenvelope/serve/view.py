"""What somebody who looks at a campaign sees: the money, the price and why, who gets what."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import Balance, Decided, Tally
from redenvelope.serve.metrics import Metrics
from redenvelope.serve.settings import ServeSettings
from redenvelope.serve.use import InUse

__all__ = ["campaign_view", "gauges", "log_row"]

_MOST_NOTES = 500


def campaign_view(ledger: Ledger, use: InUse, settings: ServeSettings, metrics: Metrics, now: int) -> dict[str, Any]:
    """All of a campaign in plain data; amounts are in minor units, costs a user in units of currency."""
    balances, tallies = ledger.balances(), ledger.tallies()
    certificate = use.plan.plan.certificate
    first = [tally.decided for tally in tallies if tally.step == use.plan.first_step]
    return {
        "at": now,
        "plan": {
            "sha256": use.plan.sha256,
            "certificate": certificate.status,
            "budget": certificate.budget,
            "cost": certificate.cost.estimate,
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
        "budgets": [_balance(one) for one in balances],
        "tallies": [msgspec.to_builtins(_tally(one)) for one in tallies],
        "refusals": dict(metrics.refusals),
        "price": {
            "prices": [[_finite(price) for price in row] for row in use.pricing.prices],
            "shares": list(use.pricing.shares),
        },
        "pacing": _pacing(use, settings),
        "price_notes": [{"at": at, **msgspec.json.decode(content)} for at, content in ledger.price_notes(_MOST_NOTES)],
        "frontier": _frontier(use),
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
        found[f"budget_{name}"] = [(f'{{budget="{one.budget}"}}', float(getattr(one, name))) for one in balances]
    if use is not None:
        rows = zip(use.pricing.prices, use.pricing.shares, strict=True)
        price = sum(share * row[0] for row, share in rows if math.isfinite(row[0]))
        found["price"] = [("", price)]
        if use.pacer is not None and use.pacer.belief is not None:
            found["cost_ratio"] = [("", use.pacer.belief.cost_ratio)]
    return found


def _balance(one: Balance) -> dict[str, Any]:
    return {
        "budget": one.budget,
        "total": one.total,
        "spent": one.spent,
        "held": one.held,
        "left": one.left,
        "user_cap": one.user_cap,
    }


def _tally(one: Tally) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Tally.__slots__}


def _pacing(use: InUse, settings: ServeSettings) -> dict[str, Any]:
    if use.pacer is None:
        why = "pacing is off" if settings.pacing is None else "without an audience it is not known who is still to come"
        return {"paced": False, "why": f"{why}: the price stays as it is"}
    belief = use.pacer.belief
    return {"paced": True, "every": use.pacer.every, **({} if belief is None else belief.as_dict())}


def _frontier(use: InUse) -> list[dict[str, float | None]]:
    """The plan's frontier: price, cost and reward a user, by rising cost."""
    table = use.plan.plan.frontier.select("dual", "cost", "reward").sort("cost")
    return [{name: _finite(value) for name, value in row.items()} for row in table.iter_rows(named=True)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

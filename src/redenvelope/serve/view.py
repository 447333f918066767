"""What somebody who looks at a campaign sees: the money, the price and why, who gets what."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import polars as pl

from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import COUNTED, Balance, Decided, Tally
from redenvelope.serve.active_plan import InUse
from redenvelope.serve.settings import ServeSettings

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
        "frontier": _frontier(use.plan.plan.along(certificate.budgets[0].name)),
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


# What the service counts, in the text format that Prometheus reads.


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._slots: dict[str, list[int]] = {}
        self._sums: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()
        self.batches = 0
        self.batched = 0

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self._requests[route, status] += 1
            slots = self._slots.setdefault(route, [0] * (len(_SECONDS) + 1))
            slots[bisect_left(_SECONDS, seconds)] += 1
            self._sums[route] += seconds  # type: ignore[assignment]

    def refused(self, code: str) -> None:
        """Something was refused."""
        with self._lock:
            self.refusals[code] += 1

    def text(self, gauges: Mapping[str, Iterable[tuple[str, float]]]) -> str:
        """All counters, and `gauges`: by name, labels and values."""
        with self._lock:
            lines = [
                *_head("http_requests_total", "counter", "Requests by route and status."),
                *(
                    f'redenvelope_http_requests_total{{route="{route}",status="{status}"}} {count}'
                    for (route, status), count in sorted(self._requests.items())
                ),
                *_head("http_seconds", "histogram", "Seconds until an answer."),
                *self._histograms(),
                *_head("refusals_total", "counter", "Refusals by code."),
                *(f'redenvelope_refusals_total{{code="{code}"}} {n}' for code, n in sorted(self.refusals.items())),
                *_head("decisions_total", "counter", "Decisions of this process by action."),
                *(
                    f'redenvelope_decisions_total{{action="{escaped(name)}"}} {n}'
                    for name, n in sorted(self.decisions.items())
                ),
                *_head("batches_total", "counter", "Groups of decisions that were planned together."),
                f"redenvelope_batches_total {self.batches}",
                *_head("batched_decisions_total", "counter", "Decisions in those groups."),
                f"redenvelope_batched_decisions_total {self.batched}",
            ]
        for name, rows in gauges.items():
            lines += _head(name, "gauge", name.replace("_", " ").capitalize() + ".")
            lines += [f"redenvelope_{name}{labels} {value:g}" for labels, value in rows]
        return "\n".join([*lines, ""])

    def _histograms(self) -> Iterable[str]:
        for route, slots in sorted(self._slots.items()):
            total = 0
            for edge, count in zip((*_SECONDS, "+Inf"), slots, strict=True):
                total += count
                yield f'redenvelope_http_seconds_bucket{{route="{route}",le="{edge}"}} {total}'
            yield f'redenvelope_http_seconds_sum{{route="{route}"}} {self._sums[route]:.6f}'
            yield f'redenvelope_http_seconds_count{{route="{route}"}} {total}'


def _head(name: str, kind: str, said: str) -> list[str]:
    return [f"# HELP redenvelope_{name} {said}", f"# TYPE redenvelope_{name} {kind}"]


def escaped(text: str) -> str:
    """A label's value as Prometheus reads it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""Monitoring: the campaign view behind the page, the log of changes, metrics for Prometheus, and the readiness probe.

Everything is read from the ledger and the active plan when it is asked for; only counters live in the process.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily

from redenvelope.errors import LedgerError
from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import COUNTED, Balance, Change, Tally
from redenvelope.ledger.verification import HEAD_DIGITS
from redenvelope.plan.plan import Plan
from redenvelope.plan.reprice import budget_points
from redenvelope.serve.active_plan import ActivePlan, ExpectedFeatures, FeatureFault
from redenvelope.serve.alerts import Alerts
from redenvelope.serve.messages import ApiError
from redenvelope.serve.settings import ServeSettings

Found = TypeVar("Found")
_MOST_NOTES = 500
_MOST_TOLD = 20
"""The most unknown features that are named in the log of the process."""
_LOG_ROWS, _LOG_BYTES = 500, 4 * 1024 * 1024
"""Decisions that are read at a time, and the bytes after which an answer of the log ends."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def campaign_view(
    ledger: Ledger, active: ActivePlan, settings: ServeSettings, metrics: Metrics, alerts: Alerts, now: int
) -> dict[str, Any]:
    """The campaign as plain data; amounts are in minor units, costs per user in units of currency."""
    balances, tallies = {one.budget: one for one in ledger.balances()}, ledger.tallies()
    plan, names = active.plan, active.charges.names
    certificate, identity = plan.plan.certificate, ledger.identity()
    return {
        "at": now,
        "ledger": {**identity, "event": int(identity["event"])},
        "plan": {
            "sha256": plan.sha256,
            "certificate": certificate.status,
            "budget": certificate.budget,
            "cost": certificate.cost.estimate,
            "budgets": [
                {"budget": name, "limit": one.budget, "cost": one.cost.estimate, "dual": _finite(one.dual)}
                for name, one in zip(names, certificate.budgets, strict=False)
            ],
            "reward": certificate.reward.estimate,
            "actions": list(plan.labels),
            "steps": plan.steps,
            "first_step": plan.first_step,
            "needs_history": plan.needs_history,
        },
        "mode": settings.mode,
        "minor_units": settings.minor_units,
        "audience": settings.audience,
        "users": sum(tally.decided for tally in tallies if tally.step == plan.first_step),
        "decisions": sum(tally.decided for tally in tallies),
        "reward": sum(tally.reward for tally in tallies),
        "budgets": [_balance(balances[name]) for name in names],
        "tallies": [{name: getattr(one, name) for name in Tally.__slots__} for one in tallies],
        "alerts": alerts.now(),
        "refusals": metrics.refusals(),
        "wrong_features": metrics.wrong_feature_counts(),
        "price": {
            "budgets": list(names),
            "prices": [[_finite(price) for price in row] for row in active.pricing.prices],
            "shares": list(active.pricing.shares),
        },
        "pacing": _pacing(active, settings),
        "price_notes": [{"at": at, **msgspec.json.decode(content)} for at, content in ledger.price_notes(_MOST_NOTES)],
        "frontier": _frontier(plan.plan, 0),
        "frontiers": {} if len(names) < 2 else {name: _frontier(plan.plan, own) for own, name in enumerate(names)},
    }


def _log_row(change: Change, counted: Container[str], epoch: str) -> dict[str, Any]:
    """A change as a row of the log: a new decision with all its fields, or the outcome or expiry of an earlier one."""
    row: dict[str, Any] = {"number": change.number, "epoch": epoch, "change": change.kind, "at": change.at}
    one = change.decided
    if not change.public_id:
        return {**row, **msgspec.json.decode(change.content)}
    row["decision_id"] = change.public_id
    if one is None:
        said = msgspec.json.decode(change.content) if change.content else {"status": "expired"}
        return row | said | ({} if change.reward is None else {"reward": change.reward})
    return row | {
        "request_id": one.request,
        "user": one.user,
        "step": one.step,
        "action": one.action,
        "propensity": one.propensity,
        "status": "open",
        "reward": None,
        "amounts": {each.budget: each.held if each.budget in counted else 0 for each in one.charges},
        "prices": msgspec.json.decode(one.prices),
        "plan": one.plan,
        "features": _read(one.features),
        "eligible": _read(one.eligible),
        "state": _read(one.state),
        "holdout": one.holdout,
        "expires_at": one.expires_at,
    }


def _read(content: str) -> Any:
    """Decoded JSON, or None if the content is empty or was erased."""
    return msgspec.json.decode(content) if content else None


def log_lines(ledger: Ledger, after: int, most: int, epoch: str = "") -> bytes:
    """Changes with numbers above `after` as JSON lines: at most `most`, and at most as many as an answer may hold.

    Numbers start again after a restore: a reader who has read too far in another `epoch` gets an error that says from
    which number to read on.
    """
    found, now = bytearray(), ledger.database.epoch
    shared = ledger.last_shared(epoch) if epoch else None
    if shared is not None and after > shared:
        message = f"the ledger was restored from a back-up; of its epoch {epoch[:60]!r} it has the lines up to {shared}"
        remedy = f"drop lines above {shared}, and read on with after={shared}&epoch={now}"
        raise ApiError(409, "other_epoch", message, remedy)
    counted = {one.budget for one in ledger.balances() if one.measure == COUNTED}
    while most > 0 and len(found) < _LOG_BYTES:
        changes = ledger.changes(after, min(most, _LOG_ROWS))
        if not changes:
            break
        found += b"".join(msgspec.json.encode(_log_row(one, counted, now)) + b"\n" for one in changes)
        after, most = changes[-1].number, most - len(changes)
    return bytes(found)


REQUEST_ID: ContextVar[str | None] = ContextVar("REQUEST_ID", default=None)
"""The id of the request that is being answered."""


class JsonLines(logging.Formatter):
    """Formats a log record as a line of JSON, with the id of the request it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {"time": at.replace("+00:00", "Z"), "level": record.levelname, "message": record.getMessage()}
        if (request_id := REQUEST_ID.get()) is not None:
            said["request_id"] = request_id
        said |= getattr(record, "fields", {})
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(said).decode()


class Metrics:
    """The metrics of one service, in a registry of its own; balances and prices are read at each scrape."""

    def __init__(self, ledger: Ledger, active: Callable[[], ActivePlan | None]) -> None:
        self._ledger, self._active = ledger, active
        self._registry = registry = _Registry()
        self._requests = Counter(
            "redenvelope_http_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "redenvelope_http_seconds", "Seconds until an answer.", ["route"], buckets=_SECONDS, registry=registry
        )
        self._refusals = Counter("redenvelope_refusals", "Refusals by code.", ["code"], registry=registry)
        self._decisions = Counter(
            "redenvelope_decisions", "Decisions of this process by action.", ["action"], registry=registry
        )
        self._wrong = Counter(
            "redenvelope_wrong_features",
            "Features of requests that the plan does not know (these without a name), lacks, or cannot read.",
            ["code", "feature"],
            registry=registry,
        )
        self._short = Counter(
            "redenvelope_short_decisions",
            "Decisions in which an action of the plan could not be paid.",
            registry=registry,
        )
        self._webhooks = Counter("redenvelope_webhooks", "Alerts sent to the webhook.", ["result"], registry=registry)
        self.short_decisions = 0
        self._batches = Counter("redenvelope_batches", "Groups of decisions planned together.", registry=registry)
        self._batched = Counter("redenvelope_batched_decisions", "Decisions in those groups.", registry=registry)
        self._told: set[tuple[str, str]] = set()
        # Label lookups in the library take a lock and are slower than counting, so the few handles are cached.
        self._routes = cache(lambda route, status: (self._requests.labels(route, status), self._seconds.labels(route)))
        self._by_action = cache(self._decisions.labels)
        registry.register(self)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        requests, times = self._routes(route, status)
        requests.inc()
        times.observe(seconds)

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self._refusals.labels(code).inc()

    def wrong_features(self, expected: ExpectedFeatures, faults: Sequence[FeatureFault]) -> None:
        """Count features that the plan does not expect, and log each kind of fault once."""
        for kind, count in collections.Counter((one.code, one.counted_as) for one in faults).items():
            self._wrong.labels(*kind).inc(count)
        # The plan limits the number of its own names; unknown names are chosen by callers, so their number is capped.
        unknown = _MOST_TOLD - sum(code == "unknown_feature" for code, _ in self._told)
        for one in faults:
            if (one.code, one.name) in self._told or (one.code == "unknown_feature" and unknown <= 0):
                continue
            unknown -= one.code == "unknown_feature"
            self._told.add((one.code, one.name))
            _LOG.warning("features of requests: %s; %s", *expected.described(one))

    def wrong_feature_counts(self) -> list[dict[str, Any]]:
        """Counts of unexpected features, by code and name."""
        (found,) = self._wrong.collect()
        return [{**one.labels, "count": int(one.value)} for one in found.samples if one.name.endswith("_total")]

    def decided(self, action: str) -> None:
        """Count a decision."""
        self._by_action(action).inc()

    def short(self) -> None:
        """Count a decision in which an action with positive probability could not be paid."""
        self.short_decisions += 1
        self._short.inc()

    def sent(self, result: str) -> None:
        """Count an alert to the webhook by result: delivered, failed or dropped."""
        self._webhooks.labels(result).inc()

    def planned(self, decisions: int) -> None:
        """Count a group of decisions that were planned together."""
        self._batches.inc()
        self._batched.inc(decisions)

    def refusals(self) -> dict[str, int]:
        """Refusals by code."""
        (found,) = self._refusals.collect()
        return {one.labels["code"]: int(one.value) for one in found.samples if one.name.endswith("_total")}

    def text(self) -> bytes:
        """All metrics in the Prometheus text format; amounts are exact integers."""
        balances, identity = self._ledger.balances(), self._ledger.identity()
        amounts = [line for name in ("total", "spent", "held", "left") for line in _amounts(name, balances)]
        amounts += _chain(identity)
        return generate_latest(self._registry) + "".join(f"{line}\n" for line in amounts).encode()

    def collect(self) -> Iterator[Metric]:
        """Gauges of the current prices, for the registry."""
        active = self._active()
        if active is None:
            return
        names, rows = active.charges.names, list(zip(active.pricing.prices, active.pricing.shares, strict=True))
        means = [
            sum(share * row[place] for row, share in rows if math.isfinite(row[place])) for place in range(len(names))
        ]
        yield _gauge("price", zip(names, means, strict=True))
        if active.pacer is not None and active.pacer.beliefs:
            ratios = [belief.cost_ratio for belief in active.pacer.beliefs]
            yield _gauge("cost_ratio", zip(names, ratios, strict=True))


class _Registry(CollectorRegistry):
    """A registry without the creation times of counters, which the library can only switch off for a whole process."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _amounts(name: str, balances: Sequence[Balance]) -> Iterator[str]:
    """The lines of a gauge of amounts, written here because the library would write floating-point numbers."""
    yield f"# HELP redenvelope_budget_{name} Budget {name}, in minor units."
    yield f"# TYPE redenvelope_budget_{name} gauge"
    for one in balances:
        label = one.budget.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        yield f'redenvelope_budget_{name}{{budget="{label}"}} {getattr(one, name)}'


def _chain(identity: Mapping[str, str]) -> Iterator[str]:
    """The last event and the head of the hash chain, a number because Prometheus keeps every value of a label."""
    labels = f'{{ledger="{identity["ledger"]}",epoch="{identity["epoch"]}"}}'
    yield "# HELP redenvelope_ledger_events Events in the ledger."
    yield "# TYPE redenvelope_ledger_events gauge"
    yield f"redenvelope_ledger_events{labels} {identity['event']}"
    yield f"# HELP redenvelope_ledger_head The first {HEAD_DIGITS} hexadecimal digits of the head of its chain."
    yield "# TYPE redenvelope_ledger_head gauge"
    yield f"redenvelope_ledger_head{labels} {int(identity['head'][:HEAD_DIGITS] or '0', 16)}"


def _gauge(name: str, values: Any) -> GaugeMetricFamily:
    found = GaugeMetricFamily(f"redenvelope_{name}", name.replace("_", " ").capitalize() + ".", labels=["budget"])
    for budget, value in values:
        found.add_metric([budget], value)
    return found


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


def _pacing(active: ActivePlan, settings: ServeSettings) -> dict[str, Any]:
    if active.pacer is None:
        why = "pacing is off" if settings.pacing is None else "without an audience, the users to come are unknown"
        return {"paced": False, "why": f"{why}: the price stays as it is"}
    beliefs = active.beliefs()
    alone = next(iter(beliefs.values())) if len(beliefs) == 1 else {}
    return {"paced": True, "every": active.pacer.every, **alone, "budgets": beliefs}


@lru_cache(maxsize=8)
def _frontier(plan: Plan, own: int) -> list[dict[str, float | None]]:
    """The frontier of one budget: what other limits would buy, as `reprice` would certify it, in increasing order."""
    points = budget_points(plan, plan.certificate.budgets[own])
    return [{name: _finite(value) for name, value in asdict(point).items()} for point in points]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_LOG = logging.getLogger("redenvelope.serve")
_FRESH_SECONDS = 1.0
"""How long a result is reused, because anybody may ask /readyz, as often as they like."""
_DEADLINE_SECONDS = 1.0


class WriteProbe:
    """Tries a durable write in a separate thread, so that a full disk or a locked database is noticed in time and a
    long read does not delay the answer."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._result: Future[None] | None = None
        self._began = 0.0
        self._problem: str | None = None

    async def is_writable(self) -> bool:
        """Whether a write that began at most a second ago finished in time; why not goes to the log."""
        now = time.monotonic()
        if self._result is None or (self._result.done() and now - self._began > _FRESH_SECONDS):
            self._result, self._began = self._start(), now
        left = max(self._began + _DEADLINE_SECONDS - now, 0.0)
        try:
            async with asyncio.timeout(left):
                await asyncio.shield(asyncio.wrap_future(self._result))
            problem = None
        except TimeoutError:
            problem = f"no write ended within {_DEADLINE_SECONDS:g} s"
        except Exception as error:
            problem = str(error)
        if problem != self._problem:
            self._problem = problem
            if problem is None:
                _LOG.info("the ledger can be written again")
            else:
                _LOG.error("not ready, the ledger cannot be written: %s", problem)
        return problem is None

    def _start(self) -> Future[None]:
        return in_thread(self._write, "probe")

    def _write(self) -> None:
        try:
            self._ledger.probe()
        except LedgerError:
            raise
        except Exception as error:
            raise LedgerError(f"{type(error).__name__}: {error}") from error


def in_thread(work: Callable[[], Found], name: str) -> Future[Found]:
    """Run `work` in a daemon thread. Not in a pool: at exit, a pool would wait for a thread that is blocked by the
    database."""
    result: Future[Found] = Future()
    result.set_running_or_notify_cancel()  # cancelling the wait does not cancel the work

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result

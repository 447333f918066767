"""Alerts: conditions of a running campaign that operators have to know, in the log, on the page and to a webhook.

An alert lasts as long as its condition. It is logged and sent when it begins, and logged when it ends.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import queue
import secrets
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from redenvelope.errors import UsageError
from redenvelope.ledger.ledger import Verification
from redenvelope.ledger.records import COUNTED, THOUSANDTHS, Balance
from redenvelope.serve.active_plan import ActivePlan
from redenvelope.serve.settings import ServeSettings

_LOG = logging.getLogger("redenvelope.serve")
_LOW_SHARE = 0.1
_STARVING_SECONDS = 60.0
"""How long after the last decision that could not be paid the campaign counts as starved by holds."""
_SURE = 4.0
"""Standard errors beyond which a cost is not attributed to chance; many, because it is tested every second."""


class Alert(NamedTuple):
    """A condition that operators have to know."""

    code: str
    budget: str
    """Empty if it concerns all budgets."""
    message: str
    remedy: str


class Alerts:
    """The current alerts of a service."""

    def __init__(self, send: Callable[[Alert], None] | None = None) -> None:
        self._send = send
        self._now: dict[tuple[str, str], tuple[Alert, float]] = {}
        self._short = (0, -math.inf)
        """The count of decisions that could not be paid at the last look, and the time at which it last grew."""
        self._unsound: Alert | None = None

    def now(self) -> list[dict[str, Any]]:
        """The current alerts as plain data, oldest first; `since` is in milliseconds since 1970."""
        return [{**alert._asdict(), "since": round(1e3 * since)} for alert, since in self._now.values()]

    def look(
        self,
        active: ActivePlan,
        balances: Sequence[Balance],
        settings: ServeSettings,
        short: int,
        unpaid: Callable[[], Mapping[str, tuple[int, int]]] = dict,
    ) -> None:
        """Update the alerts. `short` counts decisions of this process in which an action of the plan could not be paid;
        `unpaid` finds outcomes that could not be paid, with what is still held for them."""
        if short > self._short[0]:
            self._short = (short, time.monotonic())
        starving = time.monotonic() - self._short[1] < _STARVING_SECONDS
        by_name = {one.budget: one for one in balances}
        dearest = active.charges.ceilings.max(axis=1).tolist()
        is_short = any(by_name[name].left < most for name, most in zip(active.charges.names, dearest, strict=True))
        refused = unpaid() if is_short else {}
        found = [] if self._unsound is None else [self._unsound]
        for place, name in enumerate(active.charges.names):
            found += _of_money(active, by_name[name], place, short if starving else 0)
            found += _locked(by_name[name], *refused.get(name, (0, 0)))
            found += _of_certificate(active, by_name[name], place, settings)
        self._change(found)

    def verified(self, found: Verification) -> None:
        """Record the result of a verification of the ledger."""
        self._unsound = None
        if not found.is_sound:
            message = f"the ledger contradicts its entries in {len(found.differences)} places: {found.differences[0]}"
            remedy = "stop the service, run redenvelope ledger verify, and restore a back-up"
            self._unsound = Alert("ledger_unsound", "", message, remedy)

    def _change(self, found: Iterable[Alert]) -> None:
        lasting = {(alert.code, alert.budget): alert for alert in found}
        for key in [key for key in self._now if key not in lasting]:
            _LOG.info("over: %s", self._now.pop(key)[0].message)
        for key, alert in lasting.items():
            is_new = key not in self._now
            self._now[key] = (alert, time.time() if is_new else self._now[key][1])
            if is_new:
                _LOG.warning("%s: %s; %s", alert.code, alert.message, alert.remedy, extra={"fields": alert._asdict()})
                if self._send is not None:
                    self._send(alert)


def _of_money(active: ActivePlan, balance: Balance, place: int, short: int) -> Iterator[Alert]:
    """Alerts for a budget that is low, used up, or tied up in holds."""
    ceilings = [int(most) for most in active.charges.ceilings[place] if most > 0]
    if not ceilings:
        return
    unspent, name = balance.total - balance.spent, balance.budget
    said = f"{_amount(unspent, balance)} of {_amount(balance.total, balance)} of {name!r}"
    if unspent < min(ceilings):
        message = f"{said} is not spent, which pays for no offer: users get what is free"
        yield Alert("budget_reached", name, message, "end the campaign, or raise the total")
        return
    if unspent <= _LOW_SHARE * balance.total:
        yield Alert("money_low", name, f"{said} is left to spend", "raise the total, or prepare for the end")
    if short and balance.left < max(ceilings):
        held, spent = _amount(balance.held, balance), _amount(balance.spent, balance)
        message = (
            f"{short:,} decisions could not give what the plan gives, because {held} of {name!r} is held for offers "
            f"without an outcome; {spent} is spent"
        )
        remedy = (
            "report outcomes sooner (amount 0 where nothing is redeemed), shorten --hold-hours, raise the total, or "
        )
        yield Alert("holds_starve", name, message, remedy + "serve with --mode overbook")


def _locked(balance: Balance, refused: int, held: int) -> Iterator[Alert]:
    """Alert for money held for outcomes that the budget can no longer pay."""
    if refused:
        amount, name = _amount(held, balance), balance.budget
        message = (
            f"{refused:,} outcomes were refused because {name!r} cannot pay them, and {amount} is still held for them"
        )
        remedy = (
            "where the offer is not honoured, report the outcome again with amount 0, which frees what is held; "
            "otherwise raise the total and report it again as it was"
        )
        yield Alert("money_locked", name, message, remedy)


def _of_certificate(active: ActivePlan, balance: Balance, place: int, settings: ServeSettings) -> Iterator[Alert]:
    """Alerts if pacing goes beyond what was certified, or if users cost more than was certified."""
    name, figure = balance.budget, active.plan.plan.certificate.budgets[place]
    beliefs = () if active.pacer is None else active.pacer.beliefs
    band = 0.0 if settings.pacing is None else settings.pacing.dead_band
    covered = max(figure.budget, figure.cost.estimate)
    if beliefs and beliefs[place].target > covered * (1 + band):
        target = beliefs[place].target
        message = (
            f"pacing asks for {target:.4g} of {name!r} per user, and the certificate covers {covered:.4g}: cost and "
            "reward at this price were not certified (more than the total cannot be spent)"
        )
        remedy = f"lower the total, correct the audience, or certify it: redenvelope reprice PLAN --budget {target:.4g}"
        yield Alert("beyond_certificate", name, message, remedy)
    if balance.measure == COUNTED or figure.cost.estimate <= 0:
        return
    # Count all decisions, not only those with an outcome, because redeemed offers are reported first. An outcome
    # between 0 and the ceiling with mean m has a variance of at most m × ceiling.
    expected = (balance.closed_thousandths + balance.expected_thousandths) / THOUSANDTHS
    allowed = max(figure.cost.upper, figure.cost.estimate) / figure.cost.estimate
    dearest = float(active.charges.ceilings[place].max())
    most = allowed * expected + _SURE * math.sqrt(max(allowed * expected, 1.0) * dearest)
    if balance.spent > most:
        spent, wanted = _amount(balance.spent, balance), _amount(round(expected), balance)
        message = (
            f"{spent} of {name!r} is spent, and {wanted} was expected of all decisions: users cost more than the "
            f"certificate ({allowed:.2f} times that at most) and chance explain"
        )
        yield Alert(
            "certificate_contradicted", name, message, "fit again on the log that redenvelope ledger export writes"
        )


def capacity(active: ActivePlan, balances: Sequence[Balance], settings: ServeSettings) -> Iterator[tuple[int, str]]:
    """For each paid budget, how many users can have an open hold at the same time, as a number and in words."""
    by_name = {one.budget: one for one in balances}
    steps = () if active.plan.plan.record.shares is None else active.plan.plan.record.shares.by_step
    for place, name in enumerate(active.charges.names):
        balance, ceilings = by_name[name], active.charges.ceilings[place]
        if balance.measure == COUNTED or not ceilings.max():
            continue
        dearest = int(ceilings.max())
        sure = balance.left // dearest
        said = (
            f"{name!r}: {_amount(balance.left, balance)} can be held for {sure:,} users at once with the dearest offer"
        )
        if steps:
            strict = max(float(ceilings[: len(steps[0].probabilities)] @ steps[0].probabilities), 1e-9)
            booked = max(min(steps[0].cost * balance.minor_units * (1 + settings.overbook_margin), strict), 1e-9)
            holds = {"strict": strict, "overbook": booked}
            sure = max(sure, int(balance.left / holds[settings.mode]))
            other = "overbook" if settings.mode == "strict" else "strict"
            means = {"strict": "every offer can be honoured", "overbook": "offers are valid while funds last"}
            said += (
                f", about {sure:,} as the plan gives offers ({settings.mode}: {means[settings.mode]}); with --mode "
                f"{other} about {int(balance.left / holds[other]):,} ({means[other]})"
            )
        yield sure, said


def _amount(minor: int, balance: Balance) -> str:
    """An amount in units of the budget, as text."""
    if balance.measure == COUNTED:
        return f"{minor:,}"
    digits = math.ceil(math.log10(balance.minor_units))
    return f"{minor / balance.minor_units:,.{digits}f}"


# Webhooks: signed, so that the receiver can check the sender; retried, with a bounded queue.

SECRET_VARIABLE = "REDENVELOPE_WEBHOOK_SECRET"
_LEAST_SECRET = 16
_MOST_WAITING = 100
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class WebhookSettings:
    """Where alerts are sent, and how often to try."""

    url: str
    secret: str
    tries: int = 6
    first_seconds: float = 1.0
    """Delay before the second try; it doubles each time."""
    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        try:
            parts, _ = urlsplit(self.url), urlsplit(self.url).port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
            raise UsageError(f"--webhook {self.url.split('@')[-1]}: write a URL such as https://HOST/PATH")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise UsageError("--webhook: http is readable on its way; use https, or http to this machine")
        if len(self.secret) < _LEAST_SECRET:
            raise UsageError(
                f"--webhook: put a secret of at least {_LEAST_SECRET} characters, which the receiver knows too, into "
                f"the environment variable {SECRET_VARIABLE}"
            )


class Webhook:
    """Sends alerts one after the other in a separate thread. The queue holds 100; older ones are dropped."""

    def __init__(self, settings: WebhookSettings, ledger: str, counted: Callable[[str], None]) -> None:
        self._settings, self._ledger, self._counted = settings, ledger, counted
        self._waiting: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
        self._stopped = threading.Event()
        # A proxy from the environment could read plain-text messages to this machine.
        own = [urllib.request.ProxyHandler({})] if settings.url.startswith("http:") else []
        self._opener = urllib.request.build_opener(_NoRedirect, *own)
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def send(self, alert: Alert) -> None:
        """Queue an alert without waiting."""
        said = {"id": secrets.token_hex(16), "at": time.time_ns() // 1_000_000, "ledger": self._ledger}
        content = msgspec.json.encode(said | alert._asdict())
        while True:
            try:
                self._waiting.put_nowait(content)
                return
            except queue.Full:
                self._counted("dropped")
                try:
                    self._waiting.get_nowait()
                except queue.Empty:
                    continue

    def close(self) -> None:
        """Send nothing more; a message in progress ends with the process."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                content = self._waiting.get(timeout=0.5)
            except queue.Empty:
                continue
            self._deliver(content)

    def _deliver(self, content: bytes) -> None:
        settings, problem = self._settings, ""
        for turn in range(settings.tries):
            try:
                with self._opener.open(self._request(content), timeout=settings.timeout_seconds):
                    self._counted("delivered")
                    return
            except Exception as error:  # whatever the receiver does, the thread must go on
                problem = str(error)
            if turn + 1 < settings.tries and self._stopped.wait(settings.first_seconds * 2**turn):
                break
        self._counted("failed")
        _LOG.error("an alert could not be sent to the webhook, after %d tries: %s", settings.tries, problem[:200])

    def _request(self, content: bytes) -> urllib.request.Request:
        at = int(time.time())
        key = self._settings.secret.encode()
        signature = hmac.new(key, b"%d." % at + content, hashlib.sha256).hexdigest()
        headers = {
            "content-type": "application/json",
            "user-agent": "redenvelope",
            "x-redenvelope-signature": f"t={at},v1={signature}",
        }
        return urllib.request.Request(self._settings.url, content, headers, method="POST")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        """Never redirect: a signed message goes to its address only."""

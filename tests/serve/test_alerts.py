"""What operators are told: alerts begin and end with their reasons, and a webhook gets them, signed and repeatedly."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from redenvelope import Plan, UsageError, open_ledger
from redenvelope.ledger.records import Balance, Fund
from redenvelope.ledger.verification import Difference, Verification
from redenvelope.serve.active_plan import ActivePlan, load_active_plan
from redenvelope.serve.alerts import Alert, Alerts, Webhook, WebhookSettings, capacity
from redenvelope.serve.pacing import Belief
from redenvelope.serve.server import serving
from redenvelope.serve.service import Service
from redenvelope.serve.settings import ServeSettings
from tests.ledger.asking import fund, hold, settle
from tests.program import run_here
from tests.serve.running import Running, running

SECRET = "a secret of the receiver"
SETTINGS = ServeSettings(audience=100)


@pytest.fixture(scope="module")
def active(folder: Path) -> ActivePlan:
    return load_active_plan(folder, [Fund("budget", 10_000, 0)], None, SETTINGS, 0)[0]


def balance(held: int = 0, spent: int = 0, expected: int = 0, closed: int = 0) -> Balance:
    return Balance("budget", 10_000, held, spent, 1_000 * expected, 1_000 * closed, None, "cost")


def codes(alerts: Alerts, active: ActivePlan, now: Balance, short: int = 0) -> list[str]:
    alerts.look(active, [now], SETTINGS, short)
    return [one["code"] for one in alerts.now()]


def test_alerts_begin_and_end_with_their_reasons(active: ActivePlan, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Alert] = []
    alerts = Alerts(sent.append)
    with caplog.at_level(logging.INFO):
        for _ in range(3):  # said once, however often it is looked at
            assert codes(alerts, active, balance()) == []
        for _ in range(3):
            assert codes(alerts, active, balance(spent=9_001, closed=9_001)) == ["money_low"]
        assert codes(alerts, active, balance(spent=9_901, closed=9_901)) == ["budget_reached"]
        assert codes(alerts, active, balance(held=9_800, spent=0, expected=500), short=7) == ["holds_starve"]
        assert codes(alerts, active, balance(held=100, expected=50), short=7) == []
    assert [one.code for one in sent] == ["money_low", "budget_reached", "holds_starve"]
    assert "9.99 of 100.00 of 'budget' is left" in sent[0].message
    assert "0.99 of 100.00 of 'budget' is not spent" in sent[1].message
    assert "--mode overbook" in sent[2].remedy
    assert "7 decisions" in sent[2].message
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 3


def test_a_cost_that_chance_explains_contradicts_nothing(active: ActivePlan) -> None:
    figure = active.plan.plan.certificate.budgets[0]
    allowed = max(figure.cost.upper / figure.cost.estimate, 1.0)
    # A thousand cents expected, offers of at most 300: four standard errors are at most 4 √(1,000 × 300 × allowed).
    edge = allowed * 1_000 + 4 * (allowed * 1_000 * 300) ** 0.5
    assert codes(Alerts(), active, balance(spent=int(edge) - 1, expected=600, closed=400)) == []
    assert codes(Alerts(), active, balance(spent=int(edge) + 2, expected=600, closed=400)) == [
        "certificate_contradicted"
    ]
    # Redeemed offers are reported first: what is still open counts as well.
    assert codes(Alerts(), active, balance(spent=3_000, expected=2_600, closed=400)) == []


def test_pacing_beyond_the_certificate_is_said(active: ActivePlan) -> None:
    assert active.pacer is not None
    figure = active.plan.plan.certificate.budgets[0]
    belief = Belief(10.0, 10.0, 1.0, figure.budget, figure.budget, "because")
    for target, said in ((figure.budget, []), (1.5 * figure.budget, ["beyond_certificate"])):
        active.pacer.beliefs = (replace(belief, target=target),)
        assert codes(Alerts(), active, balance()) == said
    active.pacer.beliefs = ()


def test_an_unsound_ledger_is_said_until_it_is_sound(active: ActivePlan) -> None:
    alerts = Alerts()
    alerts.verified(Verification(1, 1, (), (Difference("budget cost, spent", "5", "4"),)))
    assert codes(alerts, active, balance()) == ["ledger_unsound"]
    alerts.verified(Verification(1, 1, (), ()))
    assert codes(alerts, active, balance()) == []


@pytest.mark.parametrize("mode", ["strict", "overbook"])
def test_what_can_be_held_at_once_is_said_at_the_start(
    folder: Path, plan: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    settings = ServeSettings(mode=mode, audience=1_000)
    active, _ = load_active_plan(folder, [Fund("budget", 10_000, 0)], None, settings, 0)
    ((users, said),) = capacity(active, [balance()], settings)
    assert plan.record.shares is not None
    first = plan.record.shares.by_step[0]
    ceilings = dict(zip(active.plan.labels, active.charges.ceilings[0], strict=True))
    strict = sum(
        share * ceilings[label] for label, share in zip(plan.catalogue.labels, first.probabilities, strict=True)
    )
    booked = 125 * first.cost
    assert users == int(10_000 / (strict if mode == "strict" else booked))
    assert "for 33 users at once with the dearest offer" in said
    assert f"about {int(10_000 / (booked if mode == 'strict' else strict)):,}" in said
    with caplog.at_level(logging.INFO), running(folder, f"sqlite:///{tmp_path}/l.db", total=10_000, settings=settings):
        pass
    assert any("users at once" in record.getMessage() and record.levelname == "WARNING" for record in caplog.records)


def until(found: Callable[[], Any], seconds: float = 20.0) -> Any:
    ends = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < ends:
        time.sleep(0.1)
    return value


def test_holds_that_starve_a_batch_are_seen_by_everybody(folder: Path, url: str) -> None:
    with running(folder, url, total=1_000) as served:
        asked = [
            {"request_id": f"r{user}", "user": user, "features": {"taste": 0.95, "city": "Lyon"}} for user in range(200)
        ]
        status, answers = served.ask("POST", "/v1/decisions/batch", {"decisions": asked})
        assert status == 200
        alerts = until(lambda: served.ask("GET", "/v1/campaign")[1]["alerts"])
        metrics = served.ask("GET", "/metrics")[1]
    (alert,) = alerts
    assert alert["code"] == "holds_starve"
    assert alert["since"] > 0
    held = sum(one["hold"]["amount"] for one in answers["answers"])
    assert f"{held / 100:.2f} of 'budget' is held" in alert["message"]
    assert float(metrics.split("\nredenvelope_short_decisions_total ")[1].split()[0]) > 50


class Receiver(BaseHTTPRequestHandler):
    """Fails some times, then takes what it gets."""

    def do_POST(self) -> None:
        server: Any = self.server
        content = self.rfile.read(int(self.headers["content-length"]))
        server.got.append(({name.lower(): value for name, value in self.headers.items()}, content))
        self.send_response(server.fails.pop(0) if server.fails else 204)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def receiver(*fails: int) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.fails, server.got = list(fails), []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", server.got
    finally:
        server.shutdown()
        server.server_close()


def signed(headers: dict[str, str], content: bytes) -> bool:
    at, _, signature = headers["x-redenvelope-signature"].removeprefix("t=").partition(",v1=")
    wanted = hmac.new(SECRET.encode(), f"{at}.".encode() + content, hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted, signature) and abs(int(at) - time.time()) < 60


def test_a_webhook_is_signed_and_tried_again(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # what stays on this machine goes through no proxy
    with receiver(500, 302) as (where, got):
        hook = WebhookSettings(where, SECRET, first_seconds=0.05)
        service = Service(folder, open_ledger(url, seed=0), [Fund("budget", 50, 0)], ServeSettings(), webhook=hook)
        with serving(service) as port:
            assert Running(port, service).decide("r", "u")[0] == 200
            assert until(lambda: len(got) >= 3)
            assert until(
                lambda: 'redenvelope_webhooks_total{result="delivered"} 1.0' in service.metrics.text().decode()
            )
    assert len(got) == 3, "twice refused, then taken"
    assert len({content for _, content in got}) == 1, "the same message, by which a receiver knows it again"
    assert all(signed(headers, content) for headers, content in got)
    said = json.loads(got[0][1])
    assert said["code"] == "budget_reached"
    assert said.keys() == {"id", "at", "ledger", "code", "budget", "message", "remedy"}


def test_a_webhook_gives_up_and_drops_what_is_too_much(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    with receiver(*[500] * 1_000) as (where, got):
        hook = Webhook(WebhookSettings(where, SECRET, tries=3, first_seconds=0.3), "00", counted.append)
        for number in range(150):
            hook.send(Alert("money_low", str(number), "m", "r"))
        assert until(lambda: "failed" in counted)
        hook.close()
        assert len({json.loads(content)["id"] for _, content in got[:3]}) == 1
    assert 49 <= counted.count("dropped") <= 50
    assert "could not be sent" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("where", "secret", "said"),
    [
        ("ftp://example.org/x", SECRET, "https://HOST/PATH"),
        ("example.org", SECRET, "https://HOST/PATH"),
        ("https://user:password@example.org/", SECRET, "https://HOST/PATH"),
        ("http://example.org/x", SECRET, "use https"),
        ("https://example.org/x", "short", "REDENVELOPE_WEBHOOK_SECRET"),
    ],
)
def test_a_webhook_without_sense_is_refused(where: str, secret: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        WebhookSettings(where, secret)
    assert "password" not in str(error.value)


def test_a_webhook_without_a_secret_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDENVELOPE_WEBHOOK_SECRET", raising=False)
    given = ["--ledger", f"sqlite:///{tmp_path}/l.db", "--budget-total", "10", "--webhook", "https://example.org/x"]
    done = run_here("serve", folder, *given)
    assert done.returncode == 2
    assert "REDENVELOPE_WEBHOOK_SECRET" in done.stderr


def test_the_ledger_is_verified_while_it_is_served(folder: Path, url: str) -> None:
    with running(folder, url, settings=ServeSettings(verify_seconds=0.2)) as served:
        assert served.decide("r", "u")[0] == 200
        with served.service.ledger.database.transaction() as session:
            session.run("UPDATE budgets SET spent = 1")
        alerts = until(lambda: served.ask("GET", "/v1/campaign")[1]["alerts"])
        assert [one["code"] for one in alerts] == ["ledger_unsound"]
        with served.service.ledger.database.transaction() as session:
            session.run("UPDATE budgets SET spent = 0")
        assert until(lambda: not served.ask("GET", "/v1/campaign")[1]["alerts"])


def test_verifying_leaves_no_connection_open(folder: Path, url: str) -> None:
    """One more each hour, and after some days a database has none left."""
    with running(folder, url, settings=ServeSettings(verify_seconds=0.05)) as served:
        opened = served.service.ledger.database._opened
        assert served.decide("r", "u")[0] == 200
        most = 0
        for _ in range(20):
            time.sleep(0.1)
            most = max(most, len(opened))
    assert most <= 6


def test_money_that_is_locked_for_refused_outcomes_is_said(active: ActivePlan) -> None:
    alerts = Alerts()
    for now, unpaid, said in (
        (balance(held=9_950, expected=9_950), {"budget": (3, 250)}, ["money_locked"]),
        (balance(held=5_000, expected=5_000), {"budget": (3, 250)}, []),  # what is left pays for any offer
        (balance(held=9_950, expected=9_950), {}, []),
    ):
        alerts.look(active, [now], SETTINGS, 0, lambda found=unpaid: found)  # type: ignore[misc]
        assert [one["code"] for one in alerts.now()] == said
        if said:
            (one,) = alerts.now()
            assert "3 outcomes" in one["message"] and "2.50" in one["message"] and "amount 0" in one["remedy"]


def test_the_ledger_knows_what_is_locked(url: str) -> None:
    with closing(open_ledger(url)) as ledger:
        ledger.apply([fund(10), hold("a", amount=4, ceiling=20), hold("b", amount=6)])
        assert ledger.unpaid() == {}
        ledger.apply([settle(1, 20)])
        assert ledger.unpaid() == {"money": (1, 4)}
        ledger.apply([settle(1, 0)])
        assert ledger.unpaid() == {}

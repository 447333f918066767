"""Metrics as Prometheus reads them: one registry per service, balances as they are in the ledger."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.serve.running import Running, running
from tests.serve.test_process import Process

TOTAL = 123_456_789_012


def samples(served: Running) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    families = text_string_to_metric_families(served.ask("GET", "/metrics")[1])
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_say_what_happened_and_what_is_in_the_ledger(folder: Path, tmp_path: Path) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db", total=TOTAL) as served:
        answers = [served.decide(f"r{user}", user)[1] for user in range(5)]
        assert served.decide("r0", 1)[1]["code"] == "request_differs"
        found = samples(served)
        text = served.ask("GET", "/metrics")[1]
        (balance,) = served.service.ledger.balances()
        with running(folder, f"sqlite:///{tmp_path}/other.db") as other:
            assert ("redenvelope_http_requests_total", "/v1/decisions", "200") not in samples(other)
        campaign = served.ask("GET", "/v1/campaign")[1]
    assert campaign["refusals"] == {"request_differs": 1}
    assert found["redenvelope_http_requests_total", "/v1/decisions", "200"] == 5
    assert found["redenvelope_http_requests_total", "/v1/decisions", "409"] == 1
    assert found["redenvelope_http_seconds_count", "/v1/decisions"] == 6
    assert found["redenvelope_http_seconds_bucket", "+Inf", "/v1/decisions"] == 6
    assert found["redenvelope_refusals_total", "request_differs"] == 1
    for action in {answer["action"] for answer in answers}:
        count = sum(answer["action"] == action for answer in answers)
        assert found["redenvelope_decisions_total", action] == count
    assert found["redenvelope_batched_decisions_total",] == 6
    for name in ("total", "spent", "held", "left"):
        assert found[f"redenvelope_budget_{name}", "budget"] == getattr(balance, name)
    assert ("redenvelope_price", "budget") in found
    assert "_created" not in text
    assert 'redenvelope_budget_total{budget="budget"} 123456789012\n' in text
    assert f'redenvelope_budget_left{{budget="budget"}} {balance.left}\n' in text


def test_every_answer_has_an_id(folder: Path, tmp_path: Path) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db") as served:
        given = [served.answer("GET", "/healthz")[2]["x-request-id"] for _ in range(3)]
        assert len(set(given)) == 3
        assert served.answer("GET", "/healthz", headers={"x-request-id": "mine-1"})[2]["x-request-id"] == "mine-1"
        odd = {"x-request-id": "a" * 65}
        assert served.answer("GET", "/healthz", headers=odd)[2]["x-request-id"] not in (odd["x-request-id"], *given)


def test_the_log_is_json_where_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    process = Process(folder, f"sqlite:///{tmp_path}/l.db", "--log-format", "json", "--wrong-features", "count")
    Running(process.port, None).decide("r", "u", {"taste": 0.5, "hobby": "line\nbreak"})  # type: ignore[arg-type]
    with closing(HTTPConnection("127.0.0.1", process.port)) as connection:
        connection.request("GET", "/v1/campaign", headers={"x-request-id": "mine"})
        connection.getresponse().read()
    process.process.send_signal(signal.SIGTERM)
    _, written = process.process.communicate(timeout=60)
    lines = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    answered = [line for line in lines if line["message"] == "answered"]
    assert [line["path"] for line in answered] == ["/v1/decisions", "/v1/campaign"]
    assert answered[1]["request_id"] == "mine"
    assert {"time", "level", "method", "status", "client", "milliseconds"} <= answered[0].keys()
    assert any("'hobby'" in line["message"] for line in lines)

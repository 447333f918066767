"""Metrics as Prometheus reads them: one registry per service, balances as they are in the ledger."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.serve.running import Running, running

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
    assert 'redenvelope_budget_total{budget="budget"} 1.23456789012e+11' in text

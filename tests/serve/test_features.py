"""Features of requests against those of the plan: what is unknown, missing or of another type is refused or counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redenvelope import Plan, UsageError, open_ledger
from redenvelope.log.encoding.layout import CategoryEncoding, NumberEncoding
from redenvelope.serve.active_plan import ExpectedFeatures
from redenvelope.serve.funds import charge_table_of
from redenvelope.serve.settings import ServeSettings
from tests.serve.running import Running, running

ROW = {"taste": 0.5, "city": "Lyon"}


@pytest.fixture(scope="module")
def strict(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(folder, f"sqlite:///{tmp_path_factory.mktemp('ledger')}/l.db") as served:
        yield served


@pytest.mark.parametrize(
    ("features", "code", "said"),
    [
        ({**ROW, "tastes": 0.5}, "unknown_feature", ["'tastes'", "'taste'"]),
        ({"city": "Lyon"}, "missing_feature", ["'taste' is missing", "a number"]),
        ({"taste": 0.5}, "missing_feature", ["'city' is missing", "text", "null"]),
        ({}, "missing_feature", ["'taste' is missing", "'city' is missing"]),
        ({**ROW, "taste": None}, "missing_feature", ["'taste' is null", "a number"]),
        ({**ROW, "taste": "thirty"}, "wrong_type", ["'taste' is text", "expected a number"]),
        ({**ROW, "taste": "0.5"}, "wrong_type", ["'taste' is text", "expected a number"]),
        ({**ROW, "taste": 1e39}, "wrong_type", ["'taste' is a number too large"]),
        ({**ROW, "city": 7}, "wrong_type", ["'city' is a number", "expected text"]),
        ({**ROW, "city": True}, "wrong_type", ["'city' is true or false", "expected text"]),
        *(
            ({**ROW, name: 1}, "unknown_feature", ["reserved name", name])
            for name in ("user", "step", "expired", "eligible", "price", "price of coupons", "plan", "cost", "reward")
        ),
    ],
)
def test_it_is_refused_with_what_was_expected(
    strict: Running, features: dict[str, Any], code: str, said: list[str]
) -> None:
    status, error = strict.ask("POST", "/v1/decisions", {"request_id": "r", "user": "u", "features": features})
    assert (status, error["code"]) == (422, code)
    for words in said:
        assert words in f"{error['message']}; {error['remedy']}"


@pytest.mark.parametrize(
    "features", [ROW, {**ROW, "city": None}, {"taste": 1, "city": "nowhere"}, {**ROW, "taste": True}]
)
def test_what_the_plan_can_read_is_decided(strict: Running, features: dict[str, Any]) -> None:
    user = json.dumps(features)
    assert strict.decide(user, user, features)[0] == 200


def test_a_request_that_was_answered_is_answered_again_whatever_is_expected_now(folder: Path, url: str) -> None:
    with running(folder, url, settings=ServeSettings(wrong_features="count")) as served:
        first = served.decide("r", "u", {"taste": 0.5, "hobby": "chess"})
        assert first[0] == 200
    with running(folder, url) as served:
        assert served.decide("r", "u", {"taste": 0.5, "hobby": "chess"}) == first
        assert served.decide("s", "u", {"taste": 0.5, "hobby": "chess"})[1]["code"] == "unknown_feature"


def test_counted_features_are_reported_and_never_stored(
    folder: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(folder, url, settings=ServeSettings(wrong_features="count")) as served:
        for turn in range(5):
            strange = {f"x{turn}-{number}": number for number in range(300)}
            assert served.decide(f"r{turn}", turn, {**ROW, **strange, "expired": True})[0] == 200
        assert served.decide("text", "text", {"taste": "thirty", "city": 7})[0] == 200
        assert served.decide("less", "less", {"taste": 0.5})[0] == 200
        assert served.decide("as text", "one", {**ROW, "taste": "0.5"})[0] == 200
        counted = served.ask("GET", "/v1/campaign")[1]["wrong_features"]
        metrics = served.ask("GET", "/metrics")[1]
        stored = [json.loads(line)["features"] for line in served.answer("GET", "/v1/log")[1].splitlines()]
    assert {(one["code"], one["feature"]): one["count"] for one in counted} == {
        ("unknown_feature", ""): 5 * 301,
        ("wrong_type", "taste"): 2,
        ("wrong_type", "city"): 1,
        ("missing_feature", "city"): 1,
    }
    assert 'redenvelope_wrong_features_total{code="wrong_type",feature="taste"} 2.0' in metrics
    assert stored[:5] == [ROW] * 5
    assert stored[5:] == [{"taste": None, "city": None}, {"taste": 0.5}, ROW]
    warned = [record for record in caplog.records if "features of requests" in record.getMessage()]
    assert len(warned) == 20 + 3


def expected_of(plan: Plan, **changes: Any) -> ExpectedFeatures:
    charges = charge_table_of(plan, ["budget"], None, ServeSettings())
    encoder = replace(plan.policy.encoder, **changes)
    return ExpectedFeatures(replace(plan, policy=replace(plan.policy, encoder=encoder)), charges)


NAMES = ["expired", "price", "plan", "price of coupons", "cost", "holdout", "past as decided", "all labels"]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_whose_feature_is_a_column_of_the_log_is_not_served(plan: Plan, name: str) -> None:
    number = NumberEncoding(name, 0.0, 1.0, static=True, binary=False, missing_seen=False)
    with pytest.raises(UsageError, match=f"feature '{name}'"):
        expected_of(plan, numbers=(number,))


@pytest.mark.parametrize("column", ["price", "step", "user", "expired", "holdout", "price of x"])
def test_a_plan_whose_budget_sums_a_column_of_the_log_is_not_served(plan: Plan, column: str) -> None:
    """What was paid would be lost from the next log, or replace what it says of the decision."""
    charges = charge_table_of(plan, ["budget"], None, ServeSettings())
    for measure in ("fees", "reward", ""):
        ExpectedFeatures(plan, replace(charges, budgets=(replace(charges.budgets[0], measure=measure),)))
    with pytest.raises(UsageError, match=f"'{column}', which is a column of the log"):
        ExpectedFeatures(plan, replace(charges, budgets=(replace(charges.budgets[0], measure=column),)))


def test_labels_that_are_numbers_and_features_made_of_dates(plan: Plan) -> None:
    days = NumberEncoding("joined_days_before_sent", 0.0, 1.0, static=True, binary=False, missing_seen=False)
    expected = expected_of(plan, numbers=(days,), categories=(CategoryEncoding("level", ("1", "2"), static=True),))
    good: dict[str, Any]
    for good in (
        {"joined_days_before_sent": 3, "level": "1"},
        {"joined": "2026-01-01", "sent": "2026-01-04", "level": 1},
    ):
        kept, faults = expected.admitted(good)
        assert faults == []
        assert kept == {**good, "level": "1"}
    for bad, code in (
        ({"joined": "2026-01-01", "level": "1"}, "missing_feature"),
        ({"joined": "soon", "sent": "2026-01-04", "level": "1"}, "missing_feature"),
        ({"joined_days_before_sent": 3, "level": 7}, "wrong_type"),
        ({"joined_days_before_sent": 3, "level": "1", "sen": "2026-01-04"}, "unknown_feature"),
    ):
        assert [fault.code for fault in expected.admitted(bad)[1]] == [code]


def test_the_number_of_features_is_bounded(strict: Running) -> None:
    many = {f"f{number}": 0 for number in range(2_001)}
    status, error = strict.decide("r", "u", many)
    assert (status, error["code"]) == (422, "invalid_request")
    assert "2000" in error["message"]


def test_stored_features_are_those_of_the_plan_on_disk(folder: Path, url: str) -> None:
    with running(folder, url) as served:
        assert served.decide("r", "u", ROW)[0] == 200
    ledger = open_ledger(url)
    (row,) = ledger.decided()
    ledger.close()
    assert json.loads(row.features) == ROW

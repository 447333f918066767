"""Decisions and outcomes over HTTP, on both databases: what is answered is in the books, and once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from redenvelope import Decider, Plan, open_ledger
from redenvelope.ledger.ledger import verify
from redenvelope.serve.settings import ServeSettings
from tests.ledger.postgres_server import PostgresServer
from tests.serve.coupons import Coupons
from tests.serve.running import Running, running


class Moved:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Moved:
    return Moved()


@pytest.fixture
def served(folder: Path, url: str, clock: Moved) -> Iterator[Running]:
    with running(folder, url, clock=clock, settings=ServeSettings()) as found:
        yield found
    ledger = open_ledger(url)
    assert verify(ledger).is_sound
    ledger.close()


def test_a_user_is_decided_for_and_settled(served: Running, plan: Plan) -> None:
    status, first = served.decide("r1", 7)
    assert status == 200
    assert first.keys() == {
        "decision_id",
        "request_id",
        "user",
        "step",
        "action",
        "propensity",
        "hold",
        "prices",
        "plan",
    }
    expected = Decider(plan).decide({"user": 7, "step": 0, "taste": 0.9, "city": "Lyon"})
    assert first["action"] == expected.action
    assert first["propensity"] == pytest.approx(expected.propensity, abs=1e-5)
    assert first["hold"]["amount"] == {"nothing": 0, "1 €": 100, "3 €": 300}[first["action"]]
    assert served.decide("r1", 7) == (200, first)
    assert served.decide("r1", "7.0") == (200, first)  # the same user, written otherwise
    assert served.decide("r1", 8)[1]["code"] == "request_differs"
    status, settled = served.settle(first["decision_id"], first["hold"]["amount"])
    assert (status, settled["status"]) == (200, "settled" if first["hold"]["amount"] else "released")
    assert served.settle(first["decision_id"], first["hold"]["amount"]) == (200, settled)
    for name in ("budget", plan.certificate.budgets[0].name):  # one budget, whatever it is called
        assert served.settle(first["decision_id"], {name: first["hold"]["amount"]}) == (200, settled)
    assert served.settle(first["decision_id"], {"coins": first["hold"]["amount"]})[0] == 422
    assert served.settle(first["decision_id"], 17)[1]["code"] == "outcome_differs"
    assert served.settle("d99", 0)[1]["code"] == "unknown_decision"


def test_the_service_keeps_the_step(served: Running) -> None:
    steps = [served.decide(f"r{turn}", "u")[1] for turn in range(3)]
    assert [one.get("step") for one in steps] == [0, 1, None]
    assert steps[2]["code"] == "campaign_over"
    assert served.decide("r1", "u")[1] == steps[1]  # asked again at the end, answered as before
    assert served.decide("s", "v", step=1)[1]["step"] == 1
    assert served.decide("t", "v", step=1)[1]["code"] == "step_taken"
    assert served.decide("t", "v", step=7)[1]["code"] == "invalid_request"


def test_many_at_once_are_decided_as_one_by_one(served: Running, plan: Plan) -> None:
    rows = Coupons().users(60, seed=5).to_dicts()
    asked = [
        {"request_id": f"b{row['user']}", "user": row["user"], "features": {"taste": row["taste"], "city": row["city"]}}
        for row in rows
    ]
    status, found = served.ask("POST", "/v1/decisions/batch", {"decisions": [*asked, asked[0]]})
    assert status == 200
    decider = Decider(plan)
    alone = [decider.decide({**row, "step": 0}) for row in rows]
    assert [one["action"] for one in found["answers"][:-1]] == [one.action for one in alone]
    np.testing.assert_allclose(
        [one["propensity"] for one in found["answers"][:-1]], [one.propensity for one in alone], atol=2e-4
    )
    assert found["answers"][-1] == found["answers"][0]
    outcomes = [{"decision_id": one["decision_id"], "reward": 0.5, "amount": 0} for one in found["answers"][:-1]]
    status, settled = served.ask(
        "POST", "/v1/outcomes/batch", {"outcomes": [*outcomes, {**outcomes[0], "amount": 10**6}]}
    )
    assert {one["status"] for one in settled["answers"][:-1]} == {"released"}
    assert settled["answers"][-1]["code"] == "outcome_differs"
    lines = served.answer("GET", "/v1/log?limit=5")[1].splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["decision_id"] for row in rows] == [one["decision_id"] for one in found["answers"][:5]]
    assert {row["change"] for row in rows} == {"decide"}


def test_holds_expire_by_the_clock(served: Running, clock: Moved) -> None:
    decided = [served.decide(f"r{place}", place)[1] for place in range(10)]
    held = served.ask("GET", "/v1/campaign")[1]["budgets"][0]["held"]
    assert held == sum(one["hold"]["amount"] for one in decided) > 0
    clock.now += served.service.settings.hold_milliseconds
    for _ in range(100):
        campaign = served.ask("GET", "/v1/campaign")[1]
        if campaign["budgets"][0]["held"] == 0:
            break
        __import__("time").sleep(0.05)
    assert campaign["budgets"][0] | {"total": 0} == {
        "budget": "budget",
        "total": 0,
        "spent": 0,
        "held": 0,
        "left": 100_000,
        "user_cap": None,
        "counts_actions": False,
        "minor_units": 100,
    }
    late = next(one for one in decided if one["hold"]["amount"])
    assert served.settle(late["decision_id"], late["hold"]["amount"])[0] == 200


def test_clients_race_for_the_last_units(folder: Path, url: str) -> None:
    with running(folder, url, total=1_000) as served:

        def client(number: int) -> int:
            spent = 0
            for turn in range(2):
                status, one = served.decide(f"{number}-{turn}", number)
                assert status == 200
                if one["hold"]["amount"]:
                    assert served.settle(one["decision_id"], one["hold"]["amount"])[0] == 200
                    spent += one["hold"]["amount"]
            return spent

        with ThreadPoolExecutor(16) as clients:
            spent = sum(clients.map(client, range(64)))
        budget = served.ask("GET", "/v1/campaign")[1]["budgets"][0]
        assert budget["spent"] == spent <= 1_000
        assert budget["left"] < 100  # with less, only what is free is given
        status, last = served.decide("last", "last")
        assert (status, last["action"], last["propensity"]) == (200, "nothing", 1.0)


def test_a_cap_a_user_is_kept(folder: Path, tmp_path: Path) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db", user_cap=100) as served:
        answers = [served.decide(f"r{user}-{step}", user)[1] for user in range(20) for step in range(2)]
        assert {one["action"] for one in answers} == {"nothing", "1 €"}
        by_user = {
            user: sum(one["hold"]["amount"] for one in answers if one["user"] == str(user)) for user in range(20)
        }
        assert max(by_user.values()) == 100


def test_overbooking_holds_less_and_asks_again_when_it_settles(folder: Path, tmp_path: Path) -> None:
    settings = ServeSettings(mode="overbook", audience=None)
    with running(folder, f"sqlite:///{tmp_path}/l.db", total=400, settings=settings) as served:
        answers = [served.decide(f"r{user}", user)[1] for user in range(40)]
        offers = [one for one in answers if one["action"] != "nothing"]
        faces = {"1 €": 100, "3 €": 300}
        assert sum(faces[one["action"]] for one in offers) > 400
        # Some come to nothing, which leaves money for some of the others; not for all.
        assert {served.settle(one["decision_id"], 0)[0] for one in offers[::3]} == {200}
        rest = [one for place, one in enumerate(offers) if place % 3]
        results = [served.settle(one["decision_id"], faces[one["action"]]) for one in rest]
        assert {status for status, _ in results} == {200, 409}
        assert {one["code"] for status, one in results if status == 409} == {"nothing_left"}
        budget = served.ask("GET", "/v1/campaign")[1]["budgets"][0]
        assert budget["spent"] <= 400


def test_a_restart_goes_on_where_it_stopped(folder: Path, url: str) -> None:
    with running(folder, url) as served:
        first = served.decide("a", "u")[1]
    with running(folder, url) as served:
        assert served.decide("a", "u")[1] == first
        assert served.decide("b", "u")[1]["step"] == 1
        assert served.settle(first["decision_id"], 0)[0] == 200
        assert served.ask("GET", "/v1/campaign")[1]["decisions"] == 2


def test_two_processes_share_a_ledger(folder: Path, url: str) -> None:
    with running(folder, url, total=2_000) as one, running(folder, url, total=2_000) as other:

        def client(number: int) -> dict[str, object]:
            served = (one, other)[number % 2]
            return served.decide(f"r{number}", f"user {number // 4}")[1]

        with ThreadPoolExecutor(16) as clients:
            answers = list(clients.map(client, range(80)))
        decided = [(found["user"], found["step"]) for found in answers if "step" in found]
        assert len(set(decided)) == len(decided) == 40  # twenty users, two steps each, whoever asked
        assert {found["code"] for found in answers if "code" in found} == {"campaign_over"}
        assert one.ask("GET", "/v1/campaign")[1]["budgets"] == other.ask("GET", "/v1/campaign")[1]["budgets"]


def test_a_new_plan_is_taken_without_a_lost_request(folder: Path, tmp_path: Path) -> None:
    import shutil

    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(folder, first)
    Plan.load(folder).save(second, {})
    with running(first, f"sqlite:///{tmp_path}/l.db") as served:
        with ThreadPoolExecutor(4) as clients:
            asked = [clients.submit(served.decide, f"r{user}", user) for user in range(60)]
            swapped = served.ask("POST", "/v1/plan", {"plan": "second"})
        assert swapped[0] == 200
        assert {one.result()[0] for one in asked} == {200}
        assert served.service.folder == second
        for wrong in ("../first", "nowhere", ".", "a/b"):
            status, said = served.ask("POST", "/v1/plan", {"plan": wrong})
            assert (status, said["code"]) in ((422, "invalid_request"), (409, "plan_refused"))
        assert served.decide("still", "there")[0] == 200


def test_without_its_database_it_says_so_and_goes_on_when_it_is_back(folder: Path, postgres: PostgresServer) -> None:
    with running(folder, postgres.database()) as served:
        first = served.decide("a", "u")[1]
        postgres.stop()
        try:
            for status, said in (served.decide("b", "v"), served.settle(first["decision_id"], 0)):
                assert (status, said["code"]) == (503, "unavailable")
                assert "PostgreSQL" in said["message"]
            status, said = served.ask("GET", "/readyz")
            # Who asks without a token learns nothing of the database.
            assert (status, said["code"]) == (503, "not_ready") and "PostgreSQL" not in said["message"]
        finally:
            postgres.start()
        # A connection that was lost is noticed once, and made anew.
        assert 200 in [served.decide("b", "v")[0] for _ in range(3)]
        deadline = time.monotonic() + 20  # a result is used for a second
        while served.ask("GET", "/readyz")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert served.decide("a", "u")[1] == first

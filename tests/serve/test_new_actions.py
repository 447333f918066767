"""A new coupon from the first decision to the next plan: offered by the service, held at its face value, then known."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from redenvelope import Budget, Campaign, NewAction, Plan, Rule, read_log
from redenvelope.ledger.records import Fund
from tests.program import run_here
from tests.serve.conftest import BUDGET, make_plan
from tests.serve.running import running

SHARE, USERS = 0.1, range(500, 600)
FUNDS = (Fund("money", 500_000, 0), Fund("coupons", 5_000, 0))


@pytest.fixture(scope="module")
def introducing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("introducing") / "plan"
    budgets = (Budget("money", per_user=BUDGET + 1.2), Budget("coupons", count=("1 €", "3 €"), per_user=1.5))
    new = (NewAction("5 €", like="3 €", at_most=5.0, share=SHARE),)
    make_plan(folder, explore=0.1, campaign=Campaign(budgets=budgets, rules=(Rule(("3 €",), at_most=1),), new=new))
    return folder


def test_the_service_offers_it_and_the_next_log_knows_it(introducing: Path, tmp_path: Path) -> None:
    url, features = f"sqlite:///{tmp_path}/l.db", {"taste": 0.9, "city": "Lyon"}
    plan = Plan.load(introducing)
    table = pl.DataFrame({"user": list(USERS), "step": 0, "taste": 0.9, "city": "Lyon"})
    decided = dict(zip(USERS, plan.allocate(table)[0]["action"], strict=True))
    with running(introducing, url, funds=FUNDS) as service:
        given = set()
        for user in USERS:
            status, answer = service.decide(f"r{user}", user, features)
            assert status == 200
            assert answer["action"] == decided[user], "as in a table: the ledger's first seed is 0"
            if answer["action"] == "5 €":
                given.add(user)
                assert answer["propensity"] == pytest.approx(SHARE)
                assert answer["hold"]["amounts"] == {"money": 500, "coupons": 1}
            amounts = {name: own // 2 if name == "money" else own for name, own in answer["hold"]["amounts"].items()}
            assert service.settle(answer["decision_id"], amounts, reward=user % 2)[0] == 200
        assert 2 <= len(given) <= 25  # ten on average, with a standard error of three
        for user in given:  # the rule allows one "3 €" per user, and the new coupon counts as one
            status, answer = service.decide(f"s{user}", user, features)
            assert (status, answer["action"] in ("nothing", "1 €")) == (200, True)
            service.settle(answer["decision_id"], dict.fromkeys(answer["hold"]["amounts"], 0))
    out = tmp_path / "log.parquet"
    assert run_here("ledger", "export", url, "--out", out).returncode == 0
    log = read_log(out, {"ignore": ["price", "price of coupons", "plan"]})
    assert "5 €" in log.catalogue.labels


def test_what_may_be_asked_for(introducing: Path, tmp_path: Path) -> None:
    with running(introducing, f"sqlite:///{tmp_path}/l.db", funds=FUNDS) as one:
        actions = [one.decide(f"r{user}", user, eligible=["nothing", "1 €"])[1]["action"] for user in range(60)]
        assert set(actions) <= {"nothing", "1 €"}
        assert one.decide("r", 1_000, eligible=["nothing", "5 €"])[0] == 200

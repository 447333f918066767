"""A control group in a served campaign: decided as in a table, marked in the export, and comparable."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from redenvelope import Budget, Campaign, Plan, read_log
from tests.program import run_here
from tests.serve.conftest import BUDGET, make_plan
from tests.serve.running import running

USERS = 120


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held") / "plan"
    campaign = Campaign(budgets=(Budget("cost", column="cost", per_user=BUDGET),), holdout=0.3)
    make_plan(folder, explore=0.1, campaign=campaign)
    return folder


def test_the_control_group_of_a_served_campaign(held: Path, tmp_path: Path) -> None:
    url, features = f"sqlite:///{tmp_path}/l.db", {"taste": 0.9, "city": "Lyon"}
    table = pl.DataFrame({"user": range(USERS), "step": 0, "taste": 0.9, "city": "Lyon"})
    decided = Plan.load(held).allocate(table)[0]
    control = set(decided.filter("holdout")["user"])
    assert 0 < len(control) < USERS
    with running(held, url) as service:
        for user in range(USERS):
            status, answer = service.decide(f"r{user}", user, features)
            assert status == 200
            assert (answer["prices"] == []) == (user in control)
            if user in control:
                assert (answer["action"], answer["propensity"]) == ("nothing", 1.0)
            assert service.settle(answer["decision_id"], answer["hold"]["amount"], reward=user % 2)[0] == 200
        assert service.decide("r0", 0, features)[1]["step"] == 0  # asked again, answered the same
    out = tmp_path / "log.parquet"
    assert run_here("ledger", "export", url, "--out", out).returncode == 0
    written = pl.read_parquet(out)
    assert set(written.filter("holdout")["user"]) == control
    assert written.filter("holdout")["price"].null_count() == len(control)
    assert len(read_log(out, {"ignore": ["price", "plan"]}).users) == USERS - len(control)
    compared = run_here("compare", out, "--plan", held, "--json")
    arms = json.loads(compared.stdout)["arms"]
    assert [arm["users"] for arm in arms] == [USERS - len(control), len(control)]


def test_without_a_control_group_nothing_is_marked(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with running(folder, url) as service:
        _, answer = service.decide("r1", 7)
        service.settle(answer["decision_id"], 0)
    assert run_here("ledger", "export", url, "--out", tmp_path / "log.parquet").returncode == 0
    assert "holdout" not in pl.read_parquet(tmp_path / "log.parquet").columns

"""The log of a campaign with rules and two budgets, played against a live service, makes the next plan unaided."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from redenvelope import Budget, Campaign, Ledger, Plan, Rule, open_ledger
from redenvelope.cli import app
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Fund
from redenvelope.serve.active_plan import DecisionQuery, LoadedPlan
from redenvelope.serve.settings import ServeSettings
from tests.serve.conftest import make_plan
from tests.serve.coupons import LABELS, STEPS, Coupons
from tests.serve.running import Running, running

USERS = 3_000
BUDGETS = (Budget("coupons", per_user=0.5), Budget("messages", count=("1 €", "3 €"), per_user=0.9))
RULES = (Rule(("3 €",), only_where="city == 'Lyon' or taste > 0.5"), Rule(("3 €",), at_most=1))


@dataclass(frozen=True)
class Campaigned:
    """A campaign that is over."""

    url: str
    plan: Path
    earned: float
    paid: int
    sent: int


@pytest.fixture(scope="module")
def campaigned(tmp_path_factory: pytest.TempPathFactory) -> Campaigned:
    folder = tmp_path_factory.mktemp("campaign")
    # What is never tried cannot be learned from.
    make_plan(folder / "plan", campaign=Campaign(budgets=BUDGETS, rules=RULES, explore=0.3))
    url = f"sqlite:///{folder}/l.db"
    funds = [Fund("coupons", 50 * USERS, 0), Fund("messages", USERS, 0)]
    with running(folder / "plan", url, funds=funds, settings=ServeSettings(audience=USERS)) as served:
        return Campaigned(url, folder / "plan", *played(served, Coupons().users(USERS, 4).to_dicts()))


def played(served: Running, people: list[dict[str, Any]]) -> tuple[float, int, int]:
    """All users decide and report, some of them late: their first outcome comes after their second decision."""
    world, chance, earned, paid, sent = Coupons(), np.random.default_rng(4), 0.0, 0, 0
    late: list[dict[str, Any]] = []
    for first in range(0, len(people), 250):
        some = people[first : first + 250]
        for step in range(STEPS):
            asked = [
                {"request_id": f"{row['user']}-{step}", "user": row["user"], "features": _features(row)} for row in some
            ]
            status, found = served.ask("POST", "/v1/decisions/batch", {"decisions": asked})
            assert status == 200
            outcomes = []
            for row, answer in zip(some, found["answers"], strict=True):
                reward, amount = world.happen(row, LABELS.index(answer["action"]), step, chance)
                earned, paid, sent = earned + reward, paid + amount, sent + (answer["action"] != "nothing")
                outcome = {"decision_id": answer["decision_id"], "reward": reward, "amount": amount}
                (late if step == 0 and row["user"] % 5 == 0 else outcomes).append(outcome)
            if step:
                outcomes, late = outcomes + late, []
            status, settled = served.ask("POST", "/v1/outcomes/batch", {"outcomes": outcomes})
            assert status == 200 and not [one for one in settled["answers"] if "code" in one]
    return earned, paid, sent


def _features(row: dict[str, Any]) -> dict[str, Any]:
    return {"taste": row["taste"], "city": row["city"]}


def ledger_of(campaigned: Campaigned) -> Ledger:
    return open_ledger(campaigned.url, create=False)


@pytest.fixture(scope="module")
def exported(campaigned: Campaigned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported log, with its campaign file beside it."""
    out = tmp_path_factory.mktemp("exported") / "log.parquet"
    ledger = ledger_of(campaigned)
    assert verify(ledger).is_sound
    ledger.close()
    done = CliRunner().invoke(app, ["ledger", "export", campaigned.url, "--out", str(out), "--json"])
    assert json.loads(done.output)["rows"] == STEPS * USERS
    return out


def test_the_log_is_audited_without_findings(campaigned: Campaigned, exported: Path) -> None:
    frame, campaign = pl.read_parquet(exported), exported.parent / "campaign.toml"
    written = Campaign.from_toml(campaign)
    assert (written.budgets, written.rules) == (BUDGETS, RULES)
    assert {"eligible", "price", "price of messages", "past as decided", "taste", "city"} <= set(frame.columns)
    assert frame.select(pl.col("eligible").list.contains(pl.col("action")).all()).item()
    # What rules ruled out was never eligible.
    forbidden = frame.filter((pl.col("city") != "Lyon") & (pl.col("taste") <= 0.5))
    assert len(forbidden) and not forbidden.select(pl.col("eligible").list.contains("3 €").any()).item()
    assert frame["cost"].sum() == pytest.approx(campaigned.paid / 100)
    assert frame["reward"].sum() == pytest.approx(campaigned.earned)
    audited = CliRunner().invoke(app, ["audit", str(exported), "--campaign", str(campaign), "--json"])
    assert audited.exit_code == 0, audited.output
    assert json.loads(audited.output[audited.output.index("{") :])["findings"] == []


@pytest.mark.slow
def test_the_log_is_certified_again(exported: Path, tmp_path: Path) -> None:
    given = ["--campaign", str(exported.parent / "campaign.toml"), "--out", str(tmp_path / "next")]
    fitted = CliRunner().invoke(app, ["fit", str(exported), *given, "--json"])
    assert fitted.exit_code in (0, 4), fitted.output
    assert Plan.load(tmp_path / "next").certificate.status == "certified"


def test_every_decision_is_explained_by_what_is_stored_with_it(campaigned: Campaigned) -> None:
    """Features, past, eligible actions and prices as decided give the probabilities again, whatever was true later."""
    ledger = ledger_of(campaigned)
    decided = ledger.decided(0, 10**6)
    loaded = LoadedPlan(Plan.load(campaigned.plan), ledger.seed).warm()
    explained = 0
    for one in decided[:: len(decided) // 200]:
        mask = np.array([label in json.loads(one.eligible or "null") for label in LABELS]) if one.eligible else None
        # What could not be paid was left out of the plan's shares, which were scaled up; nothing was planned anew.
        query = DecisionQuery(int(one.user), one.step, json.loads(one.features), json.loads(one.state or "[]"), None)
        prices = tuple(json.loads(one.prices))
        pricing = loaded.plan.policy.pricing.__class__((prices,), (1.0,))
        (wanted,) = loaded.propose([query], pricing)
        shares = np.array(wanted.probabilities) * (1 if mask is None else mask)
        np.testing.assert_allclose(list(json.loads(one.probabilities).values()), shares / shares.sum(), atol=2e-4)
        explained += 1
    ledger.close()
    assert explained > 190

"""A plan of two budgets in use: money that is paid when a coupon is redeemed, and messages, which are spent when they
are sent. Both are kept, whatever the world does; and prices are those of the best mixture for what is left of each."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from redenvelope import Decider, Plan, Pricing, UsageError, open_ledger
from redenvelope.ledger.export import log_frame
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Balance, Fund
from redenvelope.serve.funds import funded_budgets, funds_for
from redenvelope.serve.messages import DecisionAnswer, DecisionRequest, OutcomeRequest
from redenvelope.serve.pacing import Pacer, PriceMixer, Progress
from redenvelope.serve.service import Service
from redenvelope.serve.settings import PacingSettings, ServeSettings
from tests.ledger.asking import rows
from tests.program import run_here
from tests.serve.conftest import LIMITS
from tests.serve.coupons import LABELS, STEPS, Coupons
from tests.serve.running import Running, running

MONEY, COUNT = "coupons", "messages"


@pytest.fixture(scope="module")
def both(two_budgets: Path) -> Plan:
    return Plan.load(two_budgets)


def funds(money: int, count: int, cap: int | None = None) -> list[Fund]:
    return [Fund(COUNT, count, 0, cap), Fund(MONEY, money, 0)]


def given(served: Running, users: int, first: int = 0) -> list[dict[str, Any]]:
    """Decisions of users with a taste for coupons."""
    content = [
        {"request_id": f"r{user}", "user": user, "features": {"taste": 0.95, "city": "Lyon"}}
        for user in range(first, first + users)
    ]
    status, answers = served.ask("POST", "/v1/decisions/batch", {"decisions": content})
    assert status == 200
    return list(answers["answers"])


def test_each_budget_is_held_by_its_name_and_what_is_counted_is_spent(two_budgets: Path, both: Plan, url: str) -> None:
    with running(two_budgets, url, funds=funds(100_000, 1_000)) as served:
        answers = given(served, 40)
        decider = Decider(both)
        for user, one in enumerate(answers):
            expected = decider.decide({"user": user, "step": 0, "taste": 0.95, "city": "Lyon"})
            assert one["action"] == expected.action
            assert one["propensity"] == pytest.approx(expected.propensity, abs=1e-4)
            face = {"nothing": 0, "1 €": 100, "3 €": 300}[one["action"]]
            wanted = {MONEY: face, COUNT: 1} if face else {}
            assert one["hold"]["amounts"] == wanted
            assert one["hold"]["amount"] == face, "cents and messages do not add up"
            assert len(one["prices"]) == 2
        sent = [one for one in answers if one["action"] != "nothing"]
        assert len(sent) > 3, "or this test says little"
        redeemed, kept, named = sent[:3]
        amount = redeemed["hold"]["amounts"][MONEY]
        # A number is of the only budget that is paid; what was counted stays counted.
        assert served.settle(redeemed["decision_id"], amount)[1]["amounts"] == {MONEY: amount, COUNT: 1}
        assert served.settle(kept["decision_id"], 0)[1] == {
            "decision_id": kept["decision_id"],
            "status": "released",
            "reward": 1.0,
            "amount": 0,
            "amounts": {MONEY: 0, COUNT: 1},
            "units": {MONEY: "minor units", COUNT: "actions"},
        }
        assert served.settle(named["decision_id"], {MONEY: 100, COUNT: 0})[1]["amounts"] == {MONEY: 100, COUNT: 0}
        assert served.settle(named["decision_id"], {MONEY: 100, COUNT: 0})[0] == 200
        assert served.settle(named["decision_id"], {MONEY: 100, COUNT: 1})[1]["code"] == "outcome_differs"
        assert served.settle(answers[0]["decision_id"], {"pushes": 1})[1]["code"] == "invalid_request"
        _, campaign = served.ask("GET", "/v1/campaign")
        balances = {one["budget"]: one for one in campaign["budgets"]}
        held = sum(one["hold"]["amounts"].get(MONEY, 0) for one in answers if one not in sent[:3])
        assert list(balances) == [MONEY, COUNT]
        assert (balances[MONEY]["spent"], balances[MONEY]["held"]) == (amount + 100, held)
        assert (balances[COUNT]["spent"], balances[COUNT]["held"]) == (len(sent) - 1, 0)
        assert balances[COUNT]["counts_actions"] and balances[COUNT]["minor_units"] == 1
        assert campaign["price"]["budgets"] == [MONEY, COUNT]
        assert set(campaign["frontiers"]) == {MONEY, COUNT}
        metrics = served.ask("GET", "/metrics")[1]
        assert f'redenvelope_budget_spent{{budget="{COUNT}"}} {len(sent) - 1}\n' in metrics
        assert f'redenvelope_price{{budget="{MONEY}"}}' in metrics
    ledger = open_ledger(url)
    assert verify(ledger).is_sound
    ledger.close()


def test_when_one_budget_is_used_up_only_what_it_does_not_pay_is_given(two_budgets: Path, tmp_path: Path) -> None:
    with running(two_budgets, f"sqlite:///{tmp_path}/l.db", funds=funds(100_000, 2)) as served:
        answers = given(served, 60)
        assert sum(one["action"] != "nothing" for one in answers) == 2
        assert all(one["propensity"] == 1.0 for one in answers[-10:])
        for row in rows(served.service.ledger, "SELECT action, propensity, probabilities FROM decisions"):
            shares = json.loads(row[2])
            assert row[1] == pytest.approx(shares[row[0]])
            assert sum(shares.values()) == pytest.approx(1.0)


def test_a_cap_of_one_budget_binds_each_user(two_budgets: Path, tmp_path: Path) -> None:
    with running(two_budgets, f"sqlite:///{tmp_path}/l.db", funds=funds(100_000, 1_000, cap=0)) as served:
        assert {one["action"] for one in given(served, 60)} == {"nothing"}


def test_prices_are_those_of_the_best_mixture_for_what_is_left(both: Plan) -> None:
    priced = both.record.priced
    prices = PriceMixer(both.ladder, priced)
    means = np.array([one.mean for one in priced]).T
    plans = {one.prices: place for place, one in enumerate(priced)}
    # What the plans cost on the check users is what the ladder's mixtures of them do.
    for rung in both.ladder.rungs:
        mixed = sum(each.share * means[:, plans[each.prices]] for each in rung.price_shares)
        np.testing.assert_allclose(mixed, rung.mean, rtol=1e-9)
    limits = np.array(list(LIMITS.values()))
    for factors in ((1.0, 1.0), (0.8, 1.0), (1.0, 0.8), (1.3, 0.8), (0.8, 1.2)):
        wanted = limits * factors
        found = prices.at(wanted)
        mixed = sum(share * means[:, plans[row]] for row, share in zip(found.prices, found.shares, strict=True))
        best = linprog(-means[0], means[1:], wanted, np.ones((1, means.shape[1])), [1.0])
        assert (mixed[1:] <= wanted * (1 + 1e-5)).all()
        assert mixed[0] == pytest.approx(-best.fun, abs=1e-5)
        assert len(found.shares) <= prices.rows == 3
    dear, cheap = prices.at(limits * (0.8, 1.2)), prices.at(limits * (1.3, 0.8))
    assert _mean(dear, 0) > _mean(cheap, 0), "less money, a higher price of money"
    assert _mean(dear, 1) < _mean(cheap, 1), "fewer messages, a higher price of messages"


def _mean(pricing: Pricing, budget: int) -> float:
    return sum(share * row[budget] for row, share in zip(pricing.prices, pricing.shares, strict=True))


def test_each_budget_moves_its_own_target(both: Plan) -> None:
    own = [one.cost.estimate for one in both.certificate.budgets]
    totals = [round(100 * own[0] * 1_000), round(own[1] * 1_000)]
    pacing = Pacer(both, PacingSettings(), 1_000, [100, 1])

    def look(money: float, messages: float, decided: int) -> None:
        """Shares of the totals; what money was expected is what was spent."""
        spent = round(money * totals[0])
        balances = (
            Balance(MONEY, totals[0], 0, spent, 0, 1_000 * spent, None, "cost"),
            Balance(COUNT, totals[1], 0, round(messages * totals[1]), 0, 0, None, "", 1),
        )
        pacing.solve(Progress(balances, (decided, decided)))

    look(0, 0, 0)
    assert [one.why for one in pacing.beliefs] == ["the plan's own price"] * 2
    assert pacing.pricing == both.policy.pricing
    # Half of the campaign: money went as planned, of the messages half as many again.
    look(0.5, 0.75, 500)
    money, count = pacing.beliefs
    assert money.target == pytest.approx(own[0])
    assert "within 2%" in money.why
    assert count.target == pytest.approx(0.9 * own[1])
    assert "at most 10%" in count.why
    assert count.wanted == pytest.approx(own[1] / 2, rel=1e-2)
    assert pacing.pricing == PriceMixer(both.ladder, both.record.priced).at(np.array([own[0], 0.9 * own[1]]))


async def campaign(
    folder: Path, url: str, totals: tuple[int, int], factors: tuple[float, float], paced: bool, users: int = 3_000
) -> tuple[int, int, float]:
    """Money and counts spent, and reward, in a world whose redemption goes from one factor to another."""
    settings = ServeSettings(audience=users, pacing=PacingSettings() if paced else None)
    service = Service(folder, open_ledger(url, seed=0), funds(*totals), settings)
    await service.start()
    world, chance, earned, sent = Coupons(), np.random.default_rng(4), 0.0, 0
    people = world.users(users, 4).to_dicts()
    for first in range(0, users, 50):
        factor = factors[0] + (factors[1] - factors[0]) * first / users
        for step in range(STEPS):
            some = people[first : first + 50]
            asked = [
                DecisionRequest(f"{row['user']}-{step}", row["user"], {"taste": row["taste"], "city": row["city"]})
                for row in some
            ]
            outcomes = []
            for row, answer in zip(some, await service.decide(asked), strict=True):
                assert isinstance(answer, DecisionAnswer), answer
                reward, amount = world.happen(row, LABELS.index(str(answer.action)), step, chance, factor)
                earned += reward
                sent += answer.action != "nothing"
                outcomes.append(OutcomeRequest(answer.decision_id, reward, amount))
            await service.settle(outcomes)
    money, count = service.ledger.balances()
    assert verify(service.ledger).is_sound
    assert (money.budget, count.budget, count.spent) == (MONEY, COUNT, sent)
    await service.stop()
    return money.spent, count.spent, earned


@pytest.mark.parametrize(
    "factors",
    [
        pytest.param((1.3, 1.3), id="dearer", marks=pytest.mark.slow),
        pytest.param((0.7, 0.7), id="cheaper", marks=pytest.mark.slow),
        pytest.param((0.7, 1.3), id="drifting"),
    ],
)
def test_both_budgets_are_kept_and_used_in_worlds_that_the_log_did_not_know(
    two_budgets: Path, tmp_path: Path, factors: tuple[float, float]
) -> None:
    totals = (150_000, 2_400)
    money, count, _ = asyncio.run(campaign(two_budgets, f"sqlite:///{tmp_path}/l.db", totals, factors, paced=True))
    assert money <= totals[0] and count <= totals[1]
    assert 0.97 * totals[0] <= money
    assert 0.97 * totals[1] <= count


def test_the_exported_log_has_the_budgets_columns(two_budgets: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    totals = (10_000, 160)
    money, _, earned = asyncio.run(campaign(two_budgets, url, totals, (1.0, 1.0), paced=True, users=200))
    ledger = open_ledger(url)
    frame = log_frame(ledger).frame
    ledger.close()
    assert frame["cost"].sum() == pytest.approx(money / 100)
    assert frame["reward"].sum() == earned
    assert f"price of {COUNT}" in frame.columns and COUNT not in frame.columns


def test_totals_are_given_by_name(both: Plan, two_budgets: Path, tmp_path: Path) -> None:
    budgets = funded_budgets(both, 100)
    found = funds_for(budgets, {COUNT: "2400", MONEY: "1500.50"}, {COUNT: "2"}, 5)
    assert [(one.budget, one.total, one.user_cap, one.measure, one.minor_units) for one in found] == [
        (MONEY, 150_050, None, "cost", 100),
        (COUNT, 2_400, 2, "", 1),
    ]
    for totals, said in (
        ({"": "100"}, "write NAME=AMOUNT"),
        ({MONEY: "100"}, f"--budget-total {COUNT}=AMOUNT"),
        ({MONEY: "100", COUNT: "1.5"}, "with at most 0 decimals"),
        ({MONEY: "100", COUNT: "1", "pushes": "2"}, "no budget 'pushes'"),
    ):
        with pytest.raises(UsageError, match=said):
            funds_for(budgets, totals, {}, 0)
    refused = run_here("serve", two_budgets, "--ledger", f"sqlite:///{tmp_path}/l.db", "--budget-total", "100")
    assert refused.returncode == 2
    assert "write NAME=AMOUNT" in refused.stderr
    assert not (tmp_path / "l.db").exists()

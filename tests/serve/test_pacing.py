"""Pacing: by hand on a ladder of three rungs, then a whole campaign in worlds that the log did not know."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from redenvelope import open_ledger
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Balance, Fund
from redenvelope.plan.ladder import Place
from redenvelope.serve.messages import DecisionAnswer, DecisionRequest, OutcomeRequest
from redenvelope.serve.pacing import Belief, Pacer, Progress, place_for, users_to_come
from redenvelope.serve.service import Service
from redenvelope.serve.settings import PacingSettings, ServeSettings
from tests.report.plans import certificate, ladder, plan
from tests.serve.coupons import LABELS, STEPS, Coupons


@pytest.mark.parametrize(
    ("cost", "place"),
    [
        (0.5, Place(0)),
        (1.0, Place(0)),
        (2.5, Place(0, 0.5)),
        (4.0, Place(1, 0.0)),
        (6.5, Place(1, 0.5)),
        (99.0, Place(2)),
    ],
)
def test_a_cost_has_its_place_on_the_ladder(cost: float, place: Place) -> None:
    assert place_for(ladder(), cost) == place


def test_users_to_come_are_counted_by_what_their_steps_cost() -> None:
    weights = np.array([0.75, 0.25])
    assert users_to_come(100, (0, 0), weights) == 100
    assert users_to_come(100, (100, 0), weights) == 25
    assert users_to_come(100, (100, 120), weights) == 0


def pacer(**changes: object) -> Pacer:
    """Of a plan that costs 4 a user: its two steps cost 1 and 2 of 3; 1,000 users."""
    made = plan(certificate=certificate(cost=certificate().cost.__class__(4.0, 3.9, 4.1, 0.1, "marginalised")))
    made.policy.encoder = type("Encoder", (), {"first_step": 0})()
    made.policy.source = type("Source", (), {"charges": None})()
    return Pacer(made, PacingSettings(**changes), 1_000, [100])  # type: ignore[arg-type]


def progress(spent: int, believed: int, decided: tuple[int, int], total: int = 400_000, open_ones: int = 0) -> Progress:
    """Of amounts in cents: `believed` of what is closed, `open_ones` of what is not."""
    balance = Balance("budget", total, 0, spent, 1_000 * open_ones, 1_000 * believed, None, "cost")
    return Progress((balance,), decided)


def belief_of(pacing: Pacer) -> Belief:
    (found,) = pacing.beliefs
    return found


def test_as_planned_the_price_stays() -> None:
    pacing = pacer()
    assert not pacing.solve(progress(0, 0, (0, 0)))
    # Half of the users have had their first step, a third of the cost: 1/6 of the total.
    assert not pacing.solve(progress(66_667, 66_667, (500, 0)))
    assert belief_of(pacing).cost_ratio == pytest.approx(1.0, abs=1e-5)
    assert "within 2%" in belief_of(pacing).why


def test_a_dear_world_moves_down_the_ladder_by_bounded_steps() -> None:
    pacing = pacer()
    pacing.solve(progress(0, 0, (0, 0)))
    assert pacing.solve(progress(100_000, 66_667, (500, 0)))
    belief = belief_of(pacing)
    # The prior of 2 % of the total counts as belief.
    assert belief.cost_ratio == pytest.approx(108_000 / 74_667, rel=1e-3)
    assert belief.wanted == pytest.approx(3_000 / (1_000 * 5 / 6))
    assert belief.target == pytest.approx(4.0 * 0.9)
    assert "at most 10%" in belief.why
    assert pacing.pricing == ladder().pricing(place_for(ladder(), 3.6))
    pacing.solve(progress(100_000, 66_667, (500, 0)))
    assert belief_of(pacing).target == pytest.approx(max(4.0 * 0.81, 3.6 / belief.cost_ratio))


def test_money_that_open_holds_will_cost_is_not_given_twice() -> None:
    one, other = pacer(), pacer()
    for each, open_ones in ((one, 0), (other, 40_000)):
        each.solve(progress(0, 0, (0, 0)))
        each.solve(progress(20_000, 20_000, (300, 0), open_ones=open_ones))
    assert belief_of(one).free - belief_of(other).free == pytest.approx(400.0)


def test_another_budget_begins_at_another_place() -> None:
    pacing = pacer()
    assert pacing.solve(progress(0, 0, (0, 0), total=250_000))
    assert pacing.pricing == ladder().pricing(Place(0, 0.5))


def test_when_nobody_is_expected_any_more_it_says_so() -> None:
    pacing = pacer()
    assert not pacing.solve(progress(0, 0, (1_000, 1_000)))
    assert "nobody" in belief_of(pacing).why


async def campaign(
    folder: Path, url: str, users: int, total: int, factors: tuple[float, float], paced: bool, seed: int = 4
) -> tuple[int, float]:
    """Amount spent and reward earned in a world whose redemption goes from one factor to another, by users."""
    settings = ServeSettings(audience=users, pacing=PacingSettings() if paced else None)
    service = Service(folder, open_ledger(url, seed=0), [Fund("budget", total, 0)], settings)
    await service.start()
    world, chance, earned = Coupons(), np.random.default_rng(seed), 0.0
    rows = world.users(users, seed).to_dicts()
    for first in range(0, users, 20):
        some = rows[first : first + 20]
        factor = factors[0] + (factors[1] - factors[0]) * first / users
        for step in range(STEPS):
            asked = [
                DecisionRequest(f"{row['user']}-{step}", row["user"], {"taste": row["taste"], "city": row["city"]})
                for row in some
            ]
            outcomes = []
            for row, answer in zip(some, await service.decide(asked), strict=True):
                assert isinstance(answer, DecisionAnswer), answer
                reward, amount = world.happen(row, LABELS.index(str(answer.action)), step, chance, factor)
                earned += reward
                outcomes.append(OutcomeRequest(answer.decision_id, reward, amount))
            await service.settle(outcomes)
    ledger = service.ledger
    spent = ledger.balances()[0].spent
    assert verify(ledger).is_sound
    await service.stop()
    return spent, earned


@pytest.mark.parametrize(
    "factors",
    [
        pytest.param((1.3, 1.3), id="dearer", marks=pytest.mark.slow),
        pytest.param((0.7, 0.7), id="cheaper", marks=pytest.mark.slow),
        pytest.param((0.7, 1.3), id="drifting"),
    ],
)
def test_the_budget_is_spent_in_worlds_that_the_log_did_not_know(
    folder: Path, tmp_path: Path, factors: tuple[float, float]
) -> None:
    # 3,000 users of about 0.5 each; the last twenty of them alone could cost 1 % more or less than is left for them.
    total = 150_000
    spent, _ = asyncio.run(campaign(folder, f"sqlite:///{tmp_path}/paced.db", 3_000, total, factors, paced=True))
    assert 0.97 * total <= spent <= total

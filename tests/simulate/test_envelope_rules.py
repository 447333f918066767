"""The envelopes campaign with rules: its optimum against the linear program over states with counters."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Campaign, UsageError
from redenvelope.dual.column_generation import ColumnGeneration
from redenvelope.finite.linear_program import linear_program
from redenvelope.finite.problem import FiniteProblem, exact_price
from redenvelope.simulate.dynamics import STATES, EnvelopeParameters, state_rows
from redenvelope.simulate.envelopes import EnvelopeCampaign, RuledEnvelopes

SMALL = EnvelopeParameters(amounts=(0, 2, 5), steps=3)


def ruled(population: int = 1, seed: int = 0) -> RuledEnvelopes:
    campaign = EnvelopeCampaign(SMALL, population=population, population_seed=seed)
    return RuledEnvelopes(campaign, limits=(0.8, 0.9), large=("5",), most=1, least_tenure=200)


def as_finite(campaign: RuledEnvelopes, user: int) -> FiniteProblem:
    """One user's campaign written out: the state is the dynamic one and the number of large envelopes so far."""
    one = campaign.envelopes.users.take(np.array([user]))
    dynamics, counters = campaign.envelopes.dynamics, campaign.most + 1
    active = dynamics.activities(one)[0]
    used = active * one.consumption[0]
    rewards = np.tile(active, (counters, 1))
    money = np.tile(used * dynamics.amounts, (counters, 1))
    sent = np.broadcast_to(dynamics.sent, money.shape).astype(float)
    transitions = np.zeros((counters, STATES, 3, counters, STATES))
    for action in range(3):
        chances = (
            (1 - active[:, action], active[:, action])
            if not dynamics.sent[action]
            else (1 - active[:, action], active[:, action] - used[:, action], used[:, action])
        )
        events = (0, 1) if not dynamics.sent[action] else (2, 3, 4)
        moved = sum(chance[:, None] * dynamics.moves[event] for chance, event in zip(chances, events, strict=True))
        for given in range(counters):
            transitions[given, :, action, min(given + (action == 2), counters - 1)] = moved
    eligible = np.ones((counters, STATES, 3), dtype=bool)
    eligible[-1, :, 2] = False
    if one.features["tenure_days"][0] < campaign.least_tenure:
        eligible[..., 2] = False
    initial = np.zeros(counters * STATES)
    initial[int(state_rows(one.habits, one.fatigues, np.zeros_like(one.habits))[0])] = 1.0
    size = counters * STATES
    return FiniteProblem(
        rewards, np.stack([money, sent]), transitions.reshape(size, 3, size), initial, 3, eligible.reshape(size, 3)
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_the_linear_programs_over_states_with_counters(seed: int) -> None:
    campaign = ruled(seed=seed)
    problem = as_finite(campaign, 0)
    prices = np.array([[0.0, 0.0], [0.05, 0.0], [0.1, 0.2], [np.inf, 0.0], [0.02, 0.4]])
    np.testing.assert_allclose(campaign.price(prices), exact_price(problem)(prices), atol=1e-12)
    found = ColumnGeneration().solve(campaign.price, campaign.limits)
    exact = linear_program(problem, campaign.limits)
    assert found.reward == pytest.approx(exact.reward, abs=1e-8)
    assert (found.costs <= np.array(campaign.limits) + 1e-9).all()


def test_its_file_says_what_it_is(tmp_path: Path) -> None:
    for campaign in (ruled(), RuledEnvelopes(audience=None)):
        path = tmp_path / "campaign.toml"
        path.write_text(campaign.toml(), encoding="utf-8")
        assert Campaign.from_toml(path) == campaign.rules
        assert campaign.rules.limits == pytest.approx(campaign.limits)


def test_a_policy_is_followed_and_held_to_the_rules() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    deploy = importlib.import_module("budgets").deploy
    campaign = ruled(population=50)
    nothing = deploy(campaign, lambda frame, past: pl.Series(["0"] * len(frame)), 4_000, 0)
    # In expectation at every step: only who is met in which state is left to chance.
    assert nothing.outcomes == pytest.approx(campaign.cheapest().outcomes, abs=4 * nothing.errors.max() + 1e-12)
    asked: list[tuple[int, int]] = []

    def small(frame: pl.DataFrame, past: pl.DataFrame) -> pl.Series:
        asked.append((len(frame), len(past)))
        return pl.Series(["2"] * len(frame))

    assert deploy(campaign, small, 100, 0).outcomes[2] == 3.0
    assert asked == [(100, 0), (100, 100), (100, 200)]
    with pytest.raises(UsageError, match="who may not get it"):
        deploy(campaign, lambda frame, past: pl.Series(["5"] * len(frame)), 200, 0)

"""The two-step problem, against the four decimals of its table."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import two_step
from redenvelope.simulate.finite import two_step_problem

BUDGET = 2.9295


def uniform(frame) -> np.ndarray:
    return np.full((frame.height, 4), 0.25)


def test_the_table_to_four_decimals() -> None:
    campaign = two_step()
    for value in (campaign.uniform(), campaign.value(uniform)):
        assert (round(value.cost, 4), round(value.reward, 4)) == (2.9295, 3.8836)
    assert round(campaign.bandit(BUDGET).reward, 4) == 4.4006
    assert round(campaign.optimum(BUDGET).reward, 4) == 4.5093


def test_uniform_policy_in_closed_loop() -> None:
    run = two_step(reward_variance=0.3).run(uniform, users=20_000, seed=1)
    assert abs(run.cost - 2.9295) < 4 * run.cost_error
    assert abs(run.reward - 3.8836) < 4 * run.reward_error


def test_bandit_mixes_its_myopic_neighbours() -> None:
    """By hand: below 1.30224 the bandit sends (1, 3) at a cost of 3.4295, above it (1, 0) at 1.9295."""
    bandit = two_step().bandit(BUDGET)
    base, first, second = 1.18155, 0.84396, 0.65112
    middle = base + first  # the state after action 1 is 2, and the reward there is r[0,2] + (i − 2)·second
    dear = middle + base + first * np.sqrt(2) + second
    cheap = middle + base + first * np.sqrt(2) - 2 * second
    share = (BUDGET - 1.9295) / (3.4295 - 1.9295)
    assert bandit.reward == pytest.approx(share * dear + (1 - share) * cheap, rel=1e-9)
    assert bandit.dual == pytest.approx(second / 0.5, rel=1e-6)


def test_states_follow_the_first_action() -> None:
    log = two_step().log(500, seed=3)
    first, second = log.filter(step=0), log.filter(step=1)
    assert first["state"].unique().to_list() == ["s0"]
    expected = [f"s{int(label[1:]) + 1}" for label in first["action"]]
    assert second["state"].to_list() == expected


def test_noise_is_as_asked() -> None:
    log = two_step(reward_variance=0.4).log(20_000, seed=0)
    problem = two_step_problem()
    state = log["state"].str.slice(1).cast(int).to_numpy()
    action = log["action"].str.slice(1).cast(int).to_numpy()
    # A sample variance of n normal draws has a relative error of √(2/n) = 0.7 %; four of them are 2.8 %.
    assert (log["reward"] - problem.rewards[state, action]).var() == pytest.approx(0.4, rel=0.028)
    # Gamma draws of this shape have an excess kurtosis of up to 1.2: √(3.2/n) = 0.9 %; four of them are 3.6 %.
    assert (log["cost"] - problem.costs[0, state, action]).var() == pytest.approx(0.1, rel=0.036)
    assert log["cost"].min() >= 0

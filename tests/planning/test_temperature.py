from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.planning.temperature import entropy_cost, entropy_loss, suggest_temperature, value_at_stake


def test_two_actions_in_closed_form():
    # Half of the users gain 1 by action 0, half by action 1: choosing per user is worth 1/2.
    q = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert value_at_stake(q) == pytest.approx(0.5)
    temperature = suggest_temperature(q, share=0.02)
    # The loss is 1 / (1 + exp(1 / T)); it must be 0.02 * 0.5.
    assert temperature == pytest.approx(1 / np.log(1 / 0.01 - 1), rel=1e-9)


def test_scales_with_the_values():
    q = np.random.default_rng(0).normal(size=(100, 6))
    assert suggest_temperature(1000 * q + 7) == pytest.approx(1000 * suggest_temperature(q), rel=1e-9)


def test_loses_exactly_what_is_allowed():
    q = np.random.default_rng(1).gamma(1.0, size=(200, 5))
    for share in (0.001, 0.01, 0.1):
        loss = entropy_loss(q, suggest_temperature(q, share))
        assert loss == pytest.approx(share * value_at_stake(q), rel=1e-6)


def test_users_alike_are_measured_against_chance():
    q = np.tile([0.0, 1.0, 2.0], (10, 1))
    assert value_at_stake(q) == pytest.approx(1.0)
    assert suggest_temperature(q) > 0


def test_nothing_at_stake():
    assert suggest_temperature(np.ones((5, 3))) == 0.0
    assert suggest_temperature(np.ones((5, 1))) == 0.0


def test_actions_ruled_out_do_not_count():
    q = np.array([[1.0, 0.0, -np.inf], [0.0, 1.0, -np.inf]])
    assert suggest_temperature(q) == pytest.approx(suggest_temperature(q[:, :2]))
    patchy = np.array([[1.0, -np.inf, 0.0], [-np.inf, 1.0, 0.0], [0.5, 0.0, -np.inf]])
    assert np.isfinite(suggest_temperature(patchy)) and suggest_temperature(patchy) > 0


def test_entropy_cost_is_read_at_equal_cost():
    cost = entropy_cost([0.0, 2.0, 1.0], [0.0, 3.0, 2.0], [0.5, 1.5, 5.0], [0.9, 2.5, 2.0])
    np.testing.assert_allclose(cost, [0.1, 0.0, 1.0], atol=1e-12)


def test_entropy_costs_reward_in_a_real_frontier(network_world):
    from redenvelope.planning.planner import ModelPrice, TreePlanner

    model, states = network_world(0, users=200)
    duals = np.append(np.linspace(0, 3, 200), np.inf)
    hard, small, large = (
        ModelPrice(TreePlanner(model, 3, temperature, 3), states)(duals)[::-1] for temperature in (0.0, 0.01, 0.3)
    )
    small_cost, large_cost = entropy_cost(*hard, *small), entropy_cost(*hard, *large)
    assert (large_cost[:-1] > small_cost[:-1]).all()
    assert small_cost.min() > -1e-5


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_share_out_of_range(share):
    with pytest.raises(UsageError, match="share must be between 0 and 1"):
        suggest_temperature(np.eye(2), share)

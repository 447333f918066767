from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.finite.induction import backward_induction
from redenvelope.planning.backup import backup
from redenvelope.planning.expand import expand

DUALS = np.array([0.0, 0.3, np.inf, 1.0, 4.0])
# float32 sums of a few numbers of order one.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def mean_outcomes(problem, states, result):
    """Mean cost and reward over the initial distribution, each [duals]."""
    probabilities = np.asarray(result.probabilities, dtype=np.float64)
    return tuple(
        problem.initial @ (probabilities * np.asarray(values)).sum(axis=2)
        for values in (result.cost_to_go, result.reward_to_go)
    )


@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0])
@pytest.mark.parametrize(("actions", "steps"), [(4, 4), (1, 3), (5, 1), (2, 5)])
def test_equals_backward_induction(table_world, every_state, actions, steps, temperature):
    for seed in range(3):
        model, problem = table_world(seed, actions=actions, steps=steps)
        result = backup(expand(model, every_state(problem), steps), DUALS, temperature)
        exact = backward_induction(problem, DUALS, temperature)
        probabilities = np.swapaxes(np.asarray(result.probabilities), 0, 1)
        if temperature > 0:
            np.testing.assert_allclose(probabilities, exact.probabilities[:, 0], **CLOSE)
        else:
            # Sequences that pass the same states in another order tie but for rounding: either will do.
            values = np.where(probabilities > 0, exact.action_values[:, 0], -np.inf).max(axis=2)
            np.testing.assert_allclose(values, exact.action_values[:, 0].max(axis=2), **CLOSE)
        costs, rewards = mean_outcomes(problem, every_state(problem), result)
        np.testing.assert_allclose([rewards, costs], exact.outcomes, **CLOSE)
        finite = np.isfinite(DUALS)
        np.testing.assert_allclose(np.swapaxes(result.q, 0, 1)[finite], exact.action_values[finite, 0], **CLOSE)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_eligible_holds_at_every_step(table_world, every_state, temperature):
    model, problem = table_world(5)
    allowed = np.array([False, True, True, False])
    barred = replace(problem, eligible=np.tile(allowed, (problem.states, 1)))
    result = backup(expand(model, every_state(problem), 4), DUALS, temperature, np.tile(allowed, (problem.states, 1)))
    exact = backward_induction(barred, DUALS, temperature)
    costs, rewards = mean_outcomes(problem, every_state(problem), result)
    np.testing.assert_allclose([rewards, costs], exact.outcomes, **CLOSE)
    assert np.all(np.asarray(result.probabilities)[:, :, ~allowed] == 0)


def test_infinite_dual_is_the_cheapest_sequence(table_world, every_state):
    model, problem = table_world(2, steps=3)
    following = np.asarray(model.following)
    result = backup(expand(model, every_state(problem), 3), [np.inf], 0.0)
    cost = (np.asarray(result.probabilities) * np.asarray(result.cost_to_go)).sum(axis=2)[:, 0]
    for start in range(problem.states):
        totals = []
        for sequence in itertools.product(range(problem.actions), repeat=3):
            state, total = start, 0.0
            for action in sequence:
                total += problem.costs[0, state, action]
                state = following[state, action]
            totals.append(total)
        assert cost[start] == pytest.approx(min(totals), rel=1e-5)


def test_ties_go_to_the_cheaper_action_and_free_actions_to_reward(table_world):
    model, _ = table_world(0, states=1, actions=3, steps=1)
    rewards = np.array([[1.0, 2.0, 0.5]], dtype=np.float32)
    costs = np.array([[0.0, 1.0, 0.0]], dtype=np.float32)
    model = type(model)(rewards, costs, model.following)
    probabilities = np.asarray(backup(expand(model, [[0.0]], 1), [1.0, np.inf], 0.0).probabilities)
    np.testing.assert_array_equal(probabilities[0], [[1, 0, 0], [1, 0, 0]])
    backwards = type(model)(rewards[:, ::-1], costs[:, ::-1], model.following)
    probabilities = np.asarray(backup(expand(backwards, [[0.0]], 1), [1.0, np.inf], 0.0).probabilities)
    np.testing.assert_array_equal(probabilities[0], [[0, 0, 1], [0, 0, 1]])


def test_soft_converges_to_hard(network_world):
    model, states = network_world(0)
    tree = expand(model, states, 3)
    duals = [0.0, 0.5, 1.5]
    hard = backup(tree, duals, 0.0)
    gaps = []
    for temperature in (1e-1, 1e-2, 1e-3, 1e-6):
        soft = backup(tree, duals, temperature)
        gap = np.asarray(soft.q) - np.asarray(hard.q)
        # Two later steps, each with an entropy of at most log(actions).
        assert gap.min() > -1e-5
        assert gap.max() <= 2 * temperature * np.log(5) + 1e-5
        gaps.append(gap.max())
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_soft_is_safe_at_extreme_scales(network_world, scale):
    model, states = network_world(1)
    tree = expand(model, states, 3)
    result = backup(tree, [0.0, 1e-3, 1.0, 1e6, 1e30], scale)
    for values in result:
        assert np.isfinite(np.asarray(values)).all()
    np.testing.assert_allclose(np.asarray(result.probabilities).sum(axis=2), 1, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.02, 0.5])
def test_cost_never_rises_with_the_dual(network_world, temperature):
    model, states = network_world(2)
    duals = np.append(np.linspace(0, 4, 40), np.inf)
    result = backup(expand(model, states, 3), duals, temperature)
    cost = (np.asarray(result.probabilities) * np.asarray(result.cost_to_go)).sum(axis=2)
    # User by user: each user's tree is a problem of its own.
    assert (np.diff(cost, axis=1) <= 1e-5).all()


def test_cost_is_minus_the_slope_of_the_soft_value(network_world):
    model, states = network_world(3)
    temperature, step = 0.2, 1e-2
    duals = np.array([0.7 - step, 0.7, 0.7 + step])
    result = backup(expand(model, states, 3), duals, temperature)
    q = np.asarray(result.q, dtype=np.float64)
    values = temperature * np.log(np.exp(q / temperature).sum(axis=2))
    cost = (np.asarray(result.probabilities) * np.asarray(result.cost_to_go)).sum(axis=2)[:, 1]
    # A central difference: second order in the step, plus float32 rounding divided by the step.
    np.testing.assert_allclose((values[:, 0] - values[:, 2]) / (2 * step), cost, atol=2e-3)


def test_discount_weighs_later_steps(table_world, every_state):
    model, problem = table_world(4, steps=2)
    result = backup(expand(model, every_state(problem), 2), [0.5], 0.0, discount=0.25)
    following = np.asarray(model.following)
    penalised = problem.rewards - 0.5 * problem.costs[0]
    expected = penalised + 0.25 * penalised.max(axis=1)[following]
    np.testing.assert_allclose(np.asarray(result.q)[:, 0], expected, **CLOSE)


@pytest.mark.parametrize("duals", [[-1.0], [np.nan], []])
def test_duals_that_are_no_prices_are_refused(network_world, duals):
    model, states = network_world(0, users=2)
    with pytest.raises(UsageError, match="at least 0"):
        backup(expand(model, states, 1), duals, 0.0)

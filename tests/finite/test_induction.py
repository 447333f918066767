"""Backward induction against enumeration, policy evaluation and the linear program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from redenvelope import FiniteProblem, UsageError
from redenvelope.finite.linear_program import least_costs
from redenvelope.finite.problem import backward_induction, evaluate, exact_price, finite_policy
from redenvelope.simulate.finite import random_problem, two_step_problem

DUALS = np.array([0.0, 0.1, 0.5, 1.0, 3.0, 20.0, np.inf])


def deterministic_tables(problem: FiniteProblem) -> np.ndarray:
    """Every deterministic policy, [policies, steps, states, actions]."""
    choices = itertools.product(range(problem.actions), repeat=problem.steps * problem.states)
    tables = np.eye(problem.actions)[np.array(list(choices))]
    return tables.reshape(-1, problem.steps, problem.states, problem.actions)


@pytest.mark.parametrize("seed", range(6))
def test_hard_plan_is_the_best_of_all_deterministic_policies(seed: int) -> None:
    problem = random_problem(seed, states=2, actions=3, steps=3)
    values = np.array([evaluate(problem, table).outcomes for table in deterministic_tables(problem)])
    rewards, costs = exact_price(problem)(DUALS[:-1])
    best = (values[:, 0] - DUALS[:-1, None] * values[:, 1]).max(axis=1)
    np.testing.assert_allclose(rewards - DUALS[:-1] * costs, best, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_infinite_dual_is_the_cheapest_sequential_policy(seed: int) -> None:
    problem = random_problem(seed, states=2, actions=3, steps=3)
    values = np.array([evaluate(problem, table).cost for table in deterministic_tables(problem)])
    _, costs = exact_price(problem)(np.array([np.inf]))
    assert costs[0] == pytest.approx(values.min(), rel=1e-12)
    assert costs[0] == pytest.approx(least_costs(problem)[0], rel=1e-12)


def test_greedy_cheapest_action_is_not_the_cheapest_policy() -> None:
    # Action 0 is free but leads to a state where everything costs 10.
    transitions = np.zeros((2, 2, 2))
    transitions[0, 0, 1] = transitions[0, 1, 0] = 1.0
    transitions[1, :, 1] = 1.0
    problem = FiniteProblem(
        rewards=np.zeros((2, 2)),
        costs=np.array([[0.0, 1.0], [10.0, 10.0]]),
        transitions=transitions,
        initial=np.array([1.0, 0.0]),
        steps=2,
    )
    # Pay 1 to stay, then take the free action at the last step.
    assert exact_price(problem)([np.inf])[1, 0] == 1.0
    assert exact_price(problem, lookahead=1)([np.inf])[1, 0] == 10.0


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.3, 5.0])
@pytest.mark.parametrize("lookahead", [None, 1, 2, 99])
def test_costs_and_rewards_are_those_of_the_policy(temperature: float, lookahead: int | None) -> None:
    problem = random_problem(3, states=7, actions=4, steps=4)
    plans = backward_induction(problem, DUALS, temperature, lookahead)
    for position in range(len(DUALS)):
        exact = evaluate(problem, plans.policy(position).table)
        assert plans.outcomes[:, position] == pytest.approx(exact.outcomes, rel=1e-12)
    np.testing.assert_allclose(exact_price(problem, temperature, lookahead)(DUALS), plans.outcomes, rtol=1e-12)


def enumerated_soft_value(problem: FiniteProblem, state: int, left: int, dual: float, temperature: float) -> float:
    """V by its definition: the log-sum over actions of values that recurse over every next state."""
    if left == 0:
        return 0.0
    values = [
        problem.rewards[state, action]
        - dual * problem.costs[0, state, action]
        + sum(
            problem.transitions[state, action, after]
            * enumerated_soft_value(problem, after, left - 1, dual, temperature)
            for after in range(problem.states)
        )
        for action in range(problem.actions)
        if problem.allowed[state, action]
    ]
    return float(temperature * np.logaddexp.reduce(np.array(values) / temperature))


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_soft_action_values_match_enumeration(temperature: float) -> None:
    base = random_problem(8, states=3, actions=3, steps=3)
    eligible = np.array([[True, True, False], [True, True, True], [False, True, True]])
    problem = FiniteProblem(base.rewards, base.costs, base.transitions, base.initial, 3, eligible)
    for dual in (0.0, 0.7, 4.0):
        plans = backward_induction(problem, [dual], temperature)
        for step, state in itertools.product(range(3), range(3)):
            values = plans.action_values[0, step, state]
            soft = temperature * np.logaddexp.reduce(values[eligible[state]] / temperature)
            expected = enumerated_soft_value(problem, state, 3 - step, dual, temperature)
            assert soft == pytest.approx(expected, rel=1e-12, abs=1e-12)
            shares = np.where(eligible[state], np.exp((values - soft) / temperature), 0.0)
            np.testing.assert_allclose(plans.probabilities[0, step, state], shares, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_soft_becomes_hard_as_the_temperature_falls(seed: int) -> None:
    problem = random_problem(seed, states=5, actions=4, steps=4)
    duals = DUALS[:-1]
    hard_rewards, hard_costs = exact_price(problem)(duals)
    best = hard_rewards - duals * hard_costs
    losses = []
    for temperature in (1.0, 1e-1, 1e-2, 1e-3):
        rewards, costs = exact_price(problem, temperature)(duals)
        loss = best - (rewards - duals * costs)
        # The soft optimum gives up at most the entropy bonus it could gain: temperature · steps · log A.
        assert (loss >= -1e-9).all()
        assert (loss <= temperature * problem.steps * np.log(problem.actions) + 1e-9).all()
        losses.append(loss)
    np.testing.assert_allclose(losses[-1], 0, atol=2e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("seed", range(20))
def test_cost_never_rises_with_the_dual(seed: int, temperature: float) -> None:
    problem = random_problem(seed, states=6, actions=4, steps=4)
    duals = np.append(np.linspace(0, 10, 200), np.inf)
    _, costs = exact_price(problem, temperature)(duals)
    assert (np.diff(costs) <= 1e-10).all()


@pytest.mark.parametrize("seed", range(5))
def test_slope_of_the_soft_value_is_minus_the_cost(seed: int) -> None:
    problem = random_problem(seed, states=5, actions=3, steps=3)
    temperature, dual, step = 0.2, 0.8, 1e-5

    def value(at: float) -> float:
        action_values = backward_induction(problem, [at], temperature).action_values[0, 0] / temperature
        return float(temperature * np.logaddexp.reduce(action_values, axis=1) @ problem.initial)

    slope = (value(dual + step) - value(dual - step)) / (2 * step)
    # Central differences err by step² and by rounding over step: both below 1e-8 here.
    assert slope == pytest.approx(-exact_price(problem, temperature)([dual])[1, 0], rel=1e-7)


def test_ties_go_to_the_cheapest_at_zero_and_to_the_best_at_infinity() -> None:
    rewards = np.array([[1.0, 1.0, 0.0]])
    costs = np.array([[2.0, 1.0, 1.0]])
    problem = FiniteProblem(rewards, costs, np.ones((1, 3, 1)), np.ones(1), steps=4)
    assert finite_policy(problem, 0.0).table[:, 0].argmax(axis=1).tolist() == [1, 1, 1, 1]
    assert finite_policy(problem, np.inf).table[:, 0].argmax(axis=1).tolist() == [1, 1, 1, 1]
    half = finite_policy(problem, np.inf, temperature=1.0).table[0, 0]
    # Entropy shares among the two cheapest by their reward, and gives the dear one nothing.
    np.testing.assert_allclose(half, [0, np.e / (1 + np.e), 1 / (1 + np.e)], atol=1e-12)


def test_constant_cost_keeps_the_greatest_reward_at_infinity() -> None:
    base = random_problem(1, states=9, actions=4, steps=5)
    problem = FiniteProblem(base.rewards, np.full_like(base.costs, 0.1), base.transitions, base.initial, 5)
    rewards, costs = exact_price(problem)(np.array([0.0, np.inf]))
    # Sums of 0.1 over states round differently; that must not decide which action is "cheapest".
    assert rewards[1] == pytest.approx(rewards[0], rel=1e-12)
    np.testing.assert_allclose(costs, costs[0], rtol=1e-12)


def test_ineligible_actions_are_never_chosen() -> None:
    base = random_problem(2, states=6, actions=4, steps=3)
    eligible = np.random.default_rng(0).random((6, 4)) < 0.5
    eligible[:, 3] |= ~eligible.any(axis=1)
    problem = FiniteProblem(base.rewards, base.costs, base.transitions, base.initial, 3, eligible)
    for temperature in (0.0, 0.5):
        shares = backward_induction(problem, DUALS, temperature).probabilities
        assert shares[:, :, ~eligible].max() == 0
        np.testing.assert_allclose(shares.sum(axis=-1), 1, rtol=1e-12)


def test_sparse_and_blocked_products_agree_with_the_plain_one() -> None:
    generator = np.random.default_rng(4)
    states, actions = 80, 9
    for share in (1.0, 0.03):
        transitions = generator.random((states, actions, states))
        transitions *= generator.random(transitions.shape) < share
        transitions /= np.maximum(transitions.sum(axis=2, keepdims=True), 1e-12) * (1 + 1e-12)
        problem = FiniteProblem(
            generator.random((states, actions)),
            generator.random((states, actions)),
            transitions,
            np.full(states, 1 / states),
            steps=4,
        )
        for count in (1, 3, 400):
            duals = np.linspace(0, 2, count)
            plans = backward_induction(problem, duals[:3])
            outcomes = exact_price(problem)(duals)
            for position in range(min(3, count)):
                exact = evaluate(problem, plans.policy(position).table)
                assert outcomes[:, position] == pytest.approx(exact.outcomes, rel=1e-12)


def test_users_who_leave_cost_and_earn_nothing_more() -> None:
    transitions = np.full((1, 1, 1), 0.5)
    problem = FiniteProblem(np.ones((1, 1)), np.full((1, 1), 2.0), transitions, np.ones(1), steps=3)
    assert exact_price(problem)([1.0])[:, 0].tolist() == [1.75, 3.5]


def test_lookahead_of_one_is_the_bandit_and_a_long_one_the_plan() -> None:
    problem = two_step_problem()
    duals = np.array([0.0, 0.5, 0.9, 1.5])
    bandit = backward_induction(problem, duals, lookahead=1)
    greedy = (problem.rewards - duals[:, None, None] * problem.costs[0]).argmax(axis=-1)
    for step in range(2):
        np.testing.assert_array_equal(bandit.probabilities[:, step].argmax(axis=-1), greedy)
    longer = exact_price(problem, lookahead=99)(duals)
    np.testing.assert_array_equal(longer, exact_price(problem)(duals))


def test_policy_answers_by_steps_left() -> None:
    policy = finite_policy(two_step_problem(), 0.9)
    np.testing.assert_array_equal(policy.probabilities(np.array([0, 2]), 2), policy.table[0][[0, 2]])
    np.testing.assert_array_equal(policy.probabilities(np.array([1]), 1), policy.table[1][[1]])
    with pytest.raises(UsageError, match="between 1 and 2, not 3"):
        policy.probabilities(np.array([0]), 3)


@pytest.mark.parametrize(
    ("duals", "temperature", "lookahead", "message"),
    [
        ([-1.0], 0.0, None, "at least 0"),
        ([np.nan], 0.0, None, "at least 0"),
        ([1.0], -0.1, None, "temperature must be"),
        ([1.0], np.inf, None, "temperature must be"),
        ([1.0], 0.0, 0, "lookahead must be at least 1"),
    ],
)
def test_arguments_without_sense_are_refused(
    duals: list[float], temperature: float, lookahead: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        backward_induction(two_step_problem(), duals, temperature, lookahead)

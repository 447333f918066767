"""Learned values behind the interfaces: prices against exact prices, searches, policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from experiments.retrained import LearnedPolicy, RetrainedPrice

from redenvelope import Policy, UsageError, solve_dual
from redenvelope.dual.solvers import Secant
from redenvelope.finite.problem import exact_price
from redenvelope.learning.soft_q import SoftQ
from redenvelope.planning import q_values as learned_price
from redenvelope.planning.q_values import LearnedPrice, LearnedValues
from redenvelope.simulate.finite import random_problem
from tests.learning.conftest import TABLE, World, make_world, prepared

TEMPERATURE = 0.3


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(random_problem(4, states=5, steps=3, deterministic=True), users=3_000, seed=1)


@pytest.fixture(scope="module")
def learner(world: World) -> SoftQ:
    return prepared(world)


@pytest.fixture(scope="module")
def everything(learner: SoftQ) -> LearnedValues:
    return learner.learn_all(TEMPERATURE)


@pytest.fixture(scope="module")
def truth(world: World) -> Callable[[np.ndarray], np.ndarray]:
    """Exact prices for the very users of the log, so that who was drawn is no difference."""
    first = np.bincount(world.state[world.log.starts[:-1]], minlength=world.problem.states)
    problem = type(world.problem)(
        rewards=world.problem.rewards,
        costs=world.problem.costs,
        transitions=world.problem.transitions,
        initial=first / first.sum(),
        steps=world.problem.steps,
    )
    return exact_price(problem, TEMPERATURE)


# Between two of 13 knots the futures of their policies are interpolated: 2 % of the range from 0 to infinity.
def test_price_for_all_duals_is_the_exact_price(world: World, everything: LearnedValues, truth: Callable) -> None:
    duals = np.array([0.0, 0.1, 0.45, 1.0, 3.0, 20.0, np.inf])
    found, exact = LearnedPrice(everything, world.first_states())(duals), truth(duals)
    for values, right in zip(found, exact, strict=True):
        assert np.abs(values - right).max() < 0.02 * np.ptp(right)


def test_cost_does_not_rise_with_the_dual(world: World, everything: LearnedValues) -> None:
    rewards, costs = LearnedPrice(everything, world.first_states())(np.append(np.linspace(0, 6, 40), np.inf))
    # Training leaves errors of a few thousandths.
    assert np.diff(costs).max() < 0.01
    assert costs[0] - costs[-1] > 0.5
    assert rewards[0] > rewards[-1]


def test_price_in_parts_is_the_price_at_once(
    world: World, everything: LearnedValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    duals = np.array([0.3, np.inf])
    whole = LearnedPrice(everything, world.first_states())(duals)
    monkeypatch.setattr(learned_price, "_VALUES_AT_ONCE", 13 * 3 * 4 * 701)
    assert np.allclose(whole, LearnedPrice(everything, world.first_states())(duals), rtol=1e-6)


def test_search_over_a_learned_price_lands_where_the_exact_one_does(
    world: World, everything: LearnedValues, truth: Callable
) -> None:
    _, costs = truth(np.array([0.0, np.inf]))
    budget = float(costs.mean())
    found = solve_dual(LearnedPrice(everything, world.first_states()), budget)
    exact = solve_dual(truth, budget)
    assert found.cost == pytest.approx(budget, rel=1e-4)
    assert found.reward == pytest.approx(exact.reward, abs=0.05)


def test_learning_each_price_agrees_with_learning_them_together(world: World, learner: SoftQ) -> None:
    each = RetrainedPrice(learner, world.first_states())
    duals = np.array([0.2, 0.25])
    together = LearnedPrice(learner.learn(duals), world.first_states())
    assert np.allclose(each(duals), together(duals), atol=0.05)
    assert sorted(each.known) == [0.2, 0.25]


def test_search_that_learns_at_every_price_keeps_what_it_learned(world: World, learner: SoftQ) -> None:
    quick = replace(learner, settings=replace(TABLE, future=replace(TABLE.future, steps=100)))
    each = RetrainedPrice(quick, world.first_states())
    solution = solve_dual(each, float(each(np.array([0.0, np.inf]))[1].mean()), Secant())
    assert solution.status == "converged"
    assert solution.dual in each.known
    again = len(each.known)
    each(np.array([solution.dual]))
    assert len(each.known) == again


def test_learned_policy_is_a_policy_and_keeps_to_what_is_eligible(world: World, everything: LearnedValues) -> None:
    policy: Policy = LearnedPolicy(everything, 0.5)
    states, step, _ = world.every_state()
    eligible = np.ones((len(states), policy.actions), dtype=bool)
    eligible[::2, 1:3] = False
    found = policy.probabilities(states, 3 - step, eligible)
    assert np.allclose(found.sum(axis=1), 1)
    assert (found[~eligible] == 0).all()
    free = policy.probabilities(states, 3 - step)
    assert np.allclose(free[::2][:, [0, 3]] / free[::2][:, [0, 3]].sum(1, keepdims=True), found[::2][:, [0, 3]])
    with pytest.raises(UsageError):
        LearnedPolicy(everything, -1.0)
    with pytest.raises(UsageError, match="steps left"):
        policy.probabilities(states, 4)
    with pytest.raises(UsageError, match="at least 0"):
        RetrainedPrice(None, states).learned(-1.0)  # type: ignore[arg-type]

"""Brackets and the bounds they start from."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import FiniteProblem, UsageError, solve_dual
from redenvelope.dual.oracle import Point, RecordedPrice
from redenvelope.dual.solvers import Bracket, Secant, finite_bracket, paper_bound, valid_bound
from redenvelope.finite.problem import exact_price
from redenvelope.simulate.finite import random_problem


def action_means(problem: FiniteProblem) -> tuple[np.ndarray, np.ndarray]:
    """Mean reward and cost of each action in a log of the uniform policy, [actions] each."""
    from redenvelope.finite.problem import occupancy

    uniform = problem.allowed / problem.allowed.sum(axis=1, keepdims=True)
    visits = occupancy(problem, uniform).sum(axis=0)
    totals = visits.sum(axis=0)
    return (visits * problem.rewards).sum(axis=0) / totals, (visits * problem.costs[0]).sum(axis=0) / totals


def test_valid_bound_holds_on_all_random_problems_and_the_papers_does_not() -> None:
    failures = 0
    for seed in range(120):
        problem = random_problem(seed, states=4, actions=3, steps=3)
        price = exact_price(problem)
        rewards, costs = price(np.array([0.0, np.inf]))
        budget = costs[1] + (0.1 + 0.8 * (seed % 9) / 8) * (costs[0] - costs[1])
        solution = solve_dual(price, budget, Secant())
        bound = valid_bound(Point(0.0, costs[0], rewards[0]), Point(np.inf, costs[1], rewards[1]), budget)
        assert solution.dual <= bound * (1 + 1e-12)
        failures += solution.dual > paper_bound(*action_means(problem))
    assert failures > 0


def test_papers_bound_fails_where_spending_first_pays_later() -> None:
    # Paying 1 at the first step earns 1 at once and 10 later; at the second step paying earns nothing.
    transitions = np.zeros((3, 2, 3))
    transitions[0, 0, 1] = transitions[0, 1, 2] = 1.0
    problem = FiniteProblem(
        rewards=np.array([[0.0, 1.0], [0.0, 0.0], [10.0, 10.0]]),
        costs=np.array([[0.0, 1.0]] * 3),
        transitions=transitions,
        initial=np.array([1.0, 0.0, 0.0]),
        steps=2,
    )
    rewards, costs = action_means(problem)
    assert paper_bound(rewards, costs) == pytest.approx(0.5)
    solution = solve_dual(exact_price(problem), 0.5, Secant())
    assert solution.dual == pytest.approx(11.0)
    # As a first guess it does no harm: the bracket expands from it.
    start = Bracket(Point(0.0, 1.0, 11.0), Point(np.inf, 0.0, 0.0), 0.5)
    bracket = finite_bracket(RecordedPrice(exact_price(problem)), start, guess=0.5)
    assert bracket is not None
    assert bracket.low.dual < 11.0 <= bracket.high.dual


def test_papers_bound_sorts_by_cost_and_skips_equal_costs() -> None:
    # Slopes from the cheapest action (cost 1): (5-2)/(3-1) = 1.5 and (4-2)/(2-1) = 2; cost 1 twice is skipped.
    assert paper_bound([5.0, 2.0, 4.0, 9.0], [3.0, 1.0, 2.0, 1.0]) == 2.0
    assert paper_bound([5.0, 2.0], [1.0, 1.0]) == 0.0
    with pytest.raises(UsageError, match="one mean reward and one mean cost"):
        paper_bound([1.0, 2.0], [1.0])


def test_valid_bound_needs_room() -> None:
    assert valid_bound(Point(0.0, 9.0, 5.0), Point(np.inf, 1.0, 2.0), 2.5) == 2.0
    assert valid_bound(Point(0.0, 9.0, 5.0), Point(np.inf, 1.0, 2.0), 1.0) == np.inf


def test_narrowing_keeps_the_ends_on_their_sides_even_with_noise() -> None:
    bracket = Bracket(Point(0.0, 5.0, 5.0), Point(10.0, 1.0, 1.0), 3.0)
    noisy = [Point(6.0, 4.0, 0.0), Point(2.0, 2.0, 0.0), Point(8.0, 2.0, 0.0), Point(99.0, 9.0, 0.0)]
    narrowed = bracket.narrowed(noisy)
    assert (narrowed.low.dual, narrowed.high.dual) == (6.0, 8.0)
    assert narrowed.low_share * 4.0 + (1 - narrowed.low_share) * 2.0 == 3.0


def test_a_bracket_that_never_fits_is_given_up() -> None:
    price = RecordedPrice(lambda prices: np.stack([np.ones(len(prices)), np.where(np.isinf(prices[:, 0]), 0.0, 2.0)]))
    low, high = price.points([0.0, np.inf])
    assert finite_bracket(price, Bracket(low, high, 1.0)) is None
    assert price.passes < 50

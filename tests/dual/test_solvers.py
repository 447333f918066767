"""What all solvers share: they meet the budget, they end, and they say how."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from redenvelope import DualSolver, solve_dual
from redenvelope.dual.oracle import RecordedPrice
from redenvelope.dual.solution import DualStatus
from redenvelope.dual.solvers import Bisection, Bracket, DualAscent, Newton, SearchEnd, Secant, finite_bracket
from redenvelope.finite.problem import exact_price
from redenvelope.simulate.finite import random_problem

ROOT_FINDERS = [Bisection(), Bisection(parts=32), Newton(), DualAscent(rate=0.1, max_steps=2000)]
ALL = [*ROOT_FINDERS, Secant(), Secant(companions=7)]


@pytest.mark.parametrize("solver", ROOT_FINDERS, ids=repr)
@pytest.mark.parametrize("budget", [0.5, 2.0, 8.0])
def test_smooth_costs_are_met_from_below(smooth: Callable, solver: DualSolver, budget: float) -> None:
    solution = solve_dual(smooth, budget, solver)
    assert solution.status is DualStatus.CONVERGED
    assert 0 <= budget - solution.cost <= 1e-6 * budget
    assert solution.dual == pytest.approx(2 / np.sqrt(budget), rel=1e-5)
    assert solution.shares.tolist() == [1.0]
    # What is left unspent, at its price, is all that is missing from the optimum 4·√budget.
    assert 4 * np.sqrt(budget) - solution.reward <= solution.duality_gap + 1e-12
    assert solution.duality_gap <= 1e-5


@pytest.mark.parametrize("solver", [Bisection(), Bisection(parts=32), Newton(), *ALL[-2:]], ids=repr)
def test_jumps_are_mixed_exactly(corners: Callable, solver: DualSolver) -> None:
    # The envelope is (0, 0), (1, 4), (3, 7), (6, 8); the plan (2, 3) lies below it.
    solution = solve_dual(corners([0, 1, 2, 3, 6], [0, 4, 3, 7, 8]), 2.0, solver)
    assert solution.status is DualStatus.CONVERGED
    assert solution.shares == pytest.approx([0.5, 0.5], abs=1e-12)
    assert solution.cost == pytest.approx(2.0, abs=1e-12)
    assert solution.reward == pytest.approx(5.5, abs=1e-9)
    assert solution.dual == pytest.approx(1.5, rel=1e-9)
    assert 0 <= solution.duality_gap + 1e-12 <= 1e-8
    assert solution.prices[0, 0] < 1.5 <= solution.prices[1, 0]


@pytest.mark.parametrize("solver", ALL, ids=repr)
@pytest.mark.parametrize("seed", range(8))
def test_noise_ends_within_the_budget(solver: DualSolver, seed: int) -> None:
    # An off-policy estimate: neither cost nor reward is monotone, and no plan is optimal for its estimate.
    calls = 0

    def price(prices: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        noise = np.random.default_rng([seed, calls]).normal(0, 0.3, (2, len(prices)))
        costs = 5 / (1 + prices[:, 0]) + noise[0]
        return np.stack([3 * np.sqrt(np.maximum(costs, 0)) + noise[1], costs])

    solution = solve_dual(price, 2.0, solver)
    assert calls <= 2100
    assert solution.status in (DualStatus.CONVERGED, DualStatus.MAX_STEPS_REACHED)
    assert solution.cost <= 2.0 + 1e-9
    assert np.isfinite(solution.reward)


@pytest.mark.parametrize("temperature", [0.02, 0.1, 0.5])
def test_newton_needs_at_most_half_of_the_evaluations_of_bisection(temperature: float) -> None:
    newton_steps, bisection_steps = [], []
    for seed in range(20):
        price = exact_price(random_problem(seed, states=6, actions=4, steps=4), temperature)
        _, costs = price(np.array([0.0, np.inf]))
        for share in (0.1, 0.3, 0.6, 0.9):
            budget = float(costs[1] + share * (costs[0] - costs[1]))
            newton = solve_dual(price, budget, Newton(tolerance=1e-6))
            bisection = solve_dual(price, budget, Bisection(tolerance=1e-6))
            assert newton.status is bisection.status is DualStatus.CONVERGED
            assert 0 <= budget - newton.cost <= 1e-6 * abs(budget)
            newton_steps.append(len(newton.priced))
            bisection_steps.append(len(bisection.priced))
    # Both logs count the two ends. A search may be lucky or not, so that single pairs are compared loosely.
    assert 2 * np.sum(newton_steps) <= np.sum(bisection_steps)
    assert (np.array(newton_steps) <= np.array(bisection_steps).max()).all()


def test_many_parts_take_fewer_passes() -> None:
    price = exact_price(random_problem(5), temperature=0.1)
    one = solve_dual(price, 2.0, Bisection())
    many = solve_dual(price, 2.0, Bisection(parts=32))
    assert many.passes <= one.passes / 3
    assert many.dual == pytest.approx(one.dual, rel=1e-4)


def test_ascent_on_a_jump_stops_and_still_mixes(corners: Callable) -> None:
    solution = solve_dual(corners([0, 1, 3], [0, 4, 7]), 2.0, DualAscent(max_steps=30))
    assert solution.status is DualStatus.MAX_STEPS_REACHED
    assert solution.cost == pytest.approx(2.0)
    assert solution.reward <= 5.5
    assert solution.reward + solution.duality_gap >= 5.5 - 1e-12
    assert "stopped after" in solution.message()


def test_ascent_reaches_what_bisection_reaches() -> None:
    price = exact_price(random_problem(7), temperature=0.3)
    slow = solve_dual(price, 2.5, DualAscent(max_steps=2000))
    assert slow.status is DualStatus.CONVERGED
    assert slow.dual == pytest.approx(solve_dual(price, 2.5, Bisection()).dual, rel=1e-4)


class Halving:
    """The example of the protocol's documentation."""

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        bracket = finite_bracket(price, bracket) or bracket
        for _ in range(50):
            middle = price.at((bracket.low.dual + bracket.high.dual) / 2)
            bracket = bracket.narrowed([middle])
        return SearchEnd(DualStatus.CONVERGED, bracket, None, bracket.high.dual)


def test_a_solver_of_ones_own_is_a_class_with_one_method(corners: Callable) -> None:
    solver: DualSolver = Halving()
    solution = solve_dual(corners([0, 1, 2, 3, 6], [0, 4, 3, 7, 8]), 2.0, solver)
    assert (solution.status, solution.cost) == (DualStatus.CONVERGED, 2.0)
    assert solution.reward == pytest.approx(5.5, abs=1e-9)


@pytest.mark.parametrize("solver", ALL, ids=repr)
def test_every_solver_lands_on_the_budget_of_a_soft_plan(solver: DualSolver) -> None:
    solution = solve_dual(exact_price(random_problem(5), temperature=0.3), 2.0, solver)
    assert solution.cost == pytest.approx(2.0, rel=1e-5)

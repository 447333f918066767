"""Least cost for a reward of at least a target."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from redenvelope.dual.bisection import Bisection
from redenvelope.dual.newton import Newton
from redenvelope.dual.secant import Secant
from redenvelope.dual.solution import DualStatus
from redenvelope.dual.solve import DualSolver, solve_dual
from redenvelope.dual.target import least_cost_for
from redenvelope.errors import UsageError
from redenvelope.finite.induction import exact_price
from redenvelope.finite.linear_program import linear_program
from redenvelope.simulate.finite import random_problem


@pytest.mark.parametrize("seed", range(12))
def test_undoes_the_search_for_a_budget(seed: int) -> None:
    problem = random_problem(seed, states=5, actions=4, steps=3)
    price = exact_price(problem)
    _, costs = price(np.array([0.0, np.inf]))
    budget = costs[1] + (0.1 + 0.07 * seed) * (costs[0] - costs[1])
    best = linear_program(problem, budget)
    solution = least_cost_for(price, best.reward, Secant())
    assert solution.status is DualStatus.CONVERGED
    assert solution.cost == solution.budget == pytest.approx(budget, rel=1e-7)
    assert solution.reward == pytest.approx(best.reward, rel=1e-9)
    assert solution.dual == pytest.approx(solve_dual(price, budget, Secant()).dual, rel=1e-6)


@pytest.mark.parametrize("solver", [Newton(), Bisection()], ids=repr)
def test_smooth_target_is_reached_from_above(smooth: Callable, solver: DualSolver) -> None:
    # The reward of cost c is 4·√c: a reward of 6 costs 2.25, at the dual 2/√2.25.
    solution = least_cost_for(smooth, 6.0, solver)
    assert solution.status is DualStatus.CONVERGED
    assert 0 <= solution.reward - 6.0 <= 6e-6
    assert solution.cost == pytest.approx(2.25, rel=1e-5)
    assert solution.dual == pytest.approx(2 / 1.5, rel=1e-5)


def test_mixture_is_turned_back(corners: Callable) -> None:
    solution = least_cost_for(corners([0, 1, 3], [0, 4, 7]), 4.75, Secant())
    assert solution.cost == pytest.approx(1.5)
    assert solution.dual == pytest.approx(1.5)
    assert solution.mixture is not None
    assert solution.mixture.low_dual < 1.5 < solution.mixture.high_dual
    assert solution.mixture.low_share == pytest.approx(0.25)
    assert solution.message == "The cheapest plan for a reward of 4.75 earns 4.75 for 1.5 a user."


def test_target_that_costs_nothing_extra(corners: Callable) -> None:
    solution = least_cost_for(corners([1, 3], [4, 7]), 2.0)
    assert solution.status is DualStatus.BUDGET_SLACK
    assert (solution.cost, solution.reward, solution.dual) == (1.0, 4.0, np.inf)
    assert "cheapest plan of all earns 4 for 1 a user, which is already more" in solution.message


def test_target_out_of_reach(corners: Callable) -> None:
    solution = least_cost_for(corners([1, 3], [4, 7]), 9.0)
    assert solution.status is DualStatus.BUDGET_INFEASIBLE
    assert (solution.cost, solution.reward, solution.dual) == (3.0, 7.0, 0.0)
    assert solution.message == "No plan earns 9 a user: the one with the greatest reward earns 7 for 3 a user."


def test_search_cut_short_says_so(smooth: Callable) -> None:
    solution = least_cost_for(smooth, 7.0, Bisection(max_steps=1))
    assert solution.status is DualStatus.MAX_STEPS_REACHED
    assert "stopped early" in solution.message


def test_target_must_be_a_number(smooth: Callable) -> None:
    with pytest.raises(UsageError, match="the target must be a number"):
        least_cost_for(smooth, float("inf"))

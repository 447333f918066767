"""Secant and mixture against the linear program."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import FiniteProblem, linear_program, solve_dual
from redenvelope.dual.solution import DualStatus
from redenvelope.dual.solvers import Bisection, Secant
from redenvelope.finite.problem import evaluate, exact_price, finite_policy
from redenvelope.simulate.finite import random_problem, two_step_problem


def random_case(seed: int) -> tuple[FiniteProblem, float]:
    """A problem of random size and kind, and a budget between its cheapest and its dearest plan."""
    generator = np.random.default_rng([77, seed])
    problem = random_problem(
        seed,
        states=int(generator.integers(1, 9)),
        actions=int(generator.integers(2, 6)),
        steps=int(generator.integers(1, 6)),
        deterministic=bool(seed % 3 == 0),
        leaving=0.1 * (seed % 2),
        ineligible=0.2 * (seed % 5 == 0),
    )
    _, costs = exact_price(problem)(np.array([0.0, np.inf]))
    return problem, float(costs[1] + generator.uniform(0.02, 0.98) * (costs[0] - costs[1]))


@pytest.mark.parametrize("group", range(10))
def test_equals_the_linear_program_on_200_random_problems(group: int) -> None:
    for seed in range(20 * group, 20 * group + 20):
        problem, budget = random_case(seed)
        solution = solve_dual(exact_price(problem), budget, Secant())
        optimum = linear_program(problem, budget)
        assert solution.status is DualStatus.CONVERGED or solution.cost == pytest.approx(budget), seed
        assert solution.reward == pytest.approx(optimum.reward, rel=1e-8, abs=1e-8), seed
        assert abs(solution.cost - budget) <= 1e-9, seed
        assert abs(solution.duality_gap) <= 1e-9 * max(1.0, abs(solution.reward)), seed
        if len(solution.shares) == 1:
            continue
        # The mixture is two policies that anybody can plan again and evaluate.
        low, high = (evaluate(problem, finite_policy(problem, float(dual)).table) for (dual,) in solution.prices)
        share = solution.shares[0]
        assert 0 <= share <= 1
        assert share * low.cost + (1 - share) * high.cost == pytest.approx(budget, abs=1e-9), seed
        assert share * low.reward + (1 - share) * high.reward == pytest.approx(optimum.reward, rel=1e-8), seed


def test_two_step_problem_gives_the_table() -> None:
    problem, budget = two_step_problem(), 2.9295
    uniform = evaluate(problem, np.full((5, 4), 0.25))
    bandit = solve_dual(exact_price(problem, lookahead=1), budget, Bisection())
    plan = solve_dual(exact_price(problem), budget, Secant())
    assert (round(uniform.cost, 4), round(uniform.reward, 4)) == (2.9295, 3.8836)
    assert (round(bandit.cost, 4), round(bandit.reward, 4)) == (2.9295, 4.4006)
    assert (round(plan.cost, 4), round(plan.reward, 4)) == (2.9295, 4.5093)
    # The paper's text has it the other way round.
    assert bandit.dual > plan.dual


def test_takes_a_handful_of_passes() -> None:
    passes = []
    for seed in range(30):
        problem, budget = random_case(seed)
        passes.append(solve_dual(exact_price(problem), budget, Secant()).passes)
    assert np.mean(passes) <= 8

"""Every way a search can end, in data and in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from redenvelope import DualSolver, FiniteProblem, ProblemError, UsageError, solve_dual
from redenvelope.dual.solution import DualStatus
from redenvelope.dual.solvers import Bisection, Newton, Secant
from redenvelope.finite.problem import exact_price
from redenvelope.simulate.finite import random_problem

SOLVERS = [Bisection(), Newton(), Secant()]


def one_state(rewards: list[float], costs: list[float], steps: int = 1) -> FiniteProblem:
    actions = len(rewards)
    return FiniteProblem(np.array([rewards]), np.array([costs]), np.ones((1, actions, 1)), np.ones(1), steps)


def test_statuses_are_listed_in_their_precedence() -> None:
    assert [status.value for status in DualStatus] == [
        "converged",
        "budget_slack",
        "budget_infeasible",
        "bracket_not_found",
        "max_steps_reached",
    ]


def test_slack(corners: Callable) -> None:
    # The reward optimum is cheap: assumptions 1 and 2 of the paper hold, and yet the dual is 0.
    solution = solve_dual(corners([1, 2, 9], [0, 5, 4]), 3.0)
    assert solution.status is DualStatus.BUDGET_SLACK
    assert (solution.dual, solution.cost, solution.reward) == (0.0, 2.0, 5.0)
    assert solution.duality_gap == 0
    assert solution.passes == 1
    assert solution.message() == "The plan earns 5 per user (cost 2 of 3); more cost would buy nothing."


def test_infeasible_names_the_least_budget(corners: Callable) -> None:
    solution = solve_dual(corners([1, 2, 9], [0, 5, 8]), 0.9)
    assert solution.status is DualStatus.BUDGET_INFEASIBLE
    assert (solution.cost, solution.dual, solution.duality_gap) == (1.0, np.inf, np.inf)
    assert solution.excess == pytest.approx([0.1])
    assert solution.message() == (
        "No plan is within the budget of cost: the nearest plan earns 0 per user (cost 1 of 0.9)."
    )


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_the_least_budget_is_enough(corners: Callable, solver: DualSolver) -> None:
    solution = solve_dual(corners([1, 1, 9], [0, 2, 8]), 1.0, solver)
    assert solution.status is DualStatus.CONVERGED
    assert (solution.cost, solution.reward, solution.duality_gap) == (1.0, 2.0, 0.0)
    assert "its cost is the least that any plan has" in solution.message()


def test_the_greatest_useful_budget_is_spent(corners: Callable) -> None:
    solution = solve_dual(corners([1, 9], [0, 8]), 9.0)
    assert solution.status is DualStatus.CONVERGED
    assert (solution.cost, solution.dual) == (9.0, 0.0)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_bracket_not_found_returns_the_cheapest_plan(solver: DualSolver) -> None:
    # Noise so bad that no finite dual ever seems to fit.
    def price(prices: np.ndarray) -> np.ndarray:
        infinite = np.isinf(prices[:, 0])
        return np.stack([np.where(infinite, 0.0, 1.0), np.where(infinite, 0.5, 2.0)])

    solution = solve_dual(price, 1.0, solver)
    assert solution.cost <= 1.0
    if isinstance(solver, Bisection):
        assert solution.status is DualStatus.BRACKET_NOT_FOUND
        assert solution.dual == np.inf
        assert "too noisy" in solution.message()
        # Nothing is known of the optimum but the greatest reward.
        assert solution.duality_gap == 1.0


def test_max_steps_reached_keeps_to_the_budget_and_bounds_the_loss(smooth: Callable) -> None:
    solution = solve_dual(smooth, 2.0, Bisection(max_steps=2))
    assert solution.status is DualStatus.MAX_STEPS_REACHED
    assert solution.cost == pytest.approx(2.0)
    assert solution.reward <= 4 * np.sqrt(2.0) <= solution.reward + solution.duality_gap
    assert "a better one may exist" in solution.message()


def test_converged_speaks_of_the_shadow_price(corners: Callable) -> None:
    solution = solve_dual(corners([0, 4], [1, 9]), 1.0, Secant())
    assert solution.message() == "The plan earns 3 per user (cost 1 of 1); one more unit of cost would earn about 2."


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 0.2])
def test_one_action_is_slack_or_infeasible(solver: DualSolver, temperature: float) -> None:
    price = exact_price(one_state([3.0], [2.0], steps=2), temperature)
    assert solve_dual(price, 5.0, solver).status is DualStatus.BUDGET_SLACK
    assert solve_dual(price, 4.0, solver).status is DualStatus.CONVERGED
    infeasible = solve_dual(price, 3.0, solver)
    assert (infeasible.status, infeasible.cost) == (DualStatus.BUDGET_INFEASIBLE, 4.0)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_constant_cost_is_slack_or_infeasible(solver: DualSolver) -> None:
    base = random_problem(3)
    problem = FiniteProblem(base.rewards, np.full_like(base.costs, 0.1), base.transitions, base.initial, base.steps)
    price = exact_price(problem)
    # 0.4 in four steps of 0.1, up to rounding: neither more nor less than the budget.
    assert solve_dual(price, 0.4, solver).status is DualStatus.CONVERGED
    assert solve_dual(price, 0.5, solver).status is DualStatus.BUDGET_SLACK
    assert solve_dual(price, 0.3, solver).cost == pytest.approx(0.4)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_one_step_is_a_mixture_of_two_actions(solver: DualSolver) -> None:
    solution = solve_dual(exact_price(one_state([0.0, 3.0, 4.0], [0.0, 1.0, 2.0])), 1.25, solver)
    assert solution.reward == pytest.approx(3.25, abs=1e-9)
    assert solution.dual == pytest.approx(1.0, rel=1e-9)
    assert solution.shares == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_unit_of_money_does_not_matter(solver: DualSolver, unit: float) -> None:
    base = random_problem(9)
    scaled = FiniteProblem(base.rewards, base.costs * unit, base.transitions, base.initial, base.steps)
    plain = solve_dual(exact_price(base), 2.0, solver)
    solution = solve_dual(exact_price(scaled), 2.0 * unit, solver)
    assert solution.reward == pytest.approx(plain.reward, rel=1e-9)
    assert solution.dual * unit == pytest.approx(plain.dual, rel=1e-6)
    assert len(solution.priced) <= len(plain.priced) + 3


def test_the_log_of_the_search_holds_every_evaluation(smooth: Callable) -> None:
    solution = solve_dual(smooth, 2.0)
    assert solution.priced.prices[:2].tolist() == [[0.0], [np.inf]]
    assert solution.priced.outcomes.tolist() == smooth(solution.priced.prices).tolist()


def test_what_makes_no_sense_is_refused(smooth: Callable) -> None:
    with pytest.raises(UsageError, match="a budget must be a number"):
        solve_dual(smooth, float("nan"))
    with pytest.raises(ProblemError, match="not finite at price 0"):
        solve_dual(lambda prices: np.full((2, len(prices)), np.nan), 1.0)

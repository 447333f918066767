"""The linear program with two and three budgets, against duality, enumeration and the program of one budget."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from redenvelope import FiniteProblem, UsageError, linear_program
from redenvelope.finite.linear_program import LinearProgramSolution, least_costs
from redenvelope.finite.problem import evaluate, exact_price
from redenvelope.simulate.finite import random_problem
from tests.finite.test_several_budgets import every_policy


def middling_case(seed: int, budgets: int) -> tuple[FiniteProblem, np.ndarray]:
    """A problem, and budgets that a policy of chance keeps: somewhere between impossible and slack."""
    generator = np.random.default_rng([budgets, seed])
    problem = random_problem(
        seed, states=4, actions=4, steps=3, leaving=0.1 * (seed % 2), ineligible=0.2 * (seed % 3 == 0), budgets=budgets
    )
    weights = generator.exponential(size=(problem.steps, problem.states, problem.actions)) ** 2 * problem.allowed
    return problem, evaluate(problem, weights / weights.sum(axis=2, keepdims=True)).costs


def least_bound(problem: FiniteProblem, budgets: np.ndarray) -> float:
    """The least over prices of the dual function max J − λ·(J_C − b), by cutting planes on the exact price."""
    price, prices, cuts = exact_price(problem), np.zeros(problem.budgets), []
    least = np.inf
    for _ in range(200):
        reward, *costs = price(prices[None])[:, 0]
        cuts.append([reward, *(budgets - costs)])
        least = min(least, reward + prices @ (budgets - costs))
        table = np.array(cuts)
        # Minimise a height above every cut: height ≥ reward + λ·(b − cost).
        master = linprog(
            [1.0, *np.zeros(problem.budgets)],
            A_ub=np.column_stack([-np.ones(len(table)), table[:, 1:]]),
            b_ub=-table[:, 0],
            bounds=[(None, None), *[(0.0, 1e4)] * problem.budgets],
        )
        if master.x[0] >= least - 1e-10:
            return least
        prices = master.x[1:]
    raise AssertionError("cutting planes did not end")


def within(solution: LinearProgramSolution, budgets: np.ndarray) -> bool:
    """Costs are kept up to the tolerance of the solver's flows, 1e-10 in each of a few dozen states."""
    return bool((solution.costs <= budgets + 1e-8).all())


@pytest.mark.parametrize("budgets", [2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_the_optimum_equals_the_least_bound_of_duality(seed: int, budgets: int) -> None:
    problem, limits = middling_case(seed, budgets)
    solution = linear_program(problem, limits)
    assert solution.status in ("converged", "budget_slack")
    assert within(solution, limits)
    assert solution.reward == pytest.approx(least_bound(problem, limits), abs=1e-6)
    # The duals of the program are themselves prices that attain the bound, and only budgets that are spent have one.
    reward, *costs = exact_price(problem)(solution.duals[None])[:, 0]
    assert reward + solution.duals @ (limits - costs) == pytest.approx(solution.reward, abs=1e-6)
    assert np.abs(solution.duals * (limits - solution.costs)).max() < 1e-6
    np.testing.assert_array_equal(evaluate(problem, solution.policy).outcomes, solution.value.outcomes)


@pytest.mark.parametrize("method", ["highs-ds", "highs-ipm"])
def test_methods_agree(method: str) -> None:
    problem, limits = middling_case(1, 3)
    assert linear_program(problem, limits, method).reward == pytest.approx(least_bound(problem, limits), abs=1e-6)


@pytest.mark.parametrize("budgets", [2, 3])
@pytest.mark.parametrize("share", [-0.2, 0.3, 0.7, 1.5])
def test_identical_budgets_are_one(budgets: int, share: float) -> None:
    problem = random_problem(11, states=5, steps=3, ineligible=0.2)
    same = replace(problem, costs=np.repeat(problem.costs, budgets, axis=0))
    least, most = least_costs(problem)[0], linear_program(problem, np.inf).cost
    budget = least + share * (most - least)
    one, several = linear_program(problem, budget), linear_program(same, np.full(budgets, budget))
    assert several.status == one.status
    assert several.reward == pytest.approx(one.reward, rel=1e-9)
    np.testing.assert_allclose(several.costs, one.cost, rtol=1e-9)
    assert several.duals.sum() == pytest.approx(one.dual, rel=1e-6)


def test_a_budget_that_is_slack_has_no_price() -> None:
    problem, limits = middling_case(2, 2)
    alone = linear_program(replace(problem, costs=problem.costs[0]), limits[0])
    for loose in (1e3, np.inf):
        solution = linear_program(problem, [limits[0], loose])
        assert (solution.status, solution.duals[1]) == ("converged", 0.0)
        assert solution.reward == pytest.approx(alone.reward, rel=1e-9)
        assert solution.dual == pytest.approx(alone.dual, rel=1e-6)
    slack = linear_program(problem, [1e3, 1e3])
    assert (slack.status, slack.duals.tolist()) == ("budget_slack", [0.0, 0.0])
    assert linear_program(problem, [np.inf, np.inf]).reward == slack.reward


def least_excess(every: np.ndarray, budgets: np.ndarray) -> float:
    """The least total of relative excesses of a mixture of policies [outcomes, policies]."""
    count, policies = len(budgets), every.shape[1]
    result = linprog(
        np.concatenate([np.zeros(policies), 1 / budgets]),
        A_ub=np.concatenate([every[1:], -np.eye(count)], axis=1),
        b_ub=budgets,
        A_eq=np.concatenate([np.ones(policies), np.zeros(count)])[None],
        b_eq=[1.0],
    )
    return float(result.fun)


@pytest.mark.parametrize("budgets", [2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_budgets_that_cannot_be_kept_together_are_missed_by_the_least(seed: int, budgets: int) -> None:
    problem = random_problem(seed, states=2, actions=3, steps=2, leaving=0.1, budgets=budgets)
    every = every_policy(problem)
    # Each budget alone can just be kept; where the cheapest policies differ, all of them cannot.
    limits = least_costs(problem) * 1.01
    excess = least_excess(every, limits)
    solution = linear_program(problem, limits)
    assert (solution.status == "budget_infeasible") == (excess > 1e-9)
    over = np.maximum(0.0, solution.costs - limits)
    assert (over / limits).sum() == pytest.approx(excess, abs=1e-8)
    if solution.status == "budget_infeasible":
        assert np.isinf(solution.duals[over > 1e-8]).all()
        assert set(solution.duals) <= {0.0, np.inf}
        # Giving way by that much is enough.
        enough = linear_program(problem, np.maximum(limits, solution.costs))
        assert enough.status != "budget_infeasible"
        assert enough.reward == pytest.approx(solution.reward, abs=1e-7)


def test_only_budgets_in_conflict_are_called_infeasible() -> None:
    # One action spends the first budget, the other the second; the third is never touched.
    costs = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]])
    problem = FiniteProblem(np.array([[1.0, 2.0]]), costs, np.ones((1, 2, 1)), np.ones(1), steps=1)
    solution = linear_program(problem, [0.25, 0.5, 5.0])
    assert solution.status == "budget_infeasible"
    assert solution.duals.tolist() == [np.inf, np.inf, 0.0]
    # A quarter of excess is half of the second budget and all of the first: the second gives way.
    np.testing.assert_allclose(solution.costs, [0.25, 0.75, 0.5], atol=1e-9)
    nothing = linear_program(problem, [0.0, 0.0, 5.0])
    assert nothing.status == "budget_infeasible"
    assert nothing.costs[:2].sum() == pytest.approx(1.0)
    just = linear_program(problem, [0.25, 0.75, 5.0])
    assert just.status == "converged"
    np.testing.assert_allclose(just.costs, [0.25, 0.75, 0.5], atol=1e-9)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_equal_excesses_the_one_that_earns_most_is_taken(order: tuple[int, ...]) -> None:
    rewards, costs = np.array([1.0, 3.0, 2.0]), np.array([[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]])
    problem = FiniteProblem(rewards[None, order], costs[:, None, order], np.ones((1, 3, 1)), np.ones(1), steps=1)
    solution = linear_program(problem, [1.0, 5.0])
    assert solution.status == "budget_infeasible"
    assert solution.reward == pytest.approx(3.0)
    assert solution.duals.tolist() == [np.inf, 0.0]


@pytest.mark.parametrize("budgets", [1.0, [1.0], [1.0, 1.0, 1.0], [[1.0, 1.0]]])
def test_budgets_must_be_as_many_as_the_problem_has(budgets: object) -> None:
    with pytest.raises(UsageError, match=r"2 budgets, so budgets must be that many numbers"):
        linear_program(random_problem(0, budgets=2), budgets)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a number"):
        linear_program(random_problem(0, budgets=2), [1.0, np.nan])

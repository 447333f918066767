"""Column generation against the exact linear program, over random problems with several budgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from redenvelope import FiniteProblem, ProblemError, UsageError, linear_program, solve_budgets
from redenvelope.dual.column_generation import ColumnGeneration, best_mixture, budget_units
from redenvelope.dual.oracle import Priced
from redenvelope.dual.solution import BudgetStatus, DualStatus
from redenvelope.finite.linear_program import least_costs
from redenvelope.finite.problem import exact_price
from redenvelope.simulate.finite import random_problem

FloatArray = NDArray[np.float64]


def drawn(seed: int, budgets: int) -> tuple[FiniteProblem, FloatArray]:
    """A problem with random eligibility, and budgets that bind, are slack, or cannot be kept together."""
    generator = np.random.default_rng(seed)
    problem = random_problem(
        seed,
        states=int(generator.integers(2, 8)),
        actions=int(generator.integers(2, 5)),
        steps=int(generator.integers(1, 5)),
        leaving=0.1,
        ineligible=float(generator.uniform(0.05, 0.4)),
        budgets=budgets,
    )
    least = least_costs(problem)
    free = exact_price(problem)(np.zeros((1, budgets)))[1:, 0]
    return problem, least + generator.uniform(0.0, 1.3, budgets) * (free - least)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6), budgets=st.integers(1, 4))
def test_column_generation_is_the_linear_program(seed: int, budgets: int) -> None:
    problem, limits = drawn(seed, budgets)
    found, exact = ColumnGeneration().solve(exact_price(problem), limits), linear_program(problem, limits)
    assert found.status == exact.status
    assert found.reward == pytest.approx(exact.reward, rel=1e-8, abs=1e-8)
    assert len(found.shares) <= budgets + 1
    assert found.shares.sum() == pytest.approx(1.0, abs=1e-12)
    over, exact_over = (np.maximum(costs - limits, 0.0) for costs in (found.costs, exact.costs))
    if found.status is DualStatus.BUDGET_INFEASIBLE:
        shares = np.abs(limits)
        # The plan with the least total of excesses need not be one alone; the total is.
        assert (over / shares).sum() == pytest.approx((exact_over / shares).sum(), abs=1e-8)
        np.testing.assert_allclose(found.excess, over, atol=1e-8)
        assert BudgetStatus.EXCEEDED in found.statuses
    else:
        assert over.max() <= 1e-9
        assert found.duality_gap <= 1e-9 * max(1.0, abs(found.reward))
        # What the mixture is said to cost is what its plans cost.
        outcomes = exact_price(problem)(found.prices) @ found.shares
        np.testing.assert_allclose(outcomes, [found.reward, *found.costs], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_shadow_price_is_what_more_budget_buys(seed: int) -> None:
    problem, limits = drawn(seed, 3)
    found = ColumnGeneration().solve(exact_price(problem), limits)
    for budget, (dual, state) in enumerate(zip(found.duals, found.statuses, strict=True)):
        more = ColumnGeneration().solve(exact_price(problem), limits + 1e-6 * np.eye(3)[budget])
        if found.status is not DualStatus.BUDGET_INFEASIBLE:
            # At a corner of the concave function the slope to the right may be less than any dual, never more.
            assert (more.reward - found.reward) / 1e-6 <= dual + 1e-6
            assert (dual == 0) == (state is BudgetStatus.SLACK)


def test_one_budget_is_the_secants() -> None:
    problem = random_problem(5, states=8, actions=5, steps=5)
    least, most = exact_price(problem)(np.array([[np.inf], [0.0]]))[1]
    for share in (-0.1, 0.0, 0.3, 0.7, 1.0, 1.2):
        limit = least + share * (most - least)
        found, exact = solve_budgets(exact_price(problem), limit), linear_program(problem, limit)
        assert found.status == exact.status or share in (0.0, 1.0)
        assert found.reward == pytest.approx(exact.reward, abs=1e-9)
        general = ColumnGeneration().solve(exact_price(problem), limit)
        assert general.reward == pytest.approx(exact.reward, abs=1e-9)


def test_budgets_in_conflict_are_named_with_what_is_missing() -> None:
    # One action spends the first budget, the other the second; the third is never touched.
    costs = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]])
    problem = FiniteProblem(np.array([[1.0, 2.0]]), costs, np.ones((1, 2, 1)), np.ones(1), steps=1)
    found = solve_budgets(exact_price(problem), [0.25, 0.5, 5.0])
    assert found.status is DualStatus.BUDGET_INFEASIBLE
    assert [str(state) for state in found.statuses] == ["exceeded", "exceeded", "slack"]
    np.testing.assert_allclose(found.excess, [0.0, 0.25, 0.0], atol=1e-9)
    said = found.message(["coupons", "pushes", "all"])
    assert said.startswith("No plan is within the budget of coupons and pushes together: the nearest plan earns")
    assert "coupons 0.25 of 0.25, pushes 0.75 of 0.5, all 0.5 of 5" in said
    kept = solve_budgets(exact_price(problem), [0.25, 0.75, 5.0])
    assert kept.status is DualStatus.CONVERGED
    said = kept.message(["coupons", "pushes", "all"])
    assert "more coupons would buy nothing" in said and "more all would buy nothing" in said


def test_what_is_no_budget_or_no_price_is_refused() -> None:
    problem = random_problem(0, budgets=2)
    with pytest.raises(UsageError, match="a budget must be a number"):
        solve_budgets(exact_price(problem), [1.0, np.nan])
    with pytest.raises(ProblemError, match="must return"):
        solve_budgets(lambda prices: np.zeros((2, len(prices))), [1.0, 1.0])
    with pytest.raises(ProblemError, match="not finite at price 0, 0"):
        solve_budgets(lambda prices: np.full((3, len(prices)), np.nan), [1.0, 1.0])


@pytest.mark.parametrize("nothing", [0.0, 1e-17, -1e-15])
def test_a_budget_that_is_zero_but_for_rounding_is_zero(nothing: float) -> None:
    plans = Priced(np.zeros((3, 1)), np.array([[1.0, 2.0, 4.0], [0.0, 1.0, 2.5]]))
    budgets = np.array([nothing])
    found = best_mixture(plans, budgets, budget_units(plans, budgets), fine=1e4)
    np.testing.assert_allclose(found.shares, [1.0, 0.0, 0.0], atol=1e-9)
    assert found.excess <= 1e-9

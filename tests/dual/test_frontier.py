"""The frontier against the linear program and against curves drawn by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from redenvelope.dual.frontier import Frontier, refined_frontier
from redenvelope.dual.oracle import RecordedPrice
from redenvelope.dual.search import solve_dual
from redenvelope.dual.solvers import Secant
from redenvelope.errors import UsageError
from redenvelope.finite.linear_program import linear_program
from redenvelope.finite.problem import exact_price
from redenvelope.simulate.finite import random_problem


def test_questions_of_a_drawn_curve(corners: Callable) -> None:
    curve = refined_frontier(corners([0, 1, 2, 3, 6], [0, 4, 3, 7, 8]))
    assert curve.least_budget == 0
    assert [curve.reward_at(budget) for budget in (0, 0.5, 2, 3, 9)] == [0, 2, 5.5, 7, 8]
    assert [curve.shadow_price(budget) for budget in (0, 0.5, 1, 2, 4.5, 6, 9)] == pytest.approx(
        [4, 4, 1.5, 1.5, 1 / 3, 0, 0]
    )
    assert [curve.cost_for(reward) for reward in (-1, 0, 2, 5.5, 8)] == [0, 0, 0.5, 2, 6]
    with pytest.raises(UsageError, match="the least budget is 0"):
        curve.reward_at(-0.1)
    with pytest.raises(UsageError, match="the greatest reward is 8"):
        curve.cost_for(8.1)


def test_envelope_leaves_out_what_is_dominated_or_below() -> None:
    # By cost: (1, 1), (1, 2) dominates it; (2, 2.5) lies under the line to (3, 4); (4, 3.9) earns less.
    curve = Frontier(
        np.array([np.inf, 5.0, 3.0, 2.0, 0.0]),
        np.array([1.0, 1.0, 2.0, 3.0, 4.0]),
        np.array([1.0, 2.0, 2.5, 4.0, 3.9]),
    )
    assert curve.envelope.tolist() == [1, 3]
    assert curve.reward_at(2.0) == 3.0
    assert curve.shadow_price(3.5) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_all_corners_give_the_linear_program_at_every_budget(seed: int) -> None:
    problem = random_problem(seed, states=3, actions=3, steps=2)
    curve = refined_frontier(exact_price(problem), count=2000)
    low, high = curve.costs[curve.envelope[[0, -1]]]
    for share in (0.05, 0.35, 0.65, 0.95):
        budget = low + share * (high - low)
        best = linear_program(problem, budget)
        assert curve.reward_at(budget) == pytest.approx(best.reward, rel=1e-8)
        assert curve.shadow_price(budget) == pytest.approx(best.dual, rel=1e-5)
        assert curve.cost_for(best.reward) == pytest.approx(budget, rel=1e-7)


def test_refined_points_go_where_the_curve_bends() -> None:
    problem = random_problem(11, states=20, actions=5, steps=4)
    price = RecordedPrice(exact_price(problem))
    curve = refined_frontier(price.function, count=64)
    assert len(curve.duals) <= 64
    low, high = curve.costs[curve.envelope[[0, -1]]]
    for budget in np.linspace(low, high, 9)[1:-1]:
        best = solve_dual(price.function, float(budget), Secant()).reward
        # 64 chosen points leave less than a thousandth of the whole gain between curve and optimum.
        assert 0 <= best - curve.reward_at(budget) + 1e-12 <= 1e-3 * (curve.rewards[-1] - curve.rewards[0])


def test_constant_cost_is_a_frontier_of_one_corner(corners: Callable) -> None:
    curve = refined_frontier(corners([2, 2], [1, 3]))
    assert curve.reward_at(2.0) == 3.0
    assert curve.shadow_price(2.0) == 0.0


def test_arguments_without_sense_are_refused(smooth: Callable) -> None:
    with pytest.raises(UsageError, match="at least 2 points"):
        refined_frontier(smooth, 1)

"""What a finite problem is made of, and what it refuses in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import FiniteProblem, ProblemError
from redenvelope.simulate.finite import random_problem


def test_one_table_of_costs_is_one_budget() -> None:
    problem = random_problem(0)
    plain = replace(problem, costs=problem.costs[0])
    assert plain.budgets == problem.budgets == 1
    np.testing.assert_array_equal(plain.costs, problem.costs)


def test_outcomes_are_the_rewards_and_then_the_costs() -> None:
    problem = random_problem(0, budgets=3)
    assert problem.budgets == 3
    assert problem.outcomes.shape == (4, problem.states, problem.actions)
    np.testing.assert_array_equal(problem.outcomes[0], problem.rewards)
    np.testing.assert_array_equal(problem.outcomes[1:], problem.costs)


def test_further_budgets_leave_the_rest_of_a_random_problem_as_it_is() -> None:
    one, three = random_problem(7, leaving=0.1), random_problem(7, leaving=0.1, budgets=3)
    np.testing.assert_array_equal(three.outcomes[:2], one.outcomes)
    np.testing.assert_array_equal(three.transitions, one.transitions)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"costs": np.zeros((2, 6, 3))}, r"\[budgets, states, actions\], not of shape \(2, 6, 3\)"),
        ({"costs": np.zeros((0, 6, 4))}, "for each budget"),
        ({"costs": np.zeros(4)}, r"not of shape \(4,\)"),
        ({"costs": np.full((1, 6, 4), np.nan)}, "costs holds a number that is not finite"),
        ({"rewards": np.zeros(4)}, r"rewards must be \[states, actions\]"),
        ({"transitions": np.zeros((6, 4, 5))}, "transitions must have shape"),
        ({"initial": np.full(6, 0.5)}, "initial must sum to 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"eligible": np.zeros((6, 4), dtype=bool)}, "state 0 allows no action"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict, message: str) -> None:
    problem = random_problem(0)
    assert isinstance(problem, FiniteProblem)
    with pytest.raises(ProblemError, match=message):
        replace(problem, **change)

"""Paths of mixtures through several budgets, against the linear program at every point."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import linear_program
from redenvelope.dual.paths import gather_plans, paths_through
from redenvelope.finite.problem import exact_price
from redenvelope.simulate.finite import random_problem


@pytest.mark.parametrize(("seed", "budgets"), [(0, 2), (2, 2), (1, 3)])
def test_a_ladder_keeps_all_budgets_in_proportion_and_earns_nearly_the_optimum(seed: int, budgets: int) -> None:
    problem = random_problem(seed, states=10, actions=4, steps=3, budgets=budgets)
    price = exact_price(problem)
    least, most = (price(np.full((1, budgets), at))[1:, 0] for at in (np.inf, 0.0))
    limits = least + 0.5 * np.maximum(most - least, 0.2 * least)
    paths = paths_through(gather_plans(price, limits, 8), limits, rungs=16, points=6)
    ladder, outcomes = paths.ladder, price(paths.plans.prices)
    np.testing.assert_allclose(outcomes, paths.plans.outcomes)
    mixed = outcomes @ ladder.shares.T
    # Every cost is within the scaled budgets, whatever binds.
    assert (ladder.limits * (1 + 1e-7) >= mixed[1:].T).all()
    assert (np.diff(mixed[0]) >= -1e-9).all(), "wider budgets earn more"
    assert ((ladder.shares > 0).sum(axis=1) <= budgets + 1).all()
    near = np.abs(ladder.limits[:, 0] / limits[0] - 1) <= 0.1
    assert near.sum() >= 3
    for limit, reward in zip(ladder.limits[near], mixed[0, near], strict=True):
        optimum = linear_program(problem, limit)
        # Few passes: within three percent of what a search to the end would earn.
        assert optimum.reward + 1e-9 >= reward >= optimum.reward - 0.03 * abs(optimum.reward)
    for own, frontier in enumerate(paths.frontiers):
        costs = outcomes[1:] @ frontier.shares.T
        others = np.arange(budgets) != own
        assert (limits[others] * (1 + 1e-6) >= costs[others].T).all(), "the others are held"
        assert (np.diff(frontier.duals[:, own]) <= 1e-9).all(), "one more unit buys less and less"


def test_a_frontier_whose_other_budgets_cannot_be_kept_is_empty() -> None:
    problem = random_problem(4, budgets=2)
    price = exact_price(problem)
    least = price(np.array([[np.inf, 0.0], [0.0, np.inf]]))
    limits = np.array([0.5 * least[1, 0], 2.0 * least[2, 1]])
    paths = paths_through(gather_plans(price, limits, 4), limits, rungs=6, points=4)
    assert len(paths.frontiers[1]) == 0
    assert len(paths.ladder) >= 1
    assert (paths.ladder.limits[0] >= limits).all(), "the tightest that can be kept is wider than what was asked for"

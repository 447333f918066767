"""Importance sampling against every path written out, a plain loop, and exact values on drawn logs."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.evaluation.importance_sampling import (
    per_decision,
    self_normalised_per_decision,
    self_normalised_trajectory,
    trajectory,
)

from .conftest import Drawn, FloatArray, World


def loop(drawn: Drawn, price: int, discount: float) -> tuple[float, float, float, float]:
    """Reward by the definitions, user by user: trajectory, per decision, and both self-normalised."""
    table, starts = drawn.table, drawn.starts
    steps = drawn.world.problem.steps
    whole, stepwise = np.zeros(drawn.users), np.zeros((drawn.users, steps))
    last, weights = np.zeros(drawn.users), np.zeros((drawn.users, steps))
    for user in range(drawn.users):
        weight, total = 1.0, 0.0
        for step, row in enumerate(range(starts[user], starts[user + 1])):
            chance = drawn.world.policies[price, drawn.state[row], drawn.action[row]]
            weight *= chance / table[row, 4]
            total += discount**step * table[row, 5]
            stepwise[user, step] = weight * discount**step * table[row, 5]
            weights[user, step:] = weight
        whole[user], last[user] = weight * total, weight
    normalised = (stepwise.sum(axis=0) / weights.sum(axis=0)).sum()
    return whole.mean(), stepwise.sum(axis=1).mean(), whole.sum() / last.sum(), normalised


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("name", ["world", "leaving_world"])
def test_definitions(name: str, discount: float, request: pytest.FixtureRequest) -> None:
    drawn = request.getfixturevalue(name).draw(60, seed=1)
    data = drawn.data(error=None)
    functions = (trajectory, per_decision, self_normalised_trajectory, self_normalised_per_decision)
    for price in range(2):
        for function, expected in zip(functions, loop(drawn, price, discount), strict=True):
            np.testing.assert_allclose(function(data, discount).moments.value[0, price], expected, rtol=1e-12)


@pytest.mark.parametrize("function", [trajectory, per_decision])
def test_unbiased_over_every_path(function, paths: tuple[Drawn, FloatArray]) -> None:
    drawn, chances = paths
    terms = function(drawn.data(error=None))
    expected = np.einsum("u,oup->op", chances, terms.plain)
    np.testing.assert_allclose(expected, drawn.world.truth, rtol=1e-11)


@pytest.mark.parametrize("function", [self_normalised_trajectory, self_normalised_per_decision])
def test_self_normalised_limit_over_every_path(function, paths: tuple[Drawn, FloatArray]) -> None:
    """With as many users as one likes, means are expectations: the weights' is 1, and the value is the truth."""
    drawn, chances = paths
    terms = function(drawn.data(error=None))
    weights = np.einsum("u,sup->sp", chances, terms.weights)
    np.testing.assert_allclose(weights, 1.0, rtol=1e-11)
    numerators = np.einsum("u,osup->op", chances, terms.numerators)
    np.testing.assert_allclose(numerators, drawn.world.truth, rtol=1e-11)


@pytest.mark.parametrize(
    "function", [trajectory, per_decision, self_normalised_trajectory, self_normalised_per_decision]
)
def test_near_the_truth_on_a_drawn_log(function, leaving_world: World) -> None:
    """Within 4 of its own standard errors: chance alone fails one in 16,000 of eight comparisons."""
    moments = function(leaving_world.draw(20_000, seed=2).data(error=None)).moments
    assert (np.abs(moments.value - leaving_world.truth) < 4 * moments.standard_error).all()
    assert (moments.standard_error < 0.05 * np.abs(leaving_world.truth).max()).all()


@pytest.mark.parametrize(
    "function", [trajectory, per_decision, self_normalised_trajectory, self_normalised_per_decision]
)
def test_standard_errors_match_the_spread_over_logs(function, leaving_world: World) -> None:
    """400 logs know their spread to 3.5 %, more with heavy tails: 15 % is four times that."""
    results = [function(leaving_world.draw(400, seed=seed).data(error=None)).moments for seed in range(400)]
    spread = np.std([result.value for result in results], axis=0, ddof=1)
    claimed = np.sqrt(np.mean([result.standard_error**2 for result in results], axis=0))
    np.testing.assert_allclose(claimed / spread, 1.0, atol=0.15)


def test_several_loggers_in_one_log(leaving_world: World) -> None:
    """Half of the users were logged by another policy: each row brings its own propensity."""
    other = np.roll(leaving_world.behaviour, 1, axis=1)
    first = leaving_world.draw(10_000, seed=3)
    second = leaving_world.draw(10_000, seed=4, behaviour=other)
    table = second.table.copy()
    table[:, 0] += first.users
    both = Drawn(leaving_world, 20_000, np.concatenate([first.table, table]))
    moments = per_decision(both.data(error=None)).moments
    assert (np.abs(moments.value - leaving_world.truth) < 4 * moments.standard_error).all()


def test_estimated_propensities(leaving_world: World) -> None:
    """Shares of actions by state in place of the true propensities."""
    drawn = leaving_world.draw(20_000, seed=5)
    counts = np.zeros(leaving_world.behaviour.shape)
    np.add.at(counts, (drawn.state, drawn.action), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    data = drawn.data(error=None, propensity=shares[drawn.state, drawn.action])
    moments = per_decision(data).moments
    assert (np.abs(moments.value - leaving_world.truth) < 4 * moments.standard_error).all()

"""Marginalised ratios and the doubly robust estimate made with them."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.doubly_robust import doubly_robust
from redenvelope.evaluation.evidence import gather
from redenvelope.evaluation.marginalised import by_cell, by_features, marginal_ratios, marginalised
from redenvelope.evaluation.tabular import fitted_values
from redenvelope.finite.evaluate import occupancy

from .conftest import Drawn, FloatArray, World, make_world


def exact_ratio(drawn: Drawn) -> FloatArray:
    """[rows, duals]."""
    world = drawn.world
    logged = occupancy(world.problem, world.behaviour).sum(axis=2)
    planned = np.stack([occupancy(world.problem, policy).sum(axis=2) for policy in world.policies], axis=1)
    return (planned / logged[:, None])[drawn.step, :, drawn.state]


@pytest.mark.parametrize("error", [0.0, 0.7])
def test_right_ratios_and_any_baseline(error: float, paths: tuple[Drawn, FloatArray]) -> None:
    drawn, chances = paths
    terms = marginalised(drawn.evidence(error), exact_ratio(drawn))
    np.testing.assert_allclose(np.einsum("u,tud->td", chances, terms.plain), drawn.world.truth, rtol=1e-11)


def test_right_baseline_and_any_ratios(paths: tuple[Drawn, FloatArray]) -> None:
    drawn, chances = paths
    evidence = drawn.evidence(0.0)
    wrong = 0.5 + np.abs(np.sin(drawn.step + 3 * drawn.state))[:, None] * [1.0, 2.0]
    terms = marginalised(evidence, wrong)
    np.testing.assert_allclose(np.einsum("u,tud->td", chances, terms.plain), drawn.world.truth, rtol=1e-11)


def test_ratios_by_cell_approach_the_exact_ones(leaving_world: World) -> None:
    drawn = leaving_world.draw(20_000, seed=1)
    cells = drawn.state + 10 * drawn.step
    found = marginal_ratios(drawn.evidence(error=None), by_cell(cells))
    np.testing.assert_allclose(found, exact_ratio(drawn), rtol=0.1)


def test_features_that_mark_the_cells_give_nearly_the_same(leaving_world: World) -> None:
    drawn = leaving_world.draw(5_000, seed=2)
    evidence = drawn.evidence(error=None)
    marks = np.eye(leaving_world.problem.states)[drawn.state]
    by_mark = marginal_ratios(evidence, by_features(marks, penalty=1e-6))
    np.testing.assert_allclose(by_mark, marginal_ratios(evidence, by_cell(drawn.state)), rtol=1e-3)


def test_learned_from_the_log_alone_it_is_right_and_has_the_least_error() -> None:
    """Six steps through four states: products of ratios grow, ratios of states do not."""
    world = make_world(21, states=4, actions=3, steps=6)
    marginal, product, errors = [], [], []
    for seed in range(60):
        drawn = world.draw(500, seed=seed)
        evidence = fitted_values(drawn.evidence(error=None), drawn.state, drawn.action, drawn.probabilities)
        result = marginalised(evidence, marginal_ratios(evidence, by_cell(drawn.state))).moments
        marginal.append(result.value)
        errors.append(result.standard_error)
        product.append(doubly_robust(evidence).moments.value)
    spread = np.std(marginal, axis=0, ddof=1)
    assert (np.abs(np.mean(marginal, axis=0) - world.truth) < 4 * spread / np.sqrt(60)).all()
    assert (spread < 0.8 * np.std(product, axis=0, ddof=1)).all()
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(errors), axis=0)) / spread, 1.0, atol=0.35)


def test_a_state_that_no_other_user_met(leaving_world: World) -> None:
    """Every row its own cell: nothing to average over, so the weights are products of ratios."""
    drawn = leaving_world.draw(40, seed=3)
    evidence = drawn.evidence(0.5)
    alone = marginal_ratios(evidence, by_cell(np.arange(evidence.rows)))
    np.testing.assert_allclose(marginalised(evidence, alone).plain, doubly_robust(evidence).plain, rtol=1e-10)


def test_shape_is_checked(leaving_world: World) -> None:
    with pytest.raises(UsageError, match="state_ratio"):
        marginalised(leaving_world.draw(5, seed=0).evidence(0.0), np.ones(3))


def test_a_bounded_regression_keeps_the_mean_of_the_weights() -> None:
    """A sure policy, and features that say nothing: predictions below 0 are cut off, and must not raise the mean."""
    users, steps, actions = 600, 5, 5
    generator = np.random.default_rng(0)
    action = generator.integers(actions, size=users * steps)
    evidence = gather(
        starts=np.arange(users + 1) * steps,
        action=action,
        propensity=np.full(users * steps, 1 / actions),
        outcomes={"cost": np.zeros(users * steps)},
        probabilities=np.tile(np.eye(actions)[0], (users * steps, 1)),
    )
    features = generator.normal(size=(users * steps, 150))
    ratios = marginal_ratios(evidence, by_features(features)).reshape(users, steps)
    # The mean is that of the ratios before it, whose error is √(4 / 600) = 0.08 a step: over four steps 0.16, and
    # four of those. Cut off and not scaled back, the mean is 2.7.
    assert ratios[:, -1].mean() == pytest.approx(1.0, abs=0.65)

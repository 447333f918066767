"""Marginalised ratios and the doubly robust estimate made with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope import randomness as chance
from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.doubly_robust import doubly_robust
from redenvelope.evaluation.evaluate import evaluate, evaluate_partitions
from redenvelope.evaluation.jackknife import SparsePrices
from redenvelope.evaluation.marginalised import Marginalised, Regression, RidgeOnFeatures
from redenvelope.evaluation.partitions import as_partitions
from redenvelope.finite.problem import occupancy

from .cells import MeansByCell, fitted_values
from .conftest import Drawn, FloatArray, World, make_world

Regress = Callable[[np.ndarray, FloatArray, np.ndarray], FloatArray]


def exact_ratio(drawn: Drawn) -> FloatArray:
    """[rows, prices]."""
    world = drawn.world
    logged = occupancy(world.problem, world.behaviour).sum(axis=2)
    planned = np.stack([occupancy(world.problem, policy).sum(axis=2) for policy in world.policies], axis=1)
    return (planned / logged[:, None])[drawn.step, :, drawn.state]


def weighed(data: OffPolicyData, state_ratio: FloatArray) -> OffPolicyData:
    """The data with ratios of states [rows, prices] in place of products of ratios."""
    weights = np.empty((data.steps, data.users, data.prices))
    for position, (users, rows) in enumerate(data.positions):
        weights[position:, users] = state_ratio[rows] * data.ratio[rows]
    return replace(data, own_weights=weights)


def learned_ratios(data: OffPolicyData, regression: Regression) -> FloatArray:
    """Ratios of states by step, [steps, users, prices]: the weights of users whose own actions say nothing."""
    ratios = Marginalised(regression).ratios(as_partitions([data]))
    return ratios.weigh(replace(data, ratio=np.ones_like(data.ratio))).weights


def by_step(data: OffPolicyData, rows: FloatArray) -> FloatArray:
    """Numbers of rows [rows, prices] as [steps, users, prices]; a user who has left keeps the last."""
    return weighed(replace(data, ratio=np.ones_like(data.ratio)), rows).weights


@pytest.mark.parametrize("error", [0.0, 0.7])
def test_right_ratios_and_any_baseline(error: float, paths: tuple[Drawn, FloatArray]) -> None:
    drawn, chances = paths
    terms = doubly_robust(weighed(drawn.data(error), exact_ratio(drawn)))
    np.testing.assert_allclose(np.einsum("u,oup->op", chances, terms.plain), drawn.world.truth, rtol=1e-11)


def test_right_baseline_and_any_ratios(paths: tuple[Drawn, FloatArray]) -> None:
    drawn, chances = paths
    wrong = 0.5 + np.abs(np.sin(drawn.step + 3 * drawn.state))[:, None] * [1.0, 2.0]
    terms = doubly_robust(weighed(drawn.data(0.0), wrong))
    np.testing.assert_allclose(np.einsum("u,oup->op", chances, terms.plain), drawn.world.truth, rtol=1e-11)


def ridge_all_at_once(inputs: FloatArray, penalty: float) -> Regress:
    """Ridge regression on rows of inputs [rows, features]: rows learned from, values, rows asked for -> values."""
    design = np.column_stack([np.ones(len(inputs)), inputs])
    ridge = penalty * np.diag([0.0] + [1.0] * inputs.shape[1])

    def regress(known: np.ndarray, values: FloatArray, asked: np.ndarray) -> FloatArray:
        train = design[known]
        scales = np.linalg.lstsq(train.T @ train + ridge, train.T @ values, rcond=None)[0]
        return np.maximum(design[asked] @ scales, 0.0)

    return regress


def means_all_at_once(cells: np.ndarray) -> Regress:
    """Means by cell [rows]; not a number in a cell that nobody learned from was in."""

    def regress(known: np.ndarray, values: FloatArray, asked: np.ndarray) -> FloatArray:
        means = {cell: values[cells[known] == cell].mean(axis=0) for cell in np.unique(cells[known])}
        return np.array([means.get(cell, np.full(values.shape[1], np.nan)) for cell in cells[asked]])

    return regress


def ratios_all_at_once(data: OffPolicyData, regress: Regress, fold: np.ndarray) -> FloatArray:
    """Ratios of states, [rows, prices], by the definition: for each fold [users], a regression step after step on all
    users of other folds at once, scaled to the mean of the weights of those it was learned from."""
    result = np.ones_like(data.ratio)
    for number in range(int(fold.max()) + 1):
        arriving, found = np.ones((data.users, data.prices)), np.ones_like(data.ratio)
        for position in range(int(data.lengths.max())):
            users = np.flatnonzero(data.lengths > position)
            rows, known, weight = data.starts[users] + position, fold[users] != number, arriving[users]
            if position and known.any():
                fitted = regress(rows[known], weight[known], rows)
                fitted = np.where(np.isnan(fitted), weight, fitted)
                found[rows] = fitted * weight[known].mean(axis=0) / fitted[known].mean(axis=0)
            elif position:
                found[rows] = weight
            arriving[users] = found[rows] * data.ratio[rows]
        held = np.repeat(fold == number, data.lengths)
        result[held] = found[held]
    return result


def sharp_world(leaving: float) -> World:
    """Five steps, and policies so sure of what they do that regressions fall below 0."""
    world = make_world(21, leaving=leaving, steps=5)
    sure = world.policies**8
    return replace(world, policies=sure / sure.sum(axis=2, keepdims=True))


@pytest.mark.parametrize("kind", ["ridge", "cells"])
@pytest.mark.parametrize("leaving", [0.0, 0.2])
@pytest.mark.parametrize("users", [600, 12])
def test_the_same_as_all_users_at_once(kind: str, leaving: float, users: int) -> None:
    """From sums over partitions; with 12 users, some cells and even whole steps have nobody to learn from."""
    drawn = sharp_world(leaving).draw(users, seed=4)
    generator = np.random.default_rng(0)
    # Features that tell of the state among others.
    inputs = np.column_stack([drawn.state, generator.normal(size=(len(drawn.table), 12))]).astype(np.float32)
    inputs = inputs if kind == "ridge" else drawn.table[:, 2:4]  # a cell is a state and an action
    regression: Regression = RidgeOnFeatures(0.5) if kind == "ridge" else MeansByCell()
    data = drawn.data(0.5, features=inputs)
    cells = drawn.state * 10 + drawn.action
    regress = ridge_all_at_once(inputs.astype(float), 0.5) if kind == "ridge" else means_all_at_once(cells)
    expected = ratios_all_at_once(data, regress, chance.fold(data.keys, 5, "cross-fit", 7))
    if kind == "ridge":
        assert (expected == 0).any()  # some were cut off, so that scales matter
    estimator = Marginalised(regression, folds=5, seed=7)
    found = evaluate_partitions(list(data.batches(users // 3 - 1)), [estimator], 0.9)["marginalised"]
    terms = doubly_robust(weighed(data, expected), 0.9)
    np.testing.assert_allclose(found.influence(), terms.plain, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.value, terms.moments.value, rtol=1e-9)
    np.testing.assert_allclose(found.moments.standard_error, terms.moments.standard_error, rtol=1e-9)
    products = by_step(data, expected * data.ratio)
    np.testing.assert_allclose(found.diagnostics.mean_weight, products.mean(axis=1), rtol=1e-9)
    np.testing.assert_allclose(found.diagnostics.largest, products.max(axis=1), rtol=1e-9)


def test_ratios_by_cell_approach_the_exact_ones(leaving_world: World) -> None:
    drawn = leaving_world.draw(20_000, seed=1)
    data = drawn.data(error=None)
    found = learned_ratios(data, MeansByCell())
    np.testing.assert_allclose(found, by_step(data, exact_ratio(drawn)), rtol=0.1)


def test_features_that_mark_the_cells_give_nearly_the_same(leaving_world: World) -> None:
    drawn = leaving_world.draw(5_000, seed=2)
    marks = np.eye(leaving_world.problem.states)[drawn.state]
    by_mark = learned_ratios(drawn.data(None, features=marks), RidgeOnFeatures(penalty=1e-6))
    np.testing.assert_allclose(by_mark, learned_ratios(drawn.data(None), MeansByCell()), rtol=1e-3)


def test_learned_from_the_log_alone_it_is_right_and_has_the_least_error() -> None:
    """Six steps through four states: products of ratios grow, ratios of states do not."""
    world = make_world(21, states=4, actions=3, steps=6)
    marginal, product, errors = [], [], []
    for seed in range(60):
        drawn = world.draw(500, seed=seed)
        data = fitted_values(drawn.data(error=None), drawn.state, drawn.action, drawn.probabilities)
        result = evaluate(data, Marginalised(MeansByCell()))
        marginal.append(result.value)
        errors.append(result.moments.standard_error)
        product.append(doubly_robust(data).moments.value)
    spread = np.std(marginal, axis=0, ddof=1)
    assert (np.abs(np.mean(marginal, axis=0) - world.truth) < 4 * spread / np.sqrt(60)).all()
    assert (spread < 0.8 * np.std(product, axis=0, ddof=1)).all()
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(errors), axis=0)) / spread, 1.0, atol=0.35)


def test_the_standard_error_includes_what_was_learned() -> None:
    """Where few follow a sure policy, learned ratios add up to two thirds of the error.

    The spread of 200 logs is known to 5 %, the mean factor of ten to 6 % by the spread of single ones: four of both.
    """
    world, values, plain, with_learning = sharp_world(0.0), [], [], []
    for seed in range(200):
        found = evaluate(world.draw(600, seed=seed).data(error=1.0), Marginalised(MeansByCell()))
        values.append(found.value)
        plain.append(found.moments.standard_error)
        if seed < 10:
            with_learning.append(found.learning_factor)
    spread = np.std(values, axis=0, ddof=1)
    own_error = np.sqrt(np.mean(np.square(plain), axis=0))
    assert (spread / own_error).max() > 1.5
    np.testing.assert_allclose(np.mean(with_learning, axis=0) * own_error / spread, 1.0, atol=0.31)


def test_one_of_many_prices_is_enough_for_the_error_of_learning() -> None:
    """Interpolated between every second price; the same as with all of them where it is computed."""
    data = sharp_world(0.0).draw(300, seed=0).data(error=1.0)
    prices = data.at_prices(np.array([0, 0, 1, 1]))
    estimator = Marginalised(MeansByCell())
    everywhere = evaluate(prices, estimator).learning_factor
    sparse = SparsePrices((range(4),), (2,))
    found = evaluate_partitions([prices], [estimator], sparse=sparse)[estimator.name].learning_factor
    np.testing.assert_allclose(found[:, [0, 2, 3]], everywhere[:, [0, 2, 3]], rtol=1e-12)
    np.testing.assert_allclose(found[:, 1], everywhere[:, [0, 2]].mean(axis=1), rtol=1e-12)


def test_a_state_that_no_other_user_met(leaving_world: World) -> None:
    """Every row its own cell: nothing to average over, so the weights are products of ratios."""
    drawn = leaving_world.draw(40, seed=3)
    data = drawn.data(0.5, features=np.arange(len(drawn.table))[:, None].astype(float))
    alone = evaluate(data, Marginalised(MeansByCell()))
    np.testing.assert_allclose(alone.influence(), doubly_robust(data).plain, rtol=1e-10)


def test_one_step_needs_no_ratios_of_states() -> None:
    drawn = make_world(4, steps=1).draw(50, seed=0)
    data = drawn.data(0.5)
    np.testing.assert_array_equal(evaluate(data, Marginalised()).influence(), doubly_robust(data).plain)


def test_wrong_uses(leaving_world: World) -> None:
    data = leaving_world.draw(30, seed=0).data(0.0)
    with pytest.raises(UsageError, match="pass `features` with the off-policy data"):
        evaluate(replace(data, features=None), Marginalised())
    with pytest.raises(UsageError, match="penalty"):
        RidgeOnFeatures(0.0)
    with pytest.raises(UsageError, match="at least 2 folds"):
        evaluate(data, Marginalised(folds=1))


def test_a_bounded_regression_keeps_the_mean_of_the_weights() -> None:
    """A sure policy, and features that say nothing: predictions below 0 are cut off, and must not raise the mean."""
    users, steps, actions = 600, 5, 5
    generator = np.random.default_rng(0)
    action = generator.integers(actions, size=users * steps)
    data = gather(
        starts=np.arange(users + 1) * steps,
        keys=np.arange(users),
        action=action,
        propensity=np.full(users * steps, 1 / actions),
        outcomes=np.zeros((1, users * steps)),
        outcome_names=["cost"],
        probabilities=np.tile(np.eye(actions)[0], (users * steps, 1)),
        features=generator.normal(size=(users * steps, 150)),
    )
    ratios = learned_ratios(data, RidgeOnFeatures())
    # The mean is that of the ratios before it, whose error is √(4 / 600) = 0.08 a step: over four steps 0.16, and
    # four of those. Cut off and not scaled back, the mean is 2.7.
    assert ratios[-1].mean() == pytest.approx(1.0, abs=0.65)

"""Regressions from sums: against all rows at once, over partitions, and what is left of their precision."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from redenvelope.evaluation.marginalised import Arriving, Regression, RidgeOnFeatures

from .cells import MeansByCell

FOLDS, FEATURES, PRICES = 5, 40, 3


def arriving(users: int, seed: int, centre: float = 0.0) -> tuple[list[Arriving], np.ndarray, np.ndarray]:
    """Users of each fold, and all of them: inputs [users, features] and weights [folds, users, prices]."""
    generator = np.random.default_rng(seed)
    inputs = generator.normal(centre, 1.0, size=(users, FEATURES))
    weights = generator.lognormal(size=(FOLDS, users, PRICES))
    parts = [
        Arriving(inputs[number::FOLDS], np.delete(weights, number, axis=0)[:, number::FOLDS]) for number in range(FOLDS)
    ]
    return parts, inputs, weights


@pytest.mark.parametrize("centre", [0.0, 5.0])
def test_ridge_is_that_of_the_rows_themselves(centre: float) -> None:
    """Standardised features, and some that are five spreads off: squares of a fold taken from the total lose nothing.

    The reference solves least squares with the penalty as rows of its own, and never forms squares.
    """
    parts, inputs, weights = arriving(2_000, seed=1, centre=centre)
    fitted = RidgeOnFeatures(2.0).sums(parts).fit()
    design = np.column_stack([np.ones(len(inputs)), inputs])
    penalty = np.sqrt(2.0) * np.eye(1 + FEATURES)[1:]
    for number in range(FOLDS):
        others = np.arange(len(inputs)) % FOLDS != number
        system = np.concatenate([design[others], penalty])
        wanted = np.concatenate([weights[number, others], np.zeros((FEATURES, PRICES))])
        expected = np.maximum(design @ np.linalg.lstsq(system, wanted, rcond=None)[0], 0.0)
        np.testing.assert_allclose(fitted.by_own(inputs, number), expected, rtol=1e-9, atol=1e-10)


def test_by_own_and_by_others_are_the_same_regressions() -> None:
    parts, inputs, _ = arriving(200, seed=2)
    for regression in (RidgeOnFeatures(), MeansByCell()):
        fitted = regression.sums(parts).fit()
        every = np.stack([fitted.by_own(inputs, number) for number in range(FOLDS)])
        for number in range(FOLDS):
            np.testing.assert_allclose(fitted.by_others(inputs, number), np.delete(every, number, axis=0), rtol=1e-12)


@pytest.mark.parametrize("regression", [RidgeOnFeatures(), MeansByCell()])
def test_weights_that_are_the_same_for_all_folds(regression: Regression) -> None:
    parts, inputs, _ = arriving(200, seed=3)
    same = [Arriving(part.features, part.weights[0]) for part in parts]
    repeated = [Arriving(part.features, np.repeat(part.weights[:1], FOLDS - 1, axis=0)) for part in parts]
    for number in range(FOLDS):
        once, often = (regression.sums(given).fit().by_own(inputs, number) for given in (same, repeated))
        np.testing.assert_allclose(once, often, rtol=1e-12)


@pytest.mark.parametrize("regression", [RidgeOnFeatures(), MeansByCell()])
def test_sums_of_batches_merge_to_the_same(regression: Regression) -> None:
    parts, inputs, _ = arriving(500, seed=4)
    # Cells that repeat, and batches in which a fold has nobody.
    rounded = [Arriving(np.round(part.features[:, :2]), part.weights) for part in parts]
    asked = np.round(inputs[:, :2])
    edges = [0, 1, 30, 30, 77]
    batches = []
    for first, last in zip(edges, [*edges[1:], None], strict=True):
        part = slice(first, last)
        batches.append(regression.sums([Arriving(users[0][part], users[1][:, part]) for users in rounded]))
    merged = reduce(lambda one, other: one.merge(other), batches).fit()
    whole = regression.sums(rounded).fit()
    for number in range(FOLDS):
        found, expected = (fitted.by_own(asked, number) for fitted in (merged, whole))
        np.testing.assert_allclose(found, expected, rtol=1e-11)
        assert not np.isnan(found).all()


def test_a_fold_with_nobody_to_learn_from_knows_nothing() -> None:
    parts, inputs, _ = arriving(20, seed=5)
    nobody = Arriving(inputs[:0], np.empty((FOLDS - 1, 0, PRICES)))
    fitted = RidgeOnFeatures().sums([parts[0], *[nobody] * (FOLDS - 1)]).fit()
    assert not fitted.knows_all
    assert np.isnan(fitted.by_own(inputs, 0)).all()
    assert not np.isnan(fitted.by_own(inputs, 1)).any()


def nested(users: int, seed: int, signal: float) -> list[Arriving]:
    """Weights that follow the first two features, and by so much the product that is the third of a set of 30."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((users, 30))
    weights = 1 + 0.3 * inputs[:, 0] + signal * inputs[:, 2] + generator.standard_normal(users)
    return [Arriving(inputs[fold::FOLDS], weights[fold::FOLDS, None], (2, 30)) for fold in range(FOLDS)]


@pytest.mark.parametrize(("signal", "width"), [(0.0, 2), (0.5, 30)])
def test_a_larger_set_of_features_is_taken_where_held_out_users_say_so(signal: float, width: int) -> None:
    parts = nested(1_000, seed=4, signal=signal)
    assert RidgeOnFeatures().sums(parts).fit().scales.shape[1] == 1 + width


def test_held_out_errors_from_sums_are_those_of_the_rows() -> None:
    parts = nested(200, seed=5, signal=0.5)
    sums = RidgeOnFeatures().sums(parts)
    line = sums._solved(0, np.array([1, 2, 3]), 30)
    design = np.column_stack([np.ones(len(parts[4].features)), parts[4].features])
    expected = ((parts[4].weights - design @ line) ** 2).sum(axis=0)
    np.testing.assert_allclose(sums._error(0, 4, line), expected, rtol=1e-9)

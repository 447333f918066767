"""Bounds for skewed money: against the transformation they undo, over partitions, and by how often they cover."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from redenvelope.evaluation.confidence import Spread, normal_score, skewness_of_mean, studentised_quantile
from redenvelope.evaluation.evaluate import evaluate, evaluate_partitions

from .conftest import World


@pytest.mark.parametrize("lean", [-0.4, -1e-9, 0.0, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("chance", [0.025, 0.05, 0.5, 0.95])
def test_quantiles_undo_halls_transformation(lean: float, chance: float) -> None:
    found = float(studentised_quantile(chance, np.array(lean)))
    assert float(normal_score(found, lean)) == pytest.approx(float(ndtri(chance)), abs=1e-5)


def test_quantiles_are_those_of_a_studentised_mean() -> None:
    """200,000 means of 40 exponentials (γ = 2): their own quantiles, where normal ones are off by 0.2 and more."""
    draws = np.random.default_rng(0).exponential(size=(200_000, 40))
    errors = draws.std(axis=1, ddof=1) / np.sqrt(40)
    studentised = (draws.mean(axis=1) - 1) / errors
    for chance in (0.05, 0.95):
        expected = float(np.quantile(studentised, chance))
        assert float(studentised_quantile(chance, np.array(2 / np.sqrt(40)))) == pytest.approx(expected, abs=0.12)
        assert abs(float(ndtri(chance)) - expected) > 0.2


def test_sums_merge_to_those_of_all_users() -> None:
    draws = np.random.default_rng(1).lognormal(5.0, 1.0, size=(3_000, 2, 4))
    whole = Spread.of(draws)
    merged = Spread.of(draws[:100]).merge(Spread.of(draws[100:2_000])).merge(Spread.of(draws[2_000:]))
    for name in ("mean", "squares", "cubes", "standard_error", "skewness"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-10)
    np.testing.assert_allclose(merged.upper(0.95), whole.upper(0.95), rtol=1e-12)
    np.testing.assert_allclose(whole.standard_error, draws.std(axis=0, ddof=1) / np.sqrt(3_000), rtol=1e-12)


def test_who_deviates_by_nothing_has_no_skewness() -> None:
    assert float(skewness_of_mean(0.0, 0.0)) == 0.0
    same = Spread.of(np.full(10, 3.0))
    assert float(same.upper(0.95)) == float(same.lower(0.95)) == 3.0
    assert np.isposinf(Spread.of(np.ones(1)).upper(0.95))


def test_evaluations_have_the_skewness_of_their_influence(leaving_world: World) -> None:
    """Plain means by sums that merge; self-normalised ones by groups of users, which here are users."""
    drawn = leaving_world.draw(1_500, seed=4).data(0.4)
    parts = list(drawn.batches(400))
    for name in ("doubly_robust", "weighted_doubly_robust"):
        evaluation = evaluate_partitions(parts, [name])[name]
        spread = Spread.of(evaluation.influence(), axis=1)
        for side in ("upper", "lower"):
            bounds = evaluation.bounds(0.95, side)
            expected = getattr(spread, side)(0.95)
            np.testing.assert_allclose(getattr(bounds, side), expected, rtol=1e-9)
        normal = evaluation.value + 1.96 * evaluation.standard_error
        assert not np.allclose(evaluation.bounds(0.95).upper, normal)


def test_both_sides_share_the_error_probability(leaving_world: World) -> None:
    evaluation = evaluate(leaving_world.draw(500, seed=5).data(0.4))
    both = evaluation.bounds(0.90)
    np.testing.assert_allclose(both.upper, evaluation.bounds(0.95, "upper").upper, rtol=1e-12)
    np.testing.assert_allclose(both.lower, evaluation.bounds(0.95, "lower").lower, rtol=1e-12)


def test_log_normal_money_is_covered_where_a_normal_bound_is_not() -> None:
    """2,000 samples of 600 users, log-normal with a spread of 1 (γ = 6): a share is known to 0.5 %."""
    draws = np.random.default_rng(2).lognormal(-0.5, 1.0, size=(600, 2_000))
    spread = Spread.of(draws)
    normal = spread.mean + float(ndtri(0.95)) * spread.standard_error
    assert (spread.upper(0.95) >= 1).mean() >= 0.93
    assert (normal >= 1).mean() < 0.925
    # A lower bound that is normal is timid, not wrong; the skewed one is neither.
    assert 0.935 <= (spread.lower(0.95) <= 1).mean() <= 0.98

"""MAGIC and more robust doubly robust: at least as good as what they blend, and right in the limit."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.blended import _simplex_minimum, magic, more_robust, more_robust_with
from redenvelope.evaluation.doubly_robust import direct, doubly_robust, weighted_doubly_robust
from redenvelope.evaluation.importance import per_decision

from .conftest import World


def test_simplex_minimum_against_a_grid() -> None:
    generator = np.random.default_rng(0)
    side = np.linspace(0, 1, 101)
    first, second = np.meshgrid(side, side)
    inside = first + second <= 1 + 1e-9
    grid = np.column_stack([first[inside], second[inside], 1 - first[inside] - second[inside]])
    for _ in range(20):
        root = generator.normal(size=(3, 3))
        matrix = root @ root.T
        shares = _simplex_minimum(matrix)
        assert shares.min() >= 0 and shares.sum() == pytest.approx(1)
        least = np.einsum("gi,ij,gj->g", grid, matrix, grid).min()
        # The grid is 0.01 wide, so its least value is a little above the true one, never below.
        assert least - 0.01 <= shares @ matrix @ shares <= least + 1e-12


def test_magic_shares_fall_from_step_to_step(leaving_world: World) -> None:
    terms = magic(leaving_world.draw(300, seed=1).evidence(0.5))
    assert terms.shares.min() >= 0 and terms.shares.max() <= 1 + 1e-12
    assert (np.diff(terms.shares, axis=1) <= 1e-12).all()


def test_magic_leaves_a_wrong_baseline_as_users_grow(leaving_world: World) -> None:
    """The baseline is far off: with few users as with many, MAGIC must not follow it."""
    evidence = leaving_world.draw(20_000, seed=2).evidence(0.7)
    blended, weighted = magic(evidence).moments, weighted_doubly_robust(evidence).moments
    assert (np.abs(blended.value - leaving_world.truth) < 4 * weighted.standard_error).all()
    assert (np.abs(direct(evidence).moments.value - leaving_world.truth) > 10 * weighted.standard_error).all()


def test_magic_has_less_error_than_weighted_doubly_robust_with_a_right_baseline(leaving_world: World) -> None:
    logs = [leaving_world.draw(80, seed=seed).evidence(0.0) for seed in range(150)]
    errors = [magic(log).moments.value - leaving_world.truth for log in logs]
    weighted = [weighted_doubly_robust(log).moments.value - leaving_world.truth for log in logs]
    assert (np.square(errors).mean(axis=0) < np.square(weighted).mean(axis=0)).all()


def test_more_robust_is_unbiased_and_never_much_worse_than_either(leaving_world: World) -> None:
    logs = [leaving_world.draw(200, seed=seed).evidence(0.6) for seed in range(200)]
    values = np.array([more_robust(log).moments.value for log in logs])
    spread = values.std(axis=0, ddof=1)
    assert (np.abs(values.mean(axis=0) - leaving_world.truth) < 4 * spread / np.sqrt(len(logs))).all()
    others = [
        np.std([function(log).moments.value for log in logs], axis=0) for function in (doubly_robust, per_decision)
    ]
    # Five coefficients from 160 users cost 3 %; the spread itself is known to 5 %.
    assert (spread < 1.1 * np.minimum(*others)).all()


def test_more_robust_throws_a_senseless_baseline_away(leaving_world: World) -> None:
    logs = [leaving_world.draw(200, seed=seed).evidence(1.0) for seed in range(100)]
    spreads = [
        np.std([function(log).moments.value[0] for log in logs], axis=0) for function in (more_robust, doubly_robust)
    ]
    assert (spreads[0] < 0.9 * spreads[1]).all()


def test_more_robust_errors_match_the_spread(leaving_world: World) -> None:
    results = [more_robust(leaving_world.draw(300, seed=seed).evidence(0.5)).moments for seed in range(200)]
    claimed = np.sqrt(np.mean([result.standard_error**2 for result in results], axis=0))
    spread = np.std([result.value for result in results], axis=0, ddof=1)
    np.testing.assert_allclose(claimed / spread, 1.0, atol=0.2)


def test_columns_must_fit(leaving_world: World) -> None:
    evidence = leaving_world.draw(20, seed=0).evidence(0.0)
    with pytest.raises(UsageError, match="columns"):
        more_robust_with(evidence, np.zeros((1, 20, 2, 2)))
    with pytest.raises(UsageError, match="at least 5 users"):
        more_robust(leaving_world.draw(3, seed=0).evidence(0.0))

"""MAGIC: at least as good as what it blends, and right in the limit."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.evaluation.doubly_robust import _simplex_minimum, weighted_doubly_robust
from redenvelope.evaluation.evaluate import evaluate
from redenvelope.evaluation.importance_sampling import direct

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
    shares = evaluate(leaving_world.draw(300, seed=1).data(0.5), "magic").moments.shares
    assert shares.min() >= 0 and shares.max() <= 1 + 1e-12
    assert (np.diff(shares, axis=1) <= 1e-12).all()


def test_magic_leaves_a_wrong_baseline_as_users_grow(leaving_world: World) -> None:
    """The baseline is far off: with few users as with many, MAGIC must not follow it."""
    data = leaving_world.draw(20_000, seed=2).data(0.7)
    blended, weighted = evaluate(data, "magic"), weighted_doubly_robust(data).moments
    assert (np.abs(blended.value - leaving_world.truth) < 4 * weighted.standard_error).all()
    assert (np.abs(direct(data).moments.value - leaving_world.truth) > 10 * weighted.standard_error).all()


def test_magic_has_less_error_than_weighted_doubly_robust_with_a_right_baseline(leaving_world: World) -> None:
    logs = [leaving_world.draw(80, seed=seed).data(0.0) for seed in range(150)]
    errors = [evaluate(log, "magic").value - leaving_world.truth for log in logs]
    weighted = [weighted_doubly_robust(log).moments.value - leaving_world.truth for log in logs]
    assert (np.square(errors).mean(axis=0) < np.square(weighted).mean(axis=0)).all()

"""The baseline learned from the log: exact where the log is the whole truth, and cross-fitted."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.estimators import direct
from redenvelope.evaluation.marginalised import cell_means, fitted_values

from .conftest import World


def test_means_by_cell() -> None:
    means, sizes = cell_means(np.array([0, 2, 0]), 3, np.array([[1.0, 2.0], [5.0, 6.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(sizes, [2, 0, 1])
    np.testing.assert_allclose(means, [[2.0, 3.0], [0.0, 0.0], [5.0, 6.0]])


def test_approaches_the_exact_values(leaving_world: World) -> None:
    drawn = leaving_world.draw(30_000, seed=1)
    evidence = fitted_values(drawn.evidence(error=None), drawn.state, drawn.action, drawn.probabilities)
    exact = drawn.evidence(0.0)
    scale = np.abs(exact.baseline()[0]).max()
    np.testing.assert_allclose(evidence.baseline()[0], exact.baseline()[0], atol=0.06 * scale)
    np.testing.assert_allclose(evidence.baseline()[1], exact.baseline()[1], atol=0.06 * scale)
    np.testing.assert_allclose(direct(evidence).moments.value, leaving_world.truth, rtol=0.03, atol=0.03)


def test_a_user_does_not_see_the_own_outcomes(leaving_world: World) -> None:
    """Another outcome of one user changes the baselines of others, never the own."""
    drawn = leaving_world.draw(100, seed=2)
    plain = drawn.evidence(error=None)
    changed = plain.outcomes.copy()
    changed[:, plain.starts[7] : plain.starts[8]] += 100
    before = fitted_values(plain, drawn.state, drawn.action, drawn.probabilities)
    object.__setattr__(plain, "outcomes", changed)
    after = fitted_values(plain, drawn.state, drawn.action, drawn.probabilities)
    own = slice(int(plain.starts[7]), int(plain.starts[8]))
    np.testing.assert_array_equal(before.baseline()[0][:, own], after.baseline()[0][:, own])
    assert (before.baseline()[0] != after.baseline()[0]).any()


def test_shapes_are_checked(leaving_world: World) -> None:
    drawn = leaving_world.draw(20, seed=3)
    with pytest.raises(UsageError, match="cells"):
        fitted_values(drawn.evidence(error=None), drawn.state[:3], drawn.action, drawn.probabilities)

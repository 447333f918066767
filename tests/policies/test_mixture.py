from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.policies.fixed import CheapestPolicy, DearestPolicy, UniformPolicy
from redenvelope.policies.mixture import MixturePolicy

MIXTURE = MixturePolicy((CheapestPolicy(3), DearestPolicy(3), UniformPolicy(3)), (0.2, 0.7, 0.1))


@pytest.mark.parametrize("names", [range(50_000), [f"user-{number}" for number in range(50_000)]])
def test_frequencies_are_the_weights(names):
    shares = np.bincount(MIXTURE.draw(names, seed=1), minlength=3) / 50_000
    # Four standard deviations of a share of 50,000 users: at most 0.0082.
    np.testing.assert_allclose(shares, MIXTURE.weights, atol=0.0082)


def test_a_user_keeps_the_component_in_any_batch():
    drawn = MIXTURE.draw(range(1000), seed=1)
    np.testing.assert_array_equal(MIXTURE.draw(range(400, 500), seed=1), drawn[400:500])
    np.testing.assert_array_equal(MIXTURE.draw([str(number) for number in range(1000)], seed=1), drawn)
    assert (MIXTURE.draw(range(1000), seed=2) != drawn).any()


def test_a_weight_of_zero_is_never_drawn():
    mixture = MixturePolicy((CheapestPolicy(3), DearestPolicy(3)), (0.0, 1.0))
    assert (mixture.draw(range(10_000), seed=0) == 1).all()
    assert (MixturePolicy((CheapestPolicy(3),), (1.0,)).draw(range(10), seed=0) == 0).all()


def test_probabilities_follow_the_draw():
    rows = MIXTURE.probabilities_for(np.array([1, 0, 2]), np.zeros((3, 2)), 4)
    np.testing.assert_allclose(rows, [[0, 0, 1], [1, 0, 0], [1 / 3] * 3])
    mask = np.array([[True, True, False]] * 3)
    masked = MIXTURE.probabilities_for(np.array([1, 0, 2]), np.zeros((3, 2)), np.array([1, 2, 3]), mask)
    np.testing.assert_allclose(masked, [[0, 1, 0], [1, 0, 0], [0.5, 0.5, 0]])


def test_values_mix_by_weight():
    np.testing.assert_allclose(MIXTURE.mix([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]), [1.9, 19.0])


@pytest.mark.parametrize("weights", [(0.5, 0.6), (1.5, -0.5), (1.0,)])
def test_weights_that_are_no_shares(weights):
    with pytest.raises(UsageError):
        MixturePolicy((CheapestPolicy(3), DearestPolicy(3)), weights)


def test_catalogues_must_agree():
    with pytest.raises(UsageError, match="one action catalogue"):
        MixturePolicy((CheapestPolicy(3), DearestPolicy(4)), (0.5, 0.5))

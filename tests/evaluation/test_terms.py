"""Value and error from terms, from merged moments, and from influences: all the same."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope.evaluation.doubly_robust import weighted_doubly_robust
from redenvelope.evaluation.importance_sampling import per_decision
from redenvelope.evaluation.influence import Moments, Terms

from .conftest import World


def test_a_plain_mean() -> None:
    totals = np.random.default_rng(0).normal(1e6, 1.0, size=(2, 50, 3))
    moments = Terms.mean(totals).moments
    np.testing.assert_allclose(moments.value, totals.mean(axis=1), rtol=1e-14)
    np.testing.assert_allclose(moments.standard_error, totals.std(axis=1, ddof=1) / np.sqrt(50), rtol=1e-6)
    both = np.cov(totals[0, :, 1], totals[1, :, 1]) / 50
    np.testing.assert_allclose(moments.covariance[1], both, rtol=1e-6)


@pytest.mark.parametrize("users", [1, 7])
def test_batches_merge_to_the_same(users: int, leaving_world: World) -> None:
    """Batches of 40 users, the last smaller, and those of one user mostly shorter than the longest trajectory."""
    data = leaving_world.draw(40, seed=1).data(0.5)
    for function in (per_decision, weighted_doubly_robust):
        whole = function(data).moments
        merged = reduce(Moments.merge, [function(batch).moments for batch in data.batches(users)])
        of_means = ("skewness",) if function is per_decision else ()
        for name in ("value", "standard_error", "covariance", *of_means):
            np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-10, atol=1e-13)


def test_influences_give_value_and_error(leaving_world: World) -> None:
    terms = weighted_doubly_robust(leaving_world.draw(200, seed=2).data(0.5))
    influence = terms.influence(terms.moments)
    np.testing.assert_allclose(influence.mean(axis=1), terms.moments.value, rtol=1e-10)
    error = influence.std(axis=1, ddof=1) / np.sqrt(200)
    np.testing.assert_allclose(error, terms.moments.standard_error, rtol=1e-10)


def test_paired_difference_of_two_policies(leaving_world: World) -> None:
    """The same users speak for both policies: the spread over logs is that of their paired influences."""
    gaps, errors = [], []
    for seed in range(200):
        terms = per_decision(leaving_world.draw(200, seed=seed).data(None))
        influence = terms.influence(terms.moments)
        gap = influence[:, :, 1] - influence[:, :, 0]
        gaps.append(gap.mean(axis=1))
        errors.append(gap.std(axis=1, ddof=1) / np.sqrt(200))
    claimed = np.sqrt(np.mean(np.square(errors), axis=0))
    np.testing.assert_allclose(claimed / np.std(gaps, axis=0, ddof=1), 1.0, atol=0.2)


def test_no_weight_left_is_not_a_number() -> None:
    nothing = np.zeros((1, 1, 3, 1))
    moments = Terms(np.zeros((1, 3, 1)), nothing, nothing[0], np.ones((1, 1, 1))).moments
    assert np.isnan(moments.value).all()


def test_only_like_merges_with_like() -> None:
    with pytest.raises(UsageError, match="same estimator"):
        Terms.mean(np.zeros((1, 3, 1))).moments.merge(Terms.mean(np.zeros((2, 3, 1))).moments)

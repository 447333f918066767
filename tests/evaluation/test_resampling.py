"""The bootstrap: against drawing users one by one, and merged over batches."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import randomness as chance
from redenvelope.errors import UsageError
from redenvelope.evaluation import confidence as resampling
from redenvelope.evaluation.confidence import GROUPS, bootstrap_values, group_sums, studentised_draws
from redenvelope.evaluation.doubly_robust import weighted_doubly_robust
from redenvelope.evaluation.evaluate import evaluate, evaluate_partitions
from redenvelope.evaluation.influence import Terms

from .conftest import World


def test_few_users_are_drawn_one_by_one(leaving_world: World) -> None:
    """The self-normalised estimate of each replicate, its ratios taken anew, with the same draws."""
    evidence = leaving_world.draw(30, seed=1).evidence(0.5)
    terms = weighted_doubly_robust(evidence)
    groups = evaluate(evidence, "weighted_doubly_robust").groups
    np.testing.assert_array_equal(groups.sizes, np.ones(30))
    values = bootstrap_values(groups, terms.moments, 20, seed=5)
    order = np.argsort(chance.fraction(evidence.keys, "bootstrap group", 0))
    drawn = np.random.default_rng(5).integers(30, size=(20, 30), dtype=np.int32)
    for replicate, users in enumerate(order[drawn]):
        again = Terms(terms.plain[:, users], terms.numerators[:, :, users], terms.weights[:, users], terms.shares)
        np.testing.assert_allclose(values[replicate], again.moments.value, rtol=1e-10)


def test_groups_have_the_spread_of_users() -> None:
    """20,000 skewed users in 2,048 groups: 4,000 replicates know the spread to 1.1 %, groups to 1.6 %."""
    totals = np.random.default_rng(0).exponential(size=(1, 20_000, 1)) ** 2
    terms = Terms.mean(totals)
    groups = chance.fold(np.arange(20_000, dtype=np.uint64), GROUPS, "bootstrap group", 0)
    values = bootstrap_values(group_sums(terms, groups, GROUPS), terms.moments, 4000, seed=1)
    assert values.mean() == pytest.approx(float(terms.moments.value[0, 0]), rel=0.01)
    assert values.std() == pytest.approx(float(terms.moments.standard_error[0, 0]), rel=0.08)


def test_studentised_draws_know_the_skewness() -> None:
    """Skewed terms: errors in their own standard errors lean low (Hall), by skewness / √n · (2z² + 1) / 6."""
    totals = np.random.default_rng(0).exponential(size=(1, 400, 1))
    terms = Terms.mean(totals)
    draws = studentised_draws(group_sums(terms, np.arange(400), 400), terms.moments, 20_000, seed=1)[:, 0, 0]
    centred = totals - totals.mean()
    skewness = (centred**3).mean() / (centred**2).mean() ** 1.5
    for tail, normal in ((0.05, -1.6449), (0.95, 1.6449)):
        expected = normal - skewness / 20 * (2 * normal**2 + 1) / 6
        assert np.quantile(draws, tail) == pytest.approx(expected, abs=0.05)


def test_partitions_merge_to_the_same(leaving_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty users in eight groups, of all at once by the definition."""
    monkeypatch.setattr(resampling, "GROUPS", 8)
    evidence = leaving_world.draw(50, seed=2).evidence(0.5)
    groups = chance.fold(evidence.keys, 8, "bootstrap group", 0)
    whole = group_sums(weighted_doubly_robust(evidence), groups, 8)
    parts = list(evidence.batches(12))
    found = evaluate_partitions(parts, ["weighted_doubly_robust"])["weighted_doubly_robust"].groups
    np.testing.assert_allclose(found.sums, whole.sums, rtol=1e-12)
    np.testing.assert_array_equal(found.sizes, np.bincount(groups, minlength=8))


def test_groups_of_one_or_two_users_have_the_spread_and_the_skewness_of_users() -> None:
    """Users by hundreds and hardly more than groups, where groups by key are most unequal, over 200 samples.

    Of 60 groups, 0.37 stay empty; the variance and the third moment of the groups' influences must still be those of
    all users. 200 samples know the mean of the variance to 1.5 %, and that of the third moment to 7 %.
    """
    generator = np.random.default_rng(0)
    ratios = []
    for sample in range(200):
        totals = generator.exponential(size=(1, 61, 1))
        moments = Terms.mean(totals).moments
        groups = chance.fold(np.arange(61, dtype=np.uint64), 60, "bootstrap group", sample)
        influence = resampling.group_influence(group_sums(Terms.mean(totals), groups, 60), moments).ravel()
        alone = (totals - totals.mean()).ravel()
        ratios.append([(influence**2).sum() / (alone**2).sum(), (influence**3).sum() / (alone**3).sum()])
    spread, skewness = np.mean(ratios, axis=0)
    assert spread == pytest.approx(1.0, abs=0.06)
    assert skewness == pytest.approx(1.0, abs=0.28)


def test_repeats_with_the_seed() -> None:
    terms = Terms.mean(np.arange(12.0).reshape(1, 12, 1))
    sums = group_sums(terms, np.arange(12), 12)
    first, again = (bootstrap_values(sums, terms.moments, 50, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != bootstrap_values(sums, terms.moments, 50, seed=4)).any()


def test_too_little_to_resample() -> None:
    terms = Terms.mean(np.ones((1, 1, 1)))
    sums = group_sums(terms, np.arange(1), 1)
    with pytest.raises(UsageError, match="2 users"):
        bootstrap_values(sums, terms.moments, 100, seed=0)
    terms = Terms.mean(np.ones((1, 3, 1)))
    with pytest.raises(UsageError, match="replicates"):
        studentised_draws(group_sums(terms, np.arange(3), 3), terms.moments, 1, seed=0)

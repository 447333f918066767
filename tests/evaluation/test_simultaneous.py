"""Bounds for all prices at once: their level by Monte Carlo, and any number of partitions."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.evaluation.confidence import each_confidence
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.evaluate import Evaluation, evaluate_partitions
from redenvelope.evaluation.influence import neighbour_sums

PRICES = 6


def evaluations(seed: int, shared: float, users: int = 300) -> Evaluation:
    """One step, the logged action certain: an estimate at a price is the mean of a value, whose true mean is 0."""
    generator = np.random.default_rng(seed)
    noise = shared * generator.normal(size=(users, 1)) + generator.normal(size=(users, PRICES)) * (1 - shared)
    values = np.stack([noise, noise])
    whole = OffPolicyData(
        outcome_names=("reward", "cost"),
        starts=np.arange(users + 1),
        keys=np.arange(users, dtype=np.uint64) + np.uint64(1_000 * seed),
        ratio=np.ones((users, PRICES)),
        outcomes=np.zeros((2, users)),
        values=values,
        action_values=np.zeros_like(values),
        steps=1,
        unlogged=np.zeros(PRICES),
        clipped=np.zeros(PRICES),
        certain=0.0,
    )
    return evaluate_partitions([whole], ["doubly_robust"])["doubly_robust"]


@pytest.mark.parametrize(("shared", "least", "most"), [(0.999, 0.95, 0.96), (0.0, 0.987, 0.994)])
def test_how_sure_each_must_be_depends_on_how_alike_they_err(shared: float, least: float, most: float) -> None:
    ((whole, each),) = confidences(evaluations(1, shared), [0.95])
    assert whole == 0.95
    # Alike, one bound is as good as all; independent ones need 0.95 ** (1 / 6) = 0.9915 each (both outcomes are equal).
    assert least <= each <= most


def test_all_bounds_hold_at_once_at_the_level() -> None:
    misses = 0
    for seed in range(400):
        found = evaluations(seed, shared=0.5, users=200)
        ((_, each),) = confidences(found, [0.9], seed=1)
        upper = found.value[1] + abs(np.asarray(normal_reach(each))) * found.standard_error[1]
        misses += bool((upper < 0).any())
    # 10 % of 400, with 3.3 standard errors of 1.5 % to either side.
    assert 20 <= misses <= 60


def confidences(found: Evaluation, levels: list[float], seed: int = 0, **more: int) -> tuple[tuple[float, float], ...]:
    (part,) = found.partitions.parts()
    return each_confidence(found.influence(), part.keys, levels, seed, **more)


def normal_reach(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(confidence))


def test_blocks_of_users_change_nothing() -> None:
    found = evaluations(3, 0.5)
    levels = [0.8, 0.95]
    products_in_single_precision = 1e-5
    np.testing.assert_allclose(
        confidences(found, levels, block=37), confidences(found, levels), rtol=products_in_single_precision
    )
    whole, parts = neighbour_sums(found.influence()), neighbour_sums(found.influence(), block=37)
    for name in ("means", "squares", "cubes", "products"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-9, atol=1e-12)


def test_sums_of_neighbours_are_those_of_what_users_add() -> None:
    found = evaluations(4, 0.3)
    added = found.influence()[:, :, 1:4]
    away = added - added.mean(axis=1, keepdims=True)
    sums = neighbour_sums(added)
    np.testing.assert_allclose(sums.means, added.mean(axis=1))
    np.testing.assert_allclose(sums.squares, (away**2).mean(axis=1))
    np.testing.assert_allclose(sums.cubes, (away**3).mean(axis=1), atol=1e-12)
    left, right = away[..., :-1], away[..., 1:]
    expected = np.stack([(left * right).mean(1), (left**2 * right).mean(1), (left * right**2).mean(1)])
    np.testing.assert_allclose(sums.products, expected, atol=1e-12)

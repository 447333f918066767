"""Intervals: closed forms, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.confidence import Bootstrap, EmpiricalBernstein, Interval, Normal, StudentisedBootstrap
from redenvelope.evaluation.data import gather
from redenvelope.evaluation.evaluate import evaluate

from .conftest import World


def coin_flips(users: int, chance: float, seed: int):
    """On-policy: the terms of users are the outcomes themselves."""
    flips = (np.random.default_rng(seed).random(users) < chance).astype(float)
    return evaluate(
        gather(
            starts=np.arange(users + 1),
            keys=np.arange(users),
            action=np.zeros(users, dtype=int),
            propensity=np.full(users, 0.5),
            outcomes=flips[None],
            outcome_names=["reward"],
            probabilities=np.full((users, 2), 0.5),
        ),
        "per_decision",
    )


def test_normal_in_closed_form() -> None:
    evaluation = coin_flips(400, 0.3, seed=0)
    mean = float(evaluation.value[0, 0])
    error = np.sqrt(mean * (1 - mean) / 399)
    both = evaluation.bounds(0.95, interval=Normal())
    assert float(both.lower[0, 0]) == pytest.approx(mean - 1.959964 * error, rel=1e-6)
    assert float(both.upper[0, 0]) == pytest.approx(mean + 1.959964 * error, rel=1e-6)
    upper = evaluation.bounds(0.95, "upper", Normal())
    assert float(upper.upper[0, 0]) == pytest.approx(mean + 1.644854 * error, rel=1e-6)
    assert np.isneginf(upper.lower).all()
    assert np.isposinf(evaluation.bounds(0.95, "lower").upper).all()


def test_empirical_bernstein_in_closed_form() -> None:
    """Maurer and Pontil, theorem 4, for numbers in [0, 2]."""
    evaluation = coin_flips(100, 0.3, seed=1)
    mean = float(evaluation.value[0, 0])
    variance = mean * (1 - mean) * 100 / 99
    expected = mean + np.sqrt(2 * variance * np.log(2 / 0.05) / 100) + 2 * 7 * np.log(2 / 0.05) / (3 * 99)
    found = evaluation.bounds(0.95, "upper", EmpiricalBernstein(0.0, 2.0))
    assert float(found.upper[0, 0]) == pytest.approx(expected, rel=1e-10)
    both = evaluation.bounds(0.90, "both", EmpiricalBernstein(0.0, 2.0))
    assert float(both.upper[0, 0]) == pytest.approx(expected, rel=1e-10)


def test_empirical_bernstein_wants_a_true_range_and_a_plain_mean(leaving_world: World) -> None:
    evidence = leaving_world.draw(50, seed=0).evidence(error=None)
    with pytest.raises(UsageError, match="beyond the range"):
        evaluate(evidence, "per_decision").bounds(0.95, "both", EmpiricalBernstein(0.0, 0.1))
    with pytest.raises(UsageError, match="plain mean"):
        evaluate(evidence, "self_normalised_per_decision").bounds(0.95, "both", EmpiricalBernstein(0.0, 1.0))


def test_coverage_of_coin_flips() -> None:
    """300 samples of 200 flips: 95 % ± 1.3 %; four of that is 90 %. Bernstein holds always."""
    samples = [coin_flips(200, 0.3, seed) for seed in range(300)]
    for interval, least in (
        (Normal(), 0.90),
        (Bootstrap(200), 0.90),
        (StudentisedBootstrap(200), 0.90),
        (EmpiricalBernstein(0.0, 1.0), 0.99),
    ):
        bounds = [sample.bounds(0.95, "both", interval) for sample in samples]
        held = [float(bound.lower[0, 0]) <= 0.3 <= float(bound.upper[0, 0]) for bound in bounds]
        assert np.mean(held) >= least, interval
        if not isinstance(interval, EmpiricalBernstein):
            assert np.mean(held) <= 0.99, interval


def upper_bounds_hold(world: World, name: str, users: int, interval: Interval) -> NDArray[np.float64]:
    """Share of 400 logs whose one-sided 95 % bound of cost is not below the truth, [prices]."""
    samples = [evaluate(world.draw(users, seed=seed).evidence(0.3), name) for seed in range(400)]
    upper = np.array([sample.bounds(0.95, "upper", interval).upper[1] for sample in samples])
    return (upper >= world.truth[1]).mean(axis=0)


@pytest.mark.parametrize("name", ["doubly_robust", "weighted_doubly_robust", "per_decision"])
def test_one_sided_bounds_of_cost_hold_the_truth(name: str, leaving_world: World) -> None:
    """Skewed costs and 300 users: a normal bound misses a little too often, and 400 logs know it to 1.3 %."""
    assert (upper_bounds_hold(leaving_world, name, 300, StudentisedBootstrap(200)) >= 0.91).all()


@pytest.mark.slow
@pytest.mark.parametrize("interval", [Normal(), StudentisedBootstrap(400)])
def test_one_sided_bounds_of_cost_with_2000_users(interval: Interval, leaving_world: World) -> None:
    assert (upper_bounds_hold(leaving_world, "doubly_robust", 2_000, interval) >= 0.93).all()


def test_one_user_bounds_nothing(leaving_world: World) -> None:
    evaluation = evaluate(leaving_world.draw(1, seed=0).evidence(0.0))
    for interval in (Normal(), Bootstrap(), StudentisedBootstrap(), EmpiricalBernstein(-1e3, 1e3)):
        bounds = evaluation.bounds(0.95, "both", interval)
        assert np.isneginf(bounds.lower).all() and np.isposinf(bounds.upper).all()


@pytest.mark.parametrize("confidence", [95, 1.0, 0.2, float("nan")])
def test_confidence_is_checked(confidence: float) -> None:
    with pytest.raises(UsageError, match="confidence"):
        coin_flips(10, 0.5, seed=0).bounds(confidence)


def test_side_is_checked() -> None:
    with pytest.raises(UsageError, match="side"):
        coin_flips(10, 0.5, seed=0).bounds(0.95, "above")  # type: ignore[arg-type]

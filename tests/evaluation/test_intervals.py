"""Intervals: closed forms, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from redenvelope import UsageError
from redenvelope.evaluation.confidence import normal_score
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


def test_bounds_in_closed_form() -> None:
    """Hall's transformation of the distance to a bound is the normal quantile."""
    evaluation = coin_flips(400, 0.3, seed=0)
    mean = float(evaluation.value[0, 0])
    error = np.sqrt(mean * (1 - mean) / 399)
    skewness = (1 - 2 * mean) / np.sqrt(mean * (1 - mean)) / np.sqrt(400)

    def score(bound: NDArray[np.float64]) -> float:
        return float(normal_score((mean - bound[0, 0]) / error, skewness))

    both = evaluation.bounds(0.95)
    assert (score(both.lower), score(both.upper)) == pytest.approx((1.959964, -1.959964), rel=1e-6)
    upper = evaluation.bounds(0.95, "upper")
    assert score(upper.upper) == pytest.approx(-1.644854, rel=1e-6)
    assert np.isneginf(upper.lower).all()
    assert np.isposinf(evaluation.bounds(0.95, "lower").upper).all()


def test_coverage_of_coin_flips() -> None:
    """300 samples of 200 flips: 95 % ± 1.3 %; four of that is 90 %."""
    bounds = [coin_flips(200, 0.3, seed).bounds(0.95) for seed in range(300)]
    held = [float(bound.lower[0, 0]) <= 0.3 <= float(bound.upper[0, 0]) for bound in bounds]
    assert 0.90 <= np.mean(held) <= 0.99


def upper_bounds_hold(world: World, name: str, users: int) -> NDArray[np.float64]:
    """Share of 400 logs whose one-sided 95 % bound of cost is not below the truth, [prices]."""
    samples = [evaluate(world.draw(users, seed=seed).data(0.3), name) for seed in range(400)]
    upper = np.array([sample.bounds(0.95, "upper").upper[1] for sample in samples])
    return (upper >= world.truth[1]).mean(axis=0)


@pytest.mark.parametrize("name", ["doubly_robust", "weighted_doubly_robust", "per_decision"])
def test_one_sided_bounds_of_cost_hold_the_truth(name: str, leaving_world: World) -> None:
    """Skewed costs and 300 users: a normal bound misses a little too often, and 400 logs know it to 1.3 %."""
    assert (upper_bounds_hold(leaving_world, name, 300) >= 0.91).all()


@pytest.mark.slow
def test_one_sided_bounds_of_cost_with_2000_users(leaving_world: World) -> None:
    assert (upper_bounds_hold(leaving_world, "doubly_robust", 2_000) >= 0.93).all()


@pytest.mark.parametrize("name", ["doubly_robust", "weighted_doubly_robust"])
def test_one_user_bounds_nothing(name: str, leaving_world: World) -> None:
    bounds = evaluate(leaving_world.draw(1, seed=0).data(0.0), name).bounds(0.95)
    assert np.isneginf(bounds.lower).all() and np.isposinf(bounds.upper).all()


@pytest.mark.parametrize("confidence", [95, 1.0, 0.2, float("nan")])
def test_confidence_is_checked(confidence: float) -> None:
    with pytest.raises(UsageError, match="confidence"):
        coin_flips(10, 0.5, seed=0).bounds(confidence)


def test_side_is_checked() -> None:
    with pytest.raises(UsageError, match="side"):
        coin_flips(10, 0.5, seed=0).bounds(0.95, "above")  # type: ignore[arg-type]

"""Estimators by name: values, estimates as data, merging."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.blended import magic
from redenvelope.evaluation.estimate import ESTIMATORS, estimator_named, evaluate, marginalised_by
from redenvelope.evaluation.intervals import Bootstrap
from redenvelope.evaluation.marginalised import by_cell

from .conftest import World


def test_every_estimator_is_near_the_truth(leaving_world: World) -> None:
    """A right baseline and right propensities: all within 4 of their errors."""
    drawn = leaving_world.draw(5_000, seed=1)
    estimators = [*ESTIMATORS.values(), marginalised_by(by_cell(drawn.state))]
    evidence = drawn.evidence(0.0)
    for estimator in estimators:
        found = evaluate(evidence, estimator)
        assert (np.abs(found.value - leaving_world.truth) < 4 * found.standard_error).all(), estimator.name


def test_an_estimate_is_data(leaving_world: World) -> None:
    evaluation = evaluate(leaving_world.draw(2_000, seed=2).evidence(0.0))
    estimate = evaluation.estimate("cost", dual=1, confidence=0.9, side="upper")
    assert estimate.value == evaluation.value[1, 1]
    assert estimate.upper == pytest.approx(estimate.value + 1.2815516 * estimate.standard_error)
    assert estimate.lower == -np.inf
    assert (estimate.estimator, estimate.users, estimate.confidence) == ("doubly_robust", 2_000, 0.9)
    assert estimate.reasons == () and not estimate.is_refused
    assert set(estimate.as_dict()) == {"estimate", "lower", "upper", "standard_error", "estimator"}


def test_the_direct_method_says_what_it_believes(leaving_world: World) -> None:
    estimate = evaluate(leaving_world.draw(50, seed=3).evidence(0.7), "direct").estimate("reward")
    assert [reason.rule for reason in estimate.reasons] == ["baseline_believed"]


@pytest.mark.parametrize("name", [name for name, estimator in ESTIMATORS.items() if estimator.mergeable])
def test_evaluations_of_batches_merge_to_the_same(name: str, leaving_world: World) -> None:
    evidence = leaving_world.draw(60, seed=4).evidence(0.4)
    whole = evaluate(evidence, name)
    merged = reduce(lambda first, second: first.merge(second), [evaluate(part, name) for part in evidence.batches(13)])
    np.testing.assert_allclose(merged.value, whole.value, rtol=1e-8)
    np.testing.assert_allclose(merged.standard_error, whole.standard_error, rtol=1e-6)
    with pytest.raises(UsageError, match="bootstrap"):
        merged.bounds(0.95, "both", Bootstrap())


def test_magic_by_name_is_magic(leaving_world: World) -> None:
    evidence = leaving_world.draw(100, seed=5).evidence(0.5)
    np.testing.assert_allclose(evaluate(evidence, "magic").value, magic(evidence).moments.value, rtol=1e-12)


def test_wrong_uses(leaving_world: World) -> None:
    evidence = leaving_world.draw(50, seed=0).evidence(0.0)
    with pytest.raises(UsageError, match="choose among direct"):
        estimator_named("dr")
    with pytest.raises(UsageError, match="no estimate of 'profit'"):
        evaluate(evidence).estimate("profit")
    with pytest.raises(UsageError, match="discount"):
        evaluate(evidence, discount=0)
    several = evaluate(evidence, "more_robust")
    with pytest.raises(UsageError, match="cannot be merged"):
        several.merge(several)

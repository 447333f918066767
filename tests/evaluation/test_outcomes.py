"""Any number of costs: every outcome is estimated as if it were alone, against exact evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope.evaluation.doubly_robust import doubly_robust, weighted_doubly_robust
from redenvelope.evaluation.evaluate import ESTIMATORS, evaluate_partitions
from redenvelope.evaluation.importance_sampling import direct
from redenvelope.evaluation.marginalised import Marginalised

from .cells import MeansByCell
from .conftest import World, every_path, make_world

EVERY = [*ESTIMATORS.values(), Marginalised(MeansByCell())]


@pytest.fixture(scope="module", params=[2, 3])
def many_costs(request: pytest.FixtureRequest) -> World:
    """A random finite problem with two or three costs, which users may leave."""
    return make_world(17, leaving=0.15, costs=request.param)


def test_every_outcome_is_near_the_truth(many_costs: World) -> None:
    """Within 4 of their errors, by every estimator and at both policies."""
    data = many_costs.draw(6_000, seed=1).data(0.2)
    wrong = {"direct"}  # which believes a baseline that is a fifth nonsense
    found = evaluate_partitions(list(data.batches(1_000)), [item for item in EVERY if item.name not in wrong])
    assert many_costs.truth.shape == (1 + 1 + len(many_costs.more_costs), 2)
    for name, evaluation in found.items():
        assert evaluation.outcome_names == many_costs.outcome_names
        assert (np.abs(evaluation.value - many_costs.truth) < 4 * evaluation.standard_error).all(), name


@pytest.mark.parametrize("function", [direct, doubly_robust])
def test_exact_baselines_give_the_truth(many_costs: World, function) -> None:
    """Over every path: the mean of what users add is the truth to the last digits, of all costs."""
    world = make_world(18, leaving=0.2, states=3, actions=2, costs=1 + len(many_costs.more_costs))
    drawn, chances = every_path(world)
    plain = function(drawn.data(0.0)).plain
    np.testing.assert_allclose(np.einsum("u,oup->op", chances, plain), world.truth, rtol=1e-11)


def test_each_outcome_is_as_if_it_were_alone(many_costs: World) -> None:
    drawn = many_costs.draw(300, seed=2)
    data = drawn.data(0.3)
    values, action_values = data.baseline()
    together = evaluate_partitions([data], EVERY, 0.9)
    for place, outcome in enumerate(many_costs.outcome_names):
        alone = replace(
            data,
            outcome_names=(outcome,),
            outcomes=data.outcomes[place : place + 1],
            values=values[place : place + 1],
            action_values=action_values[place : place + 1],
        )
        for name, found in evaluate_partitions([alone], EVERY, 0.9).items():
            both = together[name]
            np.testing.assert_allclose(both.value[place], found.value[0], rtol=1e-10)
            np.testing.assert_allclose(both.standard_error[place], found.standard_error[0], rtol=1e-9)
            assert both.reasons(outcome, 1) == found.reasons(outcome, 1)


def test_outcomes_of_the_same_users_are_correlated(many_costs: World) -> None:
    """The covariance of estimates is that of what users add, over all pairs of outcomes."""
    data = many_costs.draw(500, seed=3).data(0.3)
    terms = weighted_doubly_robust(data)
    moments, influence = terms.moments, terms.influence(terms.moments)
    for price in range(2):
        np.testing.assert_allclose(moments.covariance[price], np.cov(influence[:, :, price]) / 500, rtol=1e-9)

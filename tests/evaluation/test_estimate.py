"""Estimators by name or of one's own: values, estimates as data, reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import Estimator, UsageError
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.doubly_robust import magic_shares, weighted_doubly_robust
from redenvelope.evaluation.estimators import Prepared
from redenvelope.evaluation.evaluate import ESTIMATORS, estimator_named, evaluate, evaluate_partitions
from redenvelope.evaluation.influence import Terms
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.partitions import Partitions

from .cells import MeansByCell
from .conftest import World


def test_every_estimator_is_near_the_truth(leaving_world: World) -> None:
    """A right baseline and right propensities: all within 4 of their errors."""
    data = leaving_world.draw(5_000, seed=1).data(0.0)
    for estimator in [*ESTIMATORS.values(), Marginalised(MeansByCell())]:
        found = evaluate(data, estimator)
        assert (np.abs(found.value - leaving_world.truth) < 4 * found.standard_error).all(), estimator.name


def test_an_estimate_is_data(leaving_world: World) -> None:
    evaluation = evaluate(leaving_world.draw(2_000, seed=2).data(0.0))
    estimate = evaluation.estimate("cost", price=1, confidence=0.9, side="upper")
    assert estimate.estimate == evaluation.value[1, 1]
    assert estimate.upper == evaluation.bounds(0.9, "upper").upper[1, 1] > estimate.estimate
    assert estimate.lower == -np.inf
    assert (estimate.estimator, evaluation.users) == ("doubly_robust", 2_000)
    assert evaluation.reasons("cost", price=1) == ()
    assert set(estimate.as_dict()) == {"estimate", "lower", "upper", "standard_error", "estimator"}


def test_the_direct_method_says_what_it_believes(leaving_world: World) -> None:
    evaluation = evaluate(leaving_world.draw(50, seed=3).data(0.7), "direct")
    assert [reason.rule for reason in evaluation.reasons("reward")] == ["baseline_believed"]


def test_magic_by_name_is_weighted_doubly_robust_with_its_shares(leaving_world: World) -> None:
    data = leaving_world.draw(100, seed=5).data(0.5)
    terms = weighted_doubly_robust(data)
    blended = replace(terms, shares=magic_shares(terms.moments)).moments
    np.testing.assert_allclose(evaluate(data, "magic").value, blended.value, rtol=1e-12)
    np.testing.assert_allclose(evaluate(data, "magic").standard_error, blended.standard_error, rtol=1e-12)


@pytest.mark.parametrize("name", ["doubly_robust", "magic", "self_normalised_trajectory"])
def test_influences_give_value_and_error(name: str, leaving_world: World) -> None:
    evaluation = evaluate(leaving_world.draw(200, seed=2).data(0.5), name)
    influence = evaluation.influence()
    np.testing.assert_allclose(influence.mean(axis=1), evaluation.value, rtol=1e-10)
    np.testing.assert_allclose(influence.std(axis=1, ddof=1) / np.sqrt(200), evaluation.standard_error, rtol=1e-10)


class OwnStep(Estimator):
    """The example of the documentation: each outcome, weighed by the ratio of its own step alone."""

    name = "own_step"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        return Prepared(own_step)


def own_step(data: OffPolicyData, discount: float) -> Terms:
    plain = np.zeros((len(data.outcomes), data.users, data.prices))
    for position, (users, rows) in enumerate(data.positions):
        plain[:, users] += discount**position * data.ratio[rows] * data.outcomes[:, rows, None]
    return Terms.mean(plain)


def test_an_estimator_of_ones_own_is_one_class(leaving_world: World) -> None:
    data = leaving_world.draw(500, seed=6).data(None)
    found = evaluate_partitions(list(data.batches(99)), [OwnStep(), "per_decision"])["own_step"]
    each = data.ratio[:, 1] * data.outcomes[1]
    totals = np.add.reduceat(each, data.starts[:-1])
    assert found.value[1, 1] == pytest.approx(totals.mean(), rel=1e-12)
    assert found.standard_error[1, 1] == pytest.approx(totals.std(ddof=1) / np.sqrt(500), rel=1e-10)
    assert found.estimate("cost", 1).estimator == "own_step"
    assert found.reasons("cost") == evaluate(data, "per_decision").reasons("cost")


def test_wrong_uses(leaving_world: World) -> None:
    data = leaving_world.draw(50, seed=0).data(0.0)
    with pytest.raises(UsageError, match="choose among direct"):
        estimator_named("dr")
    with pytest.raises(UsageError, match="choose among direct"):
        evaluate_partitions([data], ["ips"])
    for ask in (evaluate(data).estimate, evaluate(data).reasons):
        with pytest.raises(UsageError, match="no estimate of 'profit'"):
            ask("profit")
    with pytest.raises(UsageError, match="discount"):
        evaluate(data, discount=0)
    with pytest.raises(UsageError, match="names"):
        evaluate_partitions([data], [Marginalised(seed=1), Marginalised(seed=2)])

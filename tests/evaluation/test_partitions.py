"""One path: any number of partitions, in any order of users, says what all users at once say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope.engine.engine import LocalEngine
from redenvelope.errors import UsageError
from redenvelope.evaluation import confidence as resampling
from redenvelope.evaluation import data as module
from redenvelope.evaluation.confidence import Bootstrap, EmpiricalBernstein, Interval, Normal, StudentisedBootstrap
from redenvelope.evaluation.data import OffPolicyData as Evidence
from redenvelope.evaluation.evaluate import ESTIMATORS, Evaluation, evaluate, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised, MeansByCell, RidgeOnFeatures

from .conftest import World, make_world

EVERY = [
    *ESTIMATORS.values(),
    Marginalised(RidgeOnFeatures(), seed=3),
    Marginalised(MeansByCell(), folds=3, name="marginalised by cell"),
]
USERS = 60
Whole = tuple[Evidence, dict[str, Evaluation]]
INTERVALS: tuple[Interval, ...] = (Normal(), Bootstrap(40), StudentisedBootstrap(40))


def evidence_with_keys(error: float = 0.4) -> Evidence:
    """Users who leave at different steps, with keys that are no row numbers."""
    evidence = make_world(5, leaving=0.2).draw(USERS, seed=4).evidence(error)
    return replace(evidence, keys=np.random.default_rng(1).integers(2**63, size=USERS).astype(np.uint64))


def chosen(evidence: Evidence, users: list[int]) -> Evidence:
    """The evidence of some users, in this order."""
    rows = np.concatenate([np.arange(evidence.starts[user], evidence.starts[user + 1]) for user in users])
    values, action_values = evidence.baseline()
    return replace(
        evidence,
        starts=np.concatenate([[0], np.cumsum(evidence.lengths[users])]),
        keys=evidence.keys[users],
        ratio=evidence.ratio[rows],
        outcomes=evidence.outcomes[:, rows],
        values=values[:, rows],
        action_values=action_values[:, rows],
        features=None if evidence.features is None else evidence.features[rows],
    )


def assert_same(found: Evaluation, expected: Evaluation) -> None:
    """Values, errors, bounds and diagnostics to 1e-9: sums in another order differ in the last digits alone."""
    scale = float(np.abs(expected.value).max())
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9 * scale}
    np.testing.assert_allclose(found.value, expected.value, **close)
    np.testing.assert_allclose(found.standard_error, expected.standard_error, **close)
    for interval in INTERVALS:
        for side in ("both", "upper"):
            one, other = (each.bounds(0.9, side, interval) for each in (found, expected))
            np.testing.assert_allclose(one.lower, other.lower, **close)
            np.testing.assert_allclose(one.upper, other.upper, **close)
    for name in ("effective_users", "mean_weight", "largest_share", "unlogged", "clipped"):
        one, other = (getattr(each.diagnostics, name) for each in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert found.reasons("cost", 1) == expected.reasons("cost", 1)


@pytest.fixture(scope="module")
def whole() -> Whole:
    evidence = evidence_with_keys()
    return evidence, evaluate_partitions([evidence], EVERY, 0.9)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_split_of_the_users_says_the_same(whole: Whole, data: st.DataObject) -> None:
    """Users dealt to partitions in any order, by every estimator, with every interval."""
    evidence, expected = whole
    order = data.draw(st.permutations(range(USERS)))
    cuts = sorted(data.draw(st.sets(st.integers(1, USERS - 1), max_size=8)))
    dealt = [list(part) for part in np.split(np.array(order), cuts)]
    found = evaluate_partitions([chosen(evidence, part) for part in dealt], EVERY, 0.9)
    assert list(found) == list(expected)
    for name, evaluation in found.items():
        assert_same(evaluation, expected[name])
        np.testing.assert_allclose(evaluation.influence(), expected[name].influence()[:, order], rtol=1e-8, atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(users=st.integers(1, USERS), threads=st.integers(1, 3), least=st.integers(1, 20))
def test_engines_and_batches_say_the_same(users: int, threads: int, least: int) -> None:
    """Groups of several users in the bootstrap, batches of a few within partitions, and threads."""
    evidence = evidence_with_keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "GROUPS", 16)
        expected = evaluate_partitions([evidence], EVERY)
        assert len(expected["direct"].groups.sizes) == 16
        patch.setattr(module, "_LEAST_BATCH", least)
        patch.setattr(module, "_BATCH_NUMBERS", 1)
        parts = list(evidence.batches(users))
        found = evaluate_partitions(parts, EVERY, engine=LocalEngine(threads))
        for name, evaluation in found.items():
            assert_same(evaluation, expected[name])


def test_threads_change_no_bit() -> None:
    parts = list(evidence_with_keys().batches(7))
    one, several = (evaluate_partitions(parts, EVERY, engine=LocalEngine(threads)) for threads in (1, 3))
    for name in one:
        np.testing.assert_array_equal(one[name].value, several[name].value)
        np.testing.assert_array_equal(one[name].standard_error, several[name].standard_error)


def test_one_by_one_and_together_say_the_same() -> None:
    evidence = evidence_with_keys()
    together = evaluate_partitions([evidence], EVERY, 0.8)
    for estimator in EVERY:
        assert_same(together[estimator.name], evaluate(evidence, estimator, 0.8))


def counted(evidence: Evidence) -> tuple[Callable[[], Iterable[Evidence]], list[int]]:
    """Partitions that are made anew for every pass, and how often they were."""
    passes = [0]

    def make() -> Iterator[Evidence]:
        passes[0] += 1
        yield from evidence.batches(25)

    return make, passes


@pytest.mark.parametrize(
    ("estimators", "expected"),
    [
        (["direct", "doubly_robust", "weighted_doubly_robust", "magic"], 1),
        (["more_robust"], 2),
        ([Marginalised()], 1 + 3),  # three steps: two regressions, and the scale of the last
    ],
)
def test_as_many_passes_as_are_needed(estimators: list[Any], expected: int) -> None:
    evidence = evidence_with_keys()
    make, passes = counted(evidence)
    found = list(evaluate_partitions(make, estimators).values())[-1]
    assert passes[0] == expected
    assert_same(found, evaluate(evidence, estimators[-1]))
    found.influence()
    assert passes[0] == expected + 2  # a pass for the groups of the bootstraps, and one for the influences


def test_estimators_that_share_terms_and_weights_share_the_work() -> None:
    evidence = evidence_with_keys()
    found = evaluate_partitions([evidence], ["magic", "weighted_doubly_robust"])
    assert found["magic"].moments.products is found["weighted_doubly_robust"].moments.products
    assert found["magic"].diagnostics is found["weighted_doubly_robust"].diagnostics


def test_the_range_of_plain_means_is_that_of_all_users() -> None:
    evidence = evidence_with_keys()
    terms = evaluate(evidence, "per_decision").influence()
    found = evaluate_partitions(list(evidence.batches(7)), ["per_decision"])["per_decision"]
    least, greatest = terms.min(axis=(1, 2))[:, None], terms.max(axis=(1, 2))[:, None]
    assert np.isfinite(found.bounds(0.9, "both", EmpiricalBernstein(least, greatest)).upper).all()
    with pytest.raises(UsageError, match="beyond the range"):
        found.bounds(0.9, "both", EmpiricalBernstein(least, greatest - 0.01))


def test_wrong_uses(leaving_world: World) -> None:
    evidence = leaving_world.draw(20, seed=0).evidence(0.0)
    with pytest.raises(UsageError, match="no partition"):
        evaluate_partitions([], ["doubly_robust"])
    with pytest.raises(UsageError, match=r"not reward, cost at 2 price.* and cost, reward at 2"):
        evaluate_partitions([evidence, replace(evidence, outcome_names=("cost", "reward"))])
    with pytest.raises(UsageError, match=r"over 3 step\(s\) .* and .* over 4 step"):
        evaluate_partitions([evidence, replace(evidence, steps=evidence.steps + 1)], [Marginalised()])
    with pytest.raises(UsageError, match=r"with 1 feature.* and .* with 0 feature"):
        evaluate_partitions([evidence, replace(evidence, features=None)])
    for name in ("doubly_robust", "more_robust", Marginalised()):
        with pytest.raises(UsageError, match="needs a baseline"):
            evaluate_partitions([replace(evidence, values=None, action_values=None)], [name])

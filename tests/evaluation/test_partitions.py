"""One path: any number of partitions, in any order of users, says what all users at once say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope import LocalEngine, UsageError
from redenvelope.evaluation import data as module
from redenvelope.evaluation import influence
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.evaluate import ESTIMATORS, Evaluation, evaluate, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised, RidgeOnFeatures

from .cells import MeansByCell
from .conftest import World, make_world

EVERY = [
    *ESTIMATORS.values(),
    Marginalised(RidgeOnFeatures(), seed=3),
    Marginalised(MeansByCell(), folds=3, name="marginalised by cell"),
]
USERS = 60
Whole = tuple[OffPolicyData, dict[str, Evaluation]]


def data_with_keys(error: float = 0.4) -> OffPolicyData:
    """Users who leave at different steps, with keys that are no row numbers."""
    data = make_world(5, leaving=0.2).draw(USERS, seed=4).data(error)
    return replace(data, keys=np.random.default_rng(1).integers(2**63, size=USERS).astype(np.uint64))


def chosen(data: OffPolicyData, users: list[int]) -> OffPolicyData:
    """The data of some users, in this order."""
    rows = np.concatenate([np.arange(data.starts[user], data.starts[user + 1]) for user in users])
    values, action_values = data.baseline()
    return replace(
        data,
        starts=np.concatenate([[0], np.cumsum(data.lengths[users])]),
        keys=data.keys[users],
        ratio=data.ratio[rows],
        outcomes=data.outcomes[:, rows],
        values=values[:, rows],
        action_values=action_values[:, rows],
        features=None if data.features is None else data.features[rows],
    )


def assert_same(found: Evaluation, expected: Evaluation) -> None:
    """Values, errors, bounds and diagnostics to 1e-9: sums in another order differ in the last digits alone."""
    scale = float(np.abs(expected.value).max())
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9 * scale}
    np.testing.assert_allclose(found.value, expected.value, **close)
    np.testing.assert_allclose(found.standard_error, expected.standard_error, **close)
    for side in ("both", "upper"):
        one, other = (each.bounds(0.9, side) for each in (found, expected))
        np.testing.assert_allclose(one.lower, other.lower, **close)
        np.testing.assert_allclose(one.upper, other.upper, **close)
    for name in ("effective_users", "mean_weight", "largest_share", "unlogged", "clipped"):
        one, other = (getattr(each.diagnostics, name) for each in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert found.reasons("cost", 1) == expected.reasons("cost", 1)


@pytest.fixture(scope="module")
def whole() -> Whole:
    data = data_with_keys()
    return data, evaluate_partitions([data], EVERY, 0.9)


@settings(max_examples=25, deadline=None)
@given(dealing=st.data())
def test_any_split_of_the_users_says_the_same(whole: Whole, dealing: st.DataObject) -> None:
    """Users dealt to partitions in any order, by every estimator."""
    data, expected = whole
    order = dealing.draw(st.permutations(range(USERS)))
    cuts = sorted(dealing.draw(st.sets(st.integers(1, USERS - 1), max_size=8)))
    dealt = [list(part) for part in np.split(np.array(order), cuts)]
    found = evaluate_partitions([chosen(data, part) for part in dealt], EVERY, 0.9)
    assert list(found) == list(expected)
    for name, evaluation in found.items():
        assert_same(evaluation, expected[name])
        np.testing.assert_allclose(evaluation.influence(), expected[name].influence()[:, order], rtol=1e-8, atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(users=st.integers(1, USERS), threads=st.integers(1, 3), least=st.integers(1, 20))
def test_engines_and_batches_say_the_same(users: int, threads: int, least: int) -> None:
    """Groups of several users, batches of a few within partitions, and threads."""
    data = data_with_keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(influence, "GROUPS", 16)
        expected = evaluate_partitions([data], EVERY)
        assert len(expected["direct"].groups.sizes) == 16
        patch.setattr(module, "_LEAST_BATCH", least)
        patch.setattr(module, "_BATCH_NUMBERS", 1)
        parts = list(data.batches(users))
        found = evaluate_partitions(parts, EVERY, engine=LocalEngine(threads))
        for name, evaluation in found.items():
            assert_same(evaluation, expected[name])


def test_threads_change_no_bit() -> None:
    parts = list(data_with_keys().batches(7))
    one, several = (evaluate_partitions(parts, EVERY, engine=LocalEngine(threads)) for threads in (1, 3))
    for name in one:
        np.testing.assert_array_equal(one[name].value, several[name].value)
        np.testing.assert_array_equal(one[name].standard_error, several[name].standard_error)


def test_one_by_one_and_together_say_the_same() -> None:
    data = data_with_keys()
    together = evaluate_partitions([data], EVERY, 0.8)
    for estimator in EVERY:
        assert_same(together[estimator.name], evaluate(data, estimator, 0.8))


def counted(data: OffPolicyData) -> tuple[Callable[[], Iterable[OffPolicyData]], list[int]]:
    """Partitions that are made anew for every pass, and how often they were."""
    passes = [0]

    def make() -> Iterator[OffPolicyData]:
        passes[0] += 1
        yield from data.batches(25)

    return make, passes


@pytest.mark.parametrize(
    ("estimators", "expected", "further"),
    [
        # Bounds of ratios of means take a pass for their skewness; those of plain means take none.
        (["direct", "doubly_robust", "weighted_doubly_robust", "magic"], 1, 1),
        (["more_robust"], 2, 0),
        # Three steps: two regressions, and the scale of the last. The error of what is learned takes a pass that holds
        # a sample of users.
        ([Marginalised()], 1 + 3, 1),
    ],
)
def test_as_many_passes_as_are_needed(estimators: list[Any], expected: int, further: int) -> None:
    data = data_with_keys()
    make, passes = counted(data)
    found = list(evaluate_partitions(make, estimators).values())[-1]
    assert passes[0] == expected
    assert_same(found, evaluate(data, estimators[-1]))
    found.influence()
    assert passes[0] == expected + further + 1


def test_estimators_that_share_terms_and_weights_share_the_work() -> None:
    data = data_with_keys()
    found = evaluate_partitions([data], ["magic", "weighted_doubly_robust"])
    assert found["magic"].moments.products is found["weighted_doubly_robust"].moments.products
    assert found["magic"].diagnostics is found["weighted_doubly_robust"].diagnostics


def test_wrong_uses(leaving_world: World) -> None:
    data = leaving_world.draw(20, seed=0).data(0.0)
    with pytest.raises(UsageError, match="no partition"):
        evaluate_partitions([], ["doubly_robust"])
    with pytest.raises(UsageError, match=r"not reward, cost at 2 price.* and cost, reward at 2"):
        evaluate_partitions([data, replace(data, outcome_names=("cost", "reward"))])
    with pytest.raises(UsageError, match=r"over 3 steps .* and .* over 4 step"):
        evaluate_partitions([data, replace(data, steps=data.steps + 1)], [Marginalised()])
    with pytest.raises(UsageError, match=r"with 1 feature.* and .* with 0 feature"):
        evaluate_partitions([data, replace(data, features=None)])
    for name in ("doubly_robust", "more_robust", Marginalised()):
        with pytest.raises(UsageError, match="needs a baseline"):
            evaluate_partitions([replace(data, values=None, action_values=None)], [name])

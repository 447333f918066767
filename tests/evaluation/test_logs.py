"""A log's off-policy data in partitions, from a real `Log`, policies and a planner's arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest

from redenvelope import FiniteCampaign, Log, UsageError, evaluate_log, log_from_frame
from redenvelope.evaluation.data import Extent, OffPolicyData, off_policy_data
from redenvelope.evaluation.evaluate import ESTIMATORS, decide_by, evaluate, evaluate_partitions, partitions_of
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.finite.problem import evaluate as exact_value
from redenvelope.simulate.finite import random_problem
from tests.fixed_policies import DearestPolicy, UniformPolicy


@pytest.fixture(scope="module")
def campaign() -> FiniteCampaign:
    return FiniteCampaign(random_problem(8, states=4, actions=3, steps=3, leaving=0.15))


@pytest.fixture(scope="module")
def log(campaign: FiniteCampaign) -> Log:
    return log_from_frame(campaign.log(3_000, seed=0))


def encode(log: Log) -> np.ndarray:
    return log.features.codes.astype(np.float32)


def planned(log: Log):
    """Like a planner: three policies, and values to go that are rough guesses."""
    actions = len(log.catalogue)
    tilt = np.array([0.0, 0.5, 1.0])[:, None] * np.arange(actions)
    shares = np.exp(tilt) / np.exp(tilt).sum(axis=1, keepdims=True)
    probabilities = np.tile(shares, (len(log), 1, 1)).astype(np.float32)
    left = (3 - log.step)[:, None, None]
    guess = np.broadcast_to(left * np.arange(actions) * 0.5, probabilities.shape).astype(np.float32)
    return probabilities, np.stack([guess, guess])


def test_policies_are_near_the_truth(log: Log, campaign: FiniteCampaign) -> None:
    uniform = np.full((4, 3), 1 / 3)
    dearest = np.tile([0.0, 0.0, 1.0], (4, 1))
    for policy, table in ((UniformPolicy(3), uniform), (DearestPolicy(3), dearest)):
        found = evaluate_log(log, decide_by(policy, encode, last_step=2), ["per_decision"])["per_decision"]
        truth = exact_value(campaign.problem, table)
        assert abs(found.value[0, 0] - truth.reward) < 4 * found.standard_error[0, 0]
        assert abs(found.value[1, 0] - truth.cost) < 4 * found.standard_error[1, 0]


def test_batches_and_all_at_once_say_the_same(log: Log) -> None:
    estimators = [*ESTIMATORS.values(), Marginalised()]
    batched = evaluate_log(log, planned, estimators, users=700, features=encode)
    whole = off_policy_data(log, *planned(log), features=encode(log))
    for estimator in estimators:
        expected, found = evaluate(whole, estimator), batched[estimator.name]
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
        np.testing.assert_allclose(found.standard_error, expected.standard_error, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.bounds().upper, expected.bounds().upper, rtol=1e-9)
        np.testing.assert_allclose(found.diagnostics.largest, expected.diagnostics.largest, rtol=1e-9)


def test_partitions_know_the_extent_of_the_whole_log(log: Log) -> None:
    """Parts without a long user, or without an action, are about as many steps, and call no logged action unlogged."""
    first = log.select(np.arange(len(log.users)) == int(np.argmin(log.lengths)))
    alone, part = (off_policy_data(first, *planned(first), extent=extent) for extent in (None, Extent.of(log)))
    assert (alone.steps, part.steps) == (1, 3)
    assert (alone.unlogged > 0).all() and (part.unlogged == 0).all()
    parts = partitions_of(log, planned, users=1_000)
    assert [part.users for part in parts] == [1_000] * 3
    np.testing.assert_array_equal(np.concatenate([part.keys for part in parts]), log.keys)


def test_a_log_need_not_be_in_memory_at_once(log: Log) -> None:
    """Partitions made anew for every pass, as from files: the same as a log at once."""
    extent = Extent.of(log)

    def parts() -> Iterator[OffPolicyData]:
        for batch in log.batches(900):
            yield off_policy_data(batch, *planned(batch), extent=extent, features=encode(batch))

    found = evaluate_partitions(parts, [Marginalised()])["marginalised"]
    expected = evaluate_log(log, planned, [Marginalised()], features=encode)["marginalised"]
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    np.testing.assert_allclose(found.influence(), expected.influence(), rtol=1e-8, atol=1e-9)


def test_prices_together_and_one_by_one_say_the_same(log: Log) -> None:
    together = evaluate_log(log, planned, ["doubly_robust"])["doubly_robust"]
    for price in range(3):

        def one(log: Log, price: int = price):
            probabilities, to_go = planned(log)
            return probabilities[:, price : price + 1], to_go[:, :, price : price + 1]

        alone = evaluate_log(log, one, ["doubly_robust"])["doubly_robust"]
        np.testing.assert_allclose(alone.value[:, 0], together.value[:, price], rtol=1e-10)
        np.testing.assert_allclose(alone.standard_error[:, 0], together.standard_error[:, price], rtol=1e-8)


def test_logs_with_gaps_are_refused(campaign: FiniteCampaign) -> None:
    frame = campaign.log(200, seed=1).filter((pl.col("step") != 1) | (pl.col("user") > 3))
    with pytest.raises(UsageError, match="missing from the log"):
        off_policy_data(log_from_frame(frame), *planned(log_from_frame(frame)))
    with pytest.raises(UsageError, match="missing from the log"):
        evaluate_log(log_from_frame(frame), planned)

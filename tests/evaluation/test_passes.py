"""Passes over a log in batches, from a real `Log`, policies and a planner's arrays."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.estimate import ESTIMATORS, evaluate
from redenvelope.evaluation.intervals import Bootstrap
from redenvelope.evaluation.passes import decide_by, evaluate_log, evidence_of
from redenvelope.finite.evaluate import evaluate as exact_value
from redenvelope.log.log import Log
from redenvelope.log.read import log_from_frame
from redenvelope.policies.fixed import DearestPolicy, UniformPolicy
from redenvelope.simulate.finite import FiniteCampaign, random_problem


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
    return probabilities, {"reward": guess, "cost": guess}


def test_policies_are_near_the_truth(log: Log, campaign: FiniteCampaign) -> None:
    uniform = np.full((4, 3), 1 / 3)
    dearest = np.tile([0.0, 0.0, 1.0], (4, 1))
    for policy, table in ((UniformPolicy(3), uniform), (DearestPolicy(3), dearest)):
        found = evaluate_log(log, decide_by(policy, encode, last_step=2), ["per_decision"])["per_decision"]
        truth = exact_value(campaign.problem, table)
        assert abs(found.value[0, 0] - truth.reward) < 4 * found.standard_error[0, 0]
        assert abs(found.value[1, 0] - truth.cost) < 4 * found.standard_error[1, 0]


def test_batches_and_all_at_once_say_the_same(log: Log) -> None:
    names = [name for name, estimator in ESTIMATORS.items() if estimator.mergeable]
    batched = evaluate_log(log, planned, names, users=700)
    whole = evidence_of(log, planned)
    for name in names:
        expected = evaluate(whole, name)
        np.testing.assert_allclose(batched[name].value, expected.value, rtol=1e-8)
        np.testing.assert_allclose(batched[name].standard_error, expected.standard_error, rtol=1e-6, atol=1e-12)
        first = batched[name].bounds(0.95, "both", Bootstrap(300))
        second = expected.bounds(0.95, "both", Bootstrap(300))
        np.testing.assert_allclose(first.upper, second.upper, rtol=1e-8)
        np.testing.assert_array_equal(batched[name].diagnostics.largest, expected.diagnostics.largest)


def test_duals_together_and_one_by_one_say_the_same(log: Log) -> None:
    together = evaluate_log(log, planned, ["doubly_robust"])["doubly_robust"]
    for dual in range(3):

        def one(log: Log, dual: int = dual):
            probabilities, values = planned(log)
            return probabilities[:, dual], {name: value[:, dual] for name, value in values.items()}

        alone = evaluate_log(log, one, ["doubly_robust"])["doubly_robust"]
        np.testing.assert_allclose(alone.value[:, 0], together.value[:, dual], rtol=1e-10)
        np.testing.assert_allclose(alone.standard_error[:, 0], together.standard_error[:, dual], rtol=1e-8)


def test_logs_with_gaps_are_refused(campaign: FiniteCampaign) -> None:
    frame = campaign.log(200, seed=1).filter((pl.col("step") != 1) | (pl.col("user") > 3))
    with pytest.raises(UsageError, match="missing from the log"):
        evidence_of(log_from_frame(frame), planned)


def test_estimators_that_need_everybody_say_so(log: Log) -> None:
    with pytest.raises(UsageError, match="more_robust needs all users"):
        evaluate_log(log, planned, ["more_robust"], users=100)
    assert evaluate_log(log, planned, ["more_robust"], users=3_000)["more_robust"].users == 3_000

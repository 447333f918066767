"""Estimated propensities against those of a logger that is known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope import EnvelopeCampaign, Log, log_from_frame
from redenvelope.log.propensity import fit_assignment, fold_of_rows

from .files import good_log


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return EnvelopeCampaign(population=50).log(3_000, seed=11)


@pytest.fixture(scope="module")
def estimated(frame: pl.DataFrame) -> Log:
    return log_from_frame(frame.drop("propensity"), estimate_propensity=True)


def test_estimates_come_close_to_a_softmax_logger(frame: pl.DataFrame, estimated: Log) -> None:
    truth = frame.sort("user", "step")["propensity"].to_numpy()
    error = np.abs(estimated.propensity - truth)
    # Some 35 weights an action from 12,000 rows, propensities about 0.2: sqrt(0.2 * 0.8 * 35 / 12,000) = 0.022.
    assert np.sqrt((error**2).mean()) < 0.022
    # Whoever ignores the features always answers with the action's share, and is much further off.
    shares = np.bincount(estimated.action) / len(estimated)
    ignorant = np.abs(shares[estimated.action] - truth)
    assert error.mean() < 0.6 * ignorant.mean()
    assert np.corrcoef(estimated.propensity, truth)[0, 1] > 0.89  # a spread of 0.044 beside an error of 0.02
    # Per action, 1/propensity adds up to the number of rows, within five standard errors of the weights.
    for action in range(len(estimated.catalogue)):
        weights = (estimated.action == action) / estimated.propensity
        assert weights.mean() == pytest.approx(1, abs=5 * weights.std() / np.sqrt(len(weights)))


def test_estimates_say_that_they_are(estimated: Log) -> None:
    assert estimated.propensity_source == "estimated"
    assert "propensities estimated" in repr(estimated)
    assert [finding.rule for finding in estimated.findings if finding.column == "propensity"] == [
        "propensity_estimated"
    ]
    assert estimated.trajectory(0).propensity_source == "estimated"
    assert not estimated.propensity.flags.writeable


def test_a_propensity_column_is_not_looked_at_when_estimating() -> None:
    without = log_from_frame(good_log().drop("propensity"), estimate_propensity=True)
    wrong = log_from_frame(good_log().with_columns(propensity=pl.lit("?")), estimate_propensity=True)
    np.testing.assert_array_equal(wrong.propensity, without.propensity)


def test_no_user_is_estimated_from_its_own_fold() -> None:
    log = log_from_frame(good_log())
    fold = fold_of_rows(log)
    assert (np.diff(fold)[~log.is_last[:-1]] == 0).all()
    assert len(np.unique(fold)) == 5
    before = fit_assignment(log).propensities(log)
    # Other actions in one fold: its own estimates are those of the same models, the other folds' change.
    swapped = good_log().with_columns(
        action=pl.when(pl.Series(fold == 2)).then(pl.lit(5)).otherwise("action"), cost=pl.col("action").cast(pl.Float64)
    )
    other = log_from_frame(swapped)
    assert other.catalogue == log.catalogue
    same = (fold == 2) & (other.action == log.action)
    after = fit_assignment(other).propensities(other)
    assert same.sum() > 10
    np.testing.assert_allclose(after[same], before[same], rtol=1e-12)
    assert np.abs(after[fold != 2] / before[fold != 2] - 1)[(other.action == log.action)[fold != 2]].min() > 1e-6
    assert (before > 0).all()
    assert (before <= 1).all()


def test_a_random_logger_is_seen_as_one() -> None:
    generator = np.random.default_rng(5)
    users, steps = 4_000, 2
    rows = users * steps
    action = generator.choice(3, rows, p=[0.5, 0.3, 0.2])
    frame = pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), steps),
            "step": np.tile(np.arange(steps), users),
            "action": action,
            "reward": generator.normal(size=rows),
            "cost": action + generator.random(rows),
            "age": generator.normal(size=rows),
            "city": generator.choice(["a", "b"], rows),
        }
    )
    log = log_from_frame(frame, estimate_propensity=True)
    truth = np.array([0.5, 0.3, 0.2])[log.action]
    # About 7 weights an action on 6,400 rows: errors of about sqrt(p (1 - p) 7 / 6,400) = 0.017 at most.
    assert np.abs(log.propensity - truth).mean() < 0.017
    assert np.abs(log.propensity - truth).max() < 6 * 0.017

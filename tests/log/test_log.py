"""The log in memory: immutable, and free to look at user by user."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope import Log, log_from_frame

from .files import good_log

ARRAYS = ("step", "action", "propensity", "reward", "cost")


def ragged_frame() -> pl.DataFrame:
    """User u has 1 + u % 3 steps."""
    return good_log().filter(pl.col("step") <= pl.col("user") % 3)


@pytest.fixture(scope="module")
def log() -> Log:
    return log_from_frame(ragged_frame())


def test_trajectories_have_their_own_lengths(log: Log) -> None:
    assert log.lengths.tolist() == [1 + user % 3 for user in range(1, 121)]
    assert log.starts[0] == 0
    assert log.starts[-1] == len(log) == len(ragged_frame())
    assert log.user_of_row.tolist() == [user - 1 for user in ragged_frame()["user"]]
    assert (log.first_step, log.campaign_steps) == (0, 3)


def test_the_last_row_of_each_user_has_no_next_state(log: Log) -> None:
    last = ragged_frame().select(pl.col("step") == pl.col("step").max().over("user")).to_series()
    assert log.is_last.tolist() == last.to_list()


def test_a_trajectory_is_a_view_of_one_users_rows(log: Log) -> None:
    for user in (0, 1, 57, 119):
        view = log.trajectory(user)
        rows = ragged_frame().filter(pl.col("user") == user + 1)
        assert view.users.to_list() == [user + 1]
        assert view.starts.tolist() == [0, len(rows)]
        for name in ("step", "propensity", "reward", "cost"):
            assert getattr(view, name).tolist() == rows[name].to_list()
        assert [log.catalogue.labels[action] for action in view.action] == rows["action"].cast(pl.String).to_list()
        for name in ARRAYS:
            assert np.shares_memory(getattr(view, name), getattr(log, name))
        assert np.shares_memory(view.features.numeric, log.features.numeric)
        assert np.shares_memory(view.features.codes, log.features.codes)
        assert view.is_last.tolist() == [False] * (len(rows) - 1) + [True]


def test_batches_walk_over_every_user_once_without_copies(log: Log) -> None:
    batches = list(log.batches(50))
    assert [len(batch.users) for batch in batches] == [50, 50, 20]
    for name in ARRAYS:
        np.testing.assert_array_equal(np.concatenate([getattr(batch, name) for batch in batches]), getattr(log, name))
        assert all(np.shares_memory(getattr(batch, name), getattr(log, name)) for batch in batches)
    np.testing.assert_array_equal(np.concatenate([batch.lengths for batch in batches]), log.lengths)


def test_selected_users_keep_all_their_rows(log: Log) -> None:
    chosen = np.arange(120) % 7 == 2
    part = log.select(chosen)
    expected = ragged_frame().filter((pl.col("user") - 1) % 7 == 2)
    assert part.users.to_list() == expected["user"].unique(maintain_order=True).to_list()
    assert part.cost.tolist() == expected["cost"].to_list()
    assert part.lengths.tolist() == log.lengths[chosen].tolist()
    ages = part.features.numeric[:, part.features.numeric_names.index("age")]
    assert ages.tolist() == expected["age"].to_list()
    assert part.catalogue is log.catalogue


def test_sums_by_user(log: Log) -> None:
    expected = ragged_frame().group_by("user", maintain_order=True).agg(pl.col("cost").sum())["cost"]
    np.testing.assert_allclose(log.sums_by_user(log.cost), expected.to_numpy(), rtol=1e-12)


def test_nothing_in_a_log_can_be_changed(log: Log) -> None:
    part = log.select(np.ones(120, dtype=bool))
    for one in (log, part, log.trajectory(3)):
        for name in (*ARRAYS, "starts"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(one, name)[0] = 0
        with pytest.raises(ValueError, match="read-only"):
            one.features.numeric[0, 0] = 0
        with pytest.raises(ValueError, match="read-only"):
            one.features.codes[0, 0] = 0
        with pytest.raises(AttributeError):
            one.cost = one.reward  # type: ignore[misc]
    # What is worked out once and kept must not change either.
    for name in ("lengths", "user_of_row", "is_last"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(log, name)[0] = 0


def test_gaps_are_seen() -> None:
    assert not log_from_frame(good_log()).has_gaps
    assert not log_from_frame(ragged_frame()).has_gaps  # a user who leaves early skips nothing
    assert log_from_frame(good_log().filter((pl.col("user") != 5) | (pl.col("step") != 1))).has_gaps


def test_actions_are_sorted_by_mean_cost_and_ties_by_label() -> None:
    frame = good_log().with_columns(
        action=pl.col("action").replace_strict({0: "gift", 1: "none", 5: "card"}),
        cost=pl.when(pl.col("action") == 0).then(3.0).otherwise(pl.lit(1.0)),
    )
    log = log_from_frame(frame)
    assert log.catalogue.labels == ("card", "none", "gift")
    assert not log.catalogue.numeric
    assert [log.catalogue.labels[action] for action in log.action] == frame["action"].to_list()
    amounts = log_from_frame(good_log().with_columns(action=pl.col("action") * 2, cost=pl.col("step")))
    assert amounts.catalogue.labels == ("0", "2", "10")  # as numbers, not as text


def test_features_are_small_and_static_ones_found(log: Log) -> None:
    assert log.features.numeric.dtype == np.float32
    assert log.features.codes.dtype == np.int32
    assert log.features.names == ("age", "visits", "city")
    assert log.features.static == {"age", "city"}
    assert log.features.labels == (("Lyon", "Oslo", "Rome"),)
    unknown = pl.when(pl.col("user") % 2 == 0)
    missing = log_from_frame(
        ragged_frame().with_columns(unknown.then("age").alias("age"), unknown.then("city").alias("city"))
    )
    assert missing.features.static == {"age", "city"}  # missing throughout a user is static as well
    assert missing.features.codes.min() == -1
    assert repr(missing).startswith("Log(120 users, 240 rows, 3 actions, 3 features")

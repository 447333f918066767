"""A user's fold depends on the user's id and the seed, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Log, UsageError, log_from_frame, read_log, split

from .files import csv, good_log


def folds(log: Log, seed: int = 0) -> dict[str, int]:
    """User (as text) -> fold."""
    return {str(user): fold for fold, part in enumerate(split(log, seed=seed)) for user in part.users}


def named(ids: list[str]) -> pl.DataFrame:
    return good_log().with_columns(user=pl.Series(ids).gather(good_log()["user"] - 1))


def test_the_folds_hold_every_user_once_with_all_rows() -> None:
    log = log_from_frame(good_log())
    parts = split(log)
    assert len(parts) == 3
    assert sorted(user for part in parts for user in part.users) == log.users.to_list()
    for part in parts:
        expected = good_log().filter(pl.col("user").is_in(part.users.to_list()))
        assert part.cost.tolist() == expected["cost"].to_list()
        assert part.step.tolist() == expected["step"].to_list()


def test_row_order_files_format_and_other_users_do_not_matter(tmp_path: Path) -> None:
    frame = good_log()
    expected = folds(log_from_frame(frame))
    assert folds(log_from_frame(frame.sample(fraction=1, shuffle=True, seed=1))) == expected
    (tmp_path / "log.csv").write_bytes(csv(frame))
    assert folds(read_log(tmp_path / "log.csv")) == expected
    (tmp_path / "parts").mkdir()
    frame[::2].write_parquet(tmp_path / "parts" / "b.parquet")
    frame[1::2].write_parquet(tmp_path / "parts" / "a.parquet")
    assert folds(read_log(tmp_path / "parts")) == expected
    some = folds(log_from_frame(frame.filter(pl.col("user") % 3 > 0)))
    assert some == {user: expected[user] for user in some}


def test_text_ids_keep_their_fold_too() -> None:
    ids = [f"customer-{number}" for number in range(120)]
    expected = folds(log_from_frame(named(ids)))
    some = folds(log_from_frame(named(ids).filter(pl.col("user") > "customer-3")))
    assert some == {user: expected[user] for user in some}


def test_an_id_keeps_its_fold_when_another_id_makes_the_column_text() -> None:
    integers = folds(log_from_frame(good_log()))
    with_a_guest = folds(log_from_frame(named(["guest", *(str(number) for number in range(2, 121))])))
    assert {user: with_a_guest[user] for user in integers if user != "1"} == {
        user: fold for user, fold in integers.items() if user != "1"
    }


def test_shares_are_those_asked_for() -> None:
    frame = pl.concat([good_log().with_columns(user=pl.col("user") + 1_000 * number) for number in range(25)])
    log = log_from_frame(frame)
    users = len(log.users)
    for parts in ((0.7, 0.15, 0.15), (0.5, 0.5), (0.1, 0.2, 0.3, 0.4)):
        for share, part in zip(parts, split(log, parts, seed=4), strict=True):
            assert len(part.users) / users == pytest.approx(share, abs=4.5 * np.sqrt(share * (1 - share) / users))


def test_seeds_differ_and_repeat() -> None:
    log = log_from_frame(good_log())
    assert folds(log, 1) == folds(log, 1)
    assert folds(log, 1) != folds(log, 2)
    assert folds(log, -1) != folds(log, 1)


@pytest.mark.parametrize("parts", [(), (0.5, 0.6), (1.2, -0.2), (0.5, 0.5, 0.0), (float("nan"), 1.0)])
def test_parts_that_are_no_shares_are_refused(parts: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="positive and sum to 1"):
        split(log_from_frame(good_log()), parts)


def test_a_fold_without_users_is_refused() -> None:
    log = log_from_frame(good_log())
    one = log.select(np.arange(len(log.users)) == 0)
    with pytest.raises(UsageError, match="none of the 1 users; use a log with more"):
        split(one)

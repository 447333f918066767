"""Who and when: ids, steps, and one row for each of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, read_log

from .files import ROWS, USERS, Case, check, csv, good_log, put

LARGE = 2.0**53


def with_users(log: pl.DataFrame, ids: list[object]) -> pl.DataFrame:
    """Other ids, one for each user in turn."""
    return log.with_columns(user=pl.Series(ids, strict=False).gather(log["user"] - 1))


def with_times(log: pl.DataFrame) -> pl.DataFrame:
    """Times in the place of steps, as text."""
    moments = datetime(2024, 3, 1, 9) + timedelta(hours=1) * pl.col("step") * (1 + pl.col("user") % 5)
    return log.with_columns(sent_at=moments.dt.to_string("%Y-%m-%d %H:%M:%S")).drop("step")


def with_stores(log: pl.DataFrame) -> pl.DataFrame:
    """Five users a store."""
    return log.with_columns(store=pl.format("store {}", pl.col("user") // 5))


def two_waves(log: pl.DataFrame) -> pl.DataFrame:
    """The same users twice, with other outcomes."""
    again = log.with_columns(pl.col("cost") + 1, wave=pl.lit(2))
    return pl.concat([log.with_columns(wave=pl.lit(1)), again])


CASES = [
    Case(
        "user_null",
        "error",
        lambda log: {"log.csv": csv(put(log, "user", {3: None, 6: None}))},
        column="user",
        rows=(3, 6),
        count=2,
        examples=("missing", "missing"),
        remedy="repair the export of the id",
    ),
    Case(
        "user_null",
        "error",
        lambda log: {"log.parquet": put(with_users(log, [f"u{n:03}" for n in range(USERS)]), "user", {3: ""})},
        file="log.parquet",
        column="user",
        rows=(3,),
        examples=("missing",),
        remedy="repair the export of the id",
        name="empty-text",
    ),
    Case(
        "user_null",
        "error",
        lambda log: {"log.parquet": log.with_columns(user=pl.lit(None, dtype=pl.UInt64))},
        file="log.parquet",
        column="user",
        rows=(1, 2, 3, 4, 5),
        count=ROWS,
        examples=("missing",) * 5,
        remedy="repair the export of the id",
        name="all-unsigned",
    ),
    Case(
        "user_type",
        "error",
        lambda log: {"log.parquet": log.with_columns(pl.col("user").cast(pl.Date))},
        file=None,
        column="user",
        count=ROWS,
        remedy="as text or as an integer",
        says="dates",
    ),
    Case(
        "user_not_integer",
        "error",
        lambda log: {"log.parquet": put(log, "user", {1: 1.5, 2: 1.5, 3: 2.5})},
        file="log.parquet",
        column="user",
        rows=(1, 2, 3),
        count=3,
        examples=("1.5", "1.5", "2.5"),
        remedy="as text or as an integer",
    ),
    Case(
        "user_not_finite",
        "error",
        lambda log: {"log.parquet": put(log, "user", {1: float("nan"), 3: float("inf")})},
        file="log.parquet",
        column="user",
        rows=(1, 3),
        count=2,
        examples=("nan", "inf"),
        remedy="repair the export of the id",
    ),
    Case(
        "user_not_finite",
        "error",
        lambda log: {"log.csv": csv(put(log, "user", {4: "NaN", 5: "NaN", 6: "NaN"}))},
        column="user",
        rows=(4, 5, 6),
        count=3,
        examples=("NaN", "NaN", "NaN"),
        remedy="repair the export of the id",
        name="text",
    ),
    Case(
        "step_too_large",
        "error",
        lambda log: {"log.parquet": put(log, "step", {3: 2**31 - 2})},
        file="log.parquet",
        column="step",
        rows=(3,),
        examples=(str(2**31 - 2),),
        remedy="--time step",
    ),
    Case(
        "steps_numbered",
        "repaired",
        lambda log: {"log.csv": csv(with_times(log))},
        columns=ColumnMap(time="sent_at"),
        file=None,
        column="sent_at",
        count=ROWS,
        says="0 to 2 in the order of each user",
    ),
    Case(
        "time_null",
        "error",
        lambda log: {"log.parquet": put(with_times(log), "sent_at", {4: None})},
        columns=ColumnMap(time="sent_at"),
        file="log.parquet",
        column="sent_at",
        rows=(4,),
        examples=("missing",),
        remedy="repair the export",
        besides=("steps_numbered",),
    ),
    Case(
        "time_unreadable",
        "error",
        lambda log: {"log.csv": csv(put(with_times(log), "sent_at", {4: "yesterday"}))},
        columns=ColumnMap(time="sent_at"),
        column="sent_at",
        rows=(4,),
        examples=("yesterday",),
        remedy="write them as 2024-01-31",
        besides=("steps_numbered",),
    ),
    Case(
        "episodes",
        "repaired",
        lambda log: {"log.csv": csv(two_waves(log))},
        columns=ColumnMap(episode="wave"),
        file=None,
        column="wave",
        count=2,
        says="told apart by 'wave': each",
        besides=("rows_unordered",),
    ),
    Case(
        "cluster_null",
        "warning",
        lambda log: {"log.csv": csv(put(with_stores(log), "store", {1: None, 2: None, 3: None}))},
        columns=ColumnMap(cluster="store"),
        column="store",
        rows=(1, 2, 3),
        count=3,
        examples=("missing",) * 3,
        says="count as clusters of their own",
        remedy="fill in the column",
    ),
    Case(
        "cluster_changes",
        "error",
        lambda log: {"log.csv": csv(put(with_stores(log), "store", {2: "elsewhere"}))},
        columns=ColumnMap(cluster="store"),
        column="store",
        rows=(2,),
        examples=("elsewhere",),
        remedy="name a larger cluster that contains both",
    ),
    Case(
        "episode_null",
        "error",
        lambda log: {"log.csv": csv(put(two_waves(log), "wave", {5: None}))},
        columns=ColumnMap(episode="wave"),
        column="wave",
        rows=(5,),
        examples=("missing",),
        remedy="fill in the column",
        besides=("episodes", "step_gap", "rows_unordered"),
    ),
    Case(
        "rows_conflict",
        "error",
        lambda log: {"log.csv": csv(two_waves(log))},
        column="step",
        rows=(1, 361, 2, 362, 3),
        count=2 * ROWS,
        examples=("0", "0", "1", "1", "2"),
        remedy="--episode wave",
        besides=("feature_constant", "rows_unordered"),
        name="waves",
    ),
    Case(
        "step_span",
        "error",
        lambda log: {"log.parquet": put(log, "step", {3: 10_000})},
        file=None,
        column="step",
        remedy="number the decisions",
        says="10,001 steps",
        besides=("step_gap",),
    ),
    Case(
        "user_too_large",
        "error",
        lambda log: {"log.parquet": put(log, "user", {358: LARGE, 359: LARGE, 360: LARGE})},
        file="log.parquet",
        column="user",
        rows=(358, 359, 360),
        count=3,
        examples=(str(LARGE),) * 3,
        remedy="as text or as an integer",
    ),
    Case(
        "user_float",
        "repaired",
        lambda log: {"log.parquet": log.with_columns(pl.col("user").cast(pl.Float64))},
        file=None,
        column="user",
        count=ROWS,
    ),
    Case(
        "step_null",
        "error",
        lambda log: {"log.csv": csv(put(log, "step", {6: None}))},
        column="step",
        rows=(6,),
        examples=("missing",),
        remedy="number the decisions of each user: 0, 1, 2",
    ),
    Case(
        "step_not_integer",
        "error",
        lambda log: {"log.csv": csv(put(log, "step", {1: "first", 4: "0.5", 7: "inf", 10: "1e300"}))},
        column="step",
        rows=(1, 4, 7, 10),
        count=4,
        examples=("first", "0.5", "inf", "1e300"),
        remedy="number the decisions",
    ),
    Case(
        "step_not_integer",
        "error",
        lambda log: {"log.parquet": log.with_columns(pl.col("step").cast(pl.Date))},
        file="log.parquet",
        column="step",
        rows=(1, 2, 3, 4, 5),
        count=ROWS,
        examples=("1970-01-01", "1970-01-02", "1970-01-03", "1970-01-01", "1970-01-02"),
        remedy="number the decisions",
        name="date",
    ),
    Case(
        "step_float",
        "repaired",
        lambda log: {"log.parquet": log.with_columns(pl.col("step").cast(pl.Float32))},
        file=None,
        column="step",
        count=ROWS,
    ),
    Case(
        "rows_conflict",
        "error",
        lambda log: {"log.csv": csv(pl.concat([log, put(log[3:5], "reward", {1: 7, 2: 7})]))},
        column="step",
        rows=(4, 361, 5, 362),
        count=4,
        examples=("0", "0", "1", "1"),
        remedy="keep one row per user and step",
        besides=("rows_unordered",),
    ),
    Case(
        "rows_duplicated",
        "repaired",
        lambda log: {"log.csv": csv(pl.concat([log[:4], log[3:9], log[8:]]))},
        column="step",
        rows=(5, 11),
        count=2,
        examples=("0", "2"),
    ),
    Case(
        "rows_duplicated",
        "repaired",
        lambda log: {"a.parquet": log, "b.parquet": log[-3:]},
        file="b.parquet",
        column="step",
        rows=(1, 2, 3),
        count=3,
        examples=("0", "1", "2"),
        besides=("rows_unordered",),
        name="across-files",
    ),
    Case(
        "rows_unordered",
        "repaired",
        lambda log: {"log.csv": csv(pl.concat([log[:1], log[2:3], log[1:2], log[6:9], log[3:6], log[9:]]))},
        column="step",
        rows=(3, 7),
        count=2,
        examples=("1", "0"),
    ),
    Case(
        "step_gap",
        "warning",
        lambda log: {"log.csv": csv(pl.concat([log[:1], log[2:10], log[11:]]))},
        column="step",
        rows=(2, 10),
        count=2,
        examples=("2", "2"),
        remedy="add the missing rows",
    ),
    Case(
        "few_users",
        "warning",
        lambda log: {"log.csv": csv(log.filter(pl.col("user") < 100))},
        file=None,
        column="user",
        count=99,
        remedy="use a longer log",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_every_fault_of_ids_and_steps_is_named(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def ids_read(ids: list[object], folder: Path, ending: str = "csv") -> pl.Series:
    frame = with_users(good_log(), ids)
    path = folder / f"log.{ending}"
    path.write_bytes(csv(frame)) if ending == "csv" else frame.write_parquet(path)
    return read_log(path).users


def test_leading_zeros_keep_ids_text(tmp_path: Path) -> None:
    ids = [f"{number:04}" for number in range(USERS)]
    assert ids_read(ids, tmp_path).to_list() == ids


def test_plain_ids_in_text_are_integers_even_nineteen_digits_long(tmp_path: Path) -> None:
    ids = [1_234_567_890_123_456_789 + number for number in range(USERS)]
    read = ids_read([str(number) for number in ids], tmp_path)
    assert read.dtype == pl.Int64
    assert read.to_list() == ids


def test_ids_beyond_64_bits_stay_apart_as_text(tmp_path: Path) -> None:
    ids = [str(9_999_999_999_999_999_000 + number) for number in range(USERS)]
    assert ids_read(ids, tmp_path).to_list() == ids
    frame = with_users(good_log(), [*range(USERS)]).with_columns(
        user=pl.col("user").cast(pl.UInt64) + pl.lit(2**64 - 1000, dtype=pl.UInt64)
    )
    frame.write_parquet(tmp_path / "log.parquet")
    assert read_log(tmp_path / "log.parquet").users.to_list() == [str(2**64 - 1000 + n) for n in range(USERS)]


@pytest.mark.parametrize("dtype", [pl.Decimal(38, 0), pl.UInt64, pl.Int128, pl.Int8])
def test_whole_numbers_of_any_width_are_ids(dtype: pl.DataType, tmp_path: Path) -> None:
    good_log().with_columns(pl.col("user").cast(dtype)).write_parquet(tmp_path / "log.parquet")
    log = read_log(tmp_path / "log.parquet")
    assert log.users.to_list() == list(range(1, USERS + 1))
    assert log.findings == ()


def test_shuffled_rows_give_the_same_log(tmp_path: Path) -> None:
    good_log().write_parquet(tmp_path / "good.parquet")
    good_log().sample(fraction=1, shuffle=True, seed=3).write_parquet(tmp_path / "shuffled.parquet")
    good, shuffled = read_log(tmp_path / "good.parquet"), read_log(tmp_path / "shuffled.parquet")
    for name in ("starts", "step", "action", "propensity", "reward", "cost"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(good, name))
    np.testing.assert_array_equal(shuffled.features.numeric, good.features.numeric)


def test_ids_beyond_64_bits_may_stand_in_one_of_several_files(tmp_path: Path) -> None:
    large = pl.when(pl.col("user") > 60).then(pl.lit(2**63, dtype=pl.UInt64)).otherwise(pl.lit(0, dtype=pl.UInt64))
    whole = good_log().with_columns(user=pl.col("user").cast(pl.UInt64) + large)
    expected = [str(user) for user in whole["user"].unique().sort()]
    for rows in (ROWS, 180, 90):
        (tmp_path / str(rows)).mkdir()
        for place in range(0, ROWS, rows):
            whole[place : place + rows].write_parquet(tmp_path / str(rows) / f"{place:03}.parquet")
        assert sorted(read_log(tmp_path / str(rows)).users, key=int) == expected
    # A negative id in another file needs a type that is wider still.
    good_log().with_columns(user=-pl.col("user")).write_parquet(tmp_path / "90" / "negative.parquet")
    below = [str(-user) for user in range(USERS, 0, -1)]
    assert sorted(read_log(tmp_path / "90").users, key=int) == below + expected

"""Every other column: what is a number, what a category, what must not be used."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, Log, inspect_log, log_from_frame

from .files import ROWS, Case, check, csv, good_log, put


def ids(log: pl.DataFrame) -> pl.Series:
    """A different number in every row, unlike anything else in the log."""
    return pl.Series("ticket", np.random.default_rng(1).permutation(len(log)) + 10_000)


def noisy(log: pl.DataFrame, column: str) -> pl.Series:
    """All but a column: correlation about 0.998."""
    noise = np.random.default_rng(2).normal(size=len(log)) * log[column].std() * 0.06
    return pl.Series("after", log[column].to_numpy() + noise)


CASES = [
    Case(
        "feature_missing_all",
        "warning",
        lambda log: {"log.csv": csv(log.with_columns(age=pl.lit(None)))},
        file=None,
        column="age",
        count=ROWS,
        remedy="drop the column",
    ),
    Case(
        "feature_missing_half",
        "warning",
        lambda log: {"log.csv": csv(log.with_columns(pl.when(pl.int_range(ROWS) > 180).then("age").alias("age")))},
        file=None,
        column="age",
        count=181,
        remedy="check the join",
        says="50.3%",
    ),
    Case(
        "feature_missing_half",
        "warning",
        lambda log: {"log.csv": csv(log.with_columns(pl.when(pl.int_range(ROWS) > 180).then("city").alias("city")))},
        file=None,
        column="city",
        count=181,
        remedy="check the join",
        besides=("feature_rare_labels",),
        name="category",
    ),
    Case(
        "feature_infinite",
        "error",
        lambda log: {"log.csv": csv(put(log, "age", {3: float("inf"), 4: float("-inf"), 9: 1e300}))},
        column="age",
        rows=(3, 4, 9),
        count=3,
        examples=("inf", "-inf", "1e+300"),
        remedy="--ignore age",
    ),
    Case(
        "feature_infinite",
        "error",
        lambda log: {"log.parquet": put(log, "age", {5: 1e300})},
        file="log.parquet",
        column="age",
        rows=(5,),
        examples=("1e+300",),
        remedy="repair the export",
        name="too-large-for-float32",
    ),
    Case(
        "feature_mixed",
        "error",
        lambda log: {"log.csv": csv(put(log, "age", {2: "young", 5: "n.n."}))},
        column="age",
        rows=(2, 5),
        count=2,
        examples=("young", "n.n."),
        remedy="--ignore age",
    ),
    Case(
        "feature_number_as_text",
        "warning",
        lambda log: {
            "log.csv": csv(put(log.with_columns(pl.format("{}%", "visits").alias("visits")), "visits", {1: "much"}))
        },
        column="visits",
        rows=(2, 3, 4, 5, 6),
        count=ROWS - 1,
        examples=tuple(f"{visits}%" for visits in good_log()["visits"][1:6]),
        remedy="25% is 0.25",
        says="not read as numbers",
        besides=("feature_rare_labels",),
    ),
    Case(
        "feature_constant",
        "warning",
        lambda log: {"log.csv": csv(log.with_columns(age=pl.lit(30)))},
        file=None,
        column="age",
        count=ROWS,
        says="30",
    ),
    Case(
        "feature_constant",
        "warning",
        lambda log: {"log.csv": csv(log.with_columns(city=pl.lit("Rome")))},
        file=None,
        column="city",
        count=ROWS,
        says="Rome",
        name="category",
    ),
    *(
        Case(
            "feature_like_id",
            "warning",
            files,
            file=None,
            column="ticket",
            count=ROWS,
            remedy="bin it into fewer",
            says="360 different values in 360 rows",
            name=name,
        )
        for name, files in {
            "parquet": lambda log: {"log.parquet": log.with_columns(ids(log))},
            "csv": lambda log: {"log.csv": csv(log.with_columns(ids(log)))},
            "text": lambda log: {"log.csv": csv(log.with_columns(pl.format("x{}", ids(log)).alias("ticket")))},
        }.items()
    ),
    *(
        Case(
            "feature_leak",
            "error",
            lambda log, outcome=outcome: {"log.csv": csv(log.with_columns(noisy(log, outcome)))},
            file=None,
            column="after",
            count=ROWS,
            remedy="--ignore after",
            says=f"the {outcome} (correlation 0.99",
            name=outcome,
        )
        for outcome in ("reward", "cost")
    ),
    Case(
        "feature_calendar",
        "warning",
        lambda log: {"log.parquet": log.with_columns(joined=date(2024, 1, 1) + timedelta(days=1) * pl.col("visits"))},
        file=None,
        column="joined",
        count=ROWS,
        remedy="--time joined",
    ),
    Case(
        "dates_relative",
        "repaired",
        lambda log: {
            "log.parquet": log.with_columns(
                sent=date(2024, 1, 1) + timedelta(days=1) * (pl.col("user") + 2 * pl.col("step")),
                joined=date(2023, 1, 1) + timedelta(days=1) * (pl.col("user") % 9),
            )
        },
        file=None,
        column="sent",
        count=2,
        says="joined_days_before_sent, sent_weekday",
        columns=ColumnMap(dates="relative"),
    ),
    Case(
        "dates_not_relative",
        "warning",
        lambda log: {
            "log.parquet": log.with_columns(joined=date(2023, 1, 1) + timedelta(days=1) * (pl.col("user") % 9))
        },
        file=None,
        besides=("feature_calendar",),
        remedy="--time",
        columns=ColumnMap(dates="relative"),
    ),
    *(
        Case(
            "feature_calendar",
            "warning",
            lambda log, form=form: {
                "log.csv": csv(
                    log.with_columns(
                        joined=(datetime(2024, 1, 1) + timedelta(days=1) * pl.col("visits")).dt.to_string(form)
                    )
                )
            },
            file=None,
            column="joined",
            count=ROWS,
            remedy="the weekday",
            name=form,
        )
        for form in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%SZ", "%Y-W%V")
    ),
    Case(
        "feature_rare_labels",
        "warning",
        lambda log: {
            "log.csv": csv(log.with_columns(city=pl.when(pl.col("user") < 20).then(pl.lit("Oulu")).otherwise("city")))
        },
        file=None,
        column="city",
        count=1,
        examples=("Oulu",),
        says="1 of 4 labels have fewer than 20 users each, 57 rows in all (16%)",
    ),
    Case(
        "feature_duration",
        "repaired",
        lambda log: {"log.parquet": log.with_columns(waited=timedelta(hours=1) * pl.col("visits"))},
        file=None,
        column="waited",
        count=ROWS,
    ),
    Case(
        "feature_none",
        "warning",
        lambda log: {"log.csv": csv(log.drop("age", "city", "visits"))},
        file=None,
        remedy="join what was known",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_every_fault_of_a_feature_is_named(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize("column", ["age", "after", "basket"])
def test_an_ignored_column_breaks_no_rule(column: str, tmp_path: Path) -> None:
    spoilt = {
        "age": put(good_log(), "age", {3: float("inf")}),
        "after": good_log().with_columns(noisy(good_log(), "cost")),
        "basket": good_log().with_columns(basket=pl.concat_list("age", "visits")),
    }[column]
    spoilt.write_parquet(tmp_path / "log.parquet")
    assert inspect_log(tmp_path / "log.parquet").findings
    inspection = inspect_log(tmp_path / "log.parquet", ColumnMap(ignored=frozenset({column})))
    assert inspection.findings == ()
    assert inspection.log is not None
    assert column not in inspection.log.features.names


def numbers(log: Log, name: str) -> np.ndarray:
    return log.features.numeric[:, log.features.numeric_names.index(name)]


@pytest.mark.parametrize("words", ["NA", "n/a", "NULL", "-", ""])
def test_words_for_missing_are_missing_numbers(words: str, tmp_path: Path) -> None:
    # The first thousand rows say nothing about a feature that was introduced later.
    log = pl.concat([good_log()] * 4).with_columns(user=pl.int_range(4 * ROWS) // 3)
    spoilt = put(log, "age", dict.fromkeys(range(1, 1101), words or None))
    (tmp_path / "log.csv").write_bytes(csv(spoilt))
    inspection = inspect_log(tmp_path / "log.csv")
    assert [finding.rule for finding in inspection.findings] == ["feature_missing_half"]
    assert inspection.log is not None
    age = numbers(inspection.log, "age")
    assert np.isnan(age[:1100]).all()
    assert age[1100:].tolist() == log["age"].to_list()[1100:]


def test_text_and_parquet_agree_about_booleans_numbers_and_codes(tmp_path: Path) -> None:
    frame = good_log().with_columns(
        member=pl.col("age") > 40, zone=pl.format("0{}", pl.col("visits")), price=pl.col("visits") / 3
    )
    frame.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "log.csv").write_bytes(csv(frame))
    from_parquet, from_csv = (inspect_log(tmp_path / name).log for name in ("log.parquet", "log.csv"))
    assert from_parquet is not None
    assert from_csv is not None
    assert (
        from_csv.features.numeric_names == from_parquet.features.numeric_names == ("age", "visits", "member", "price")
    )
    assert from_csv.features.category_names == from_parquet.features.category_names == ("city", "zone")
    np.testing.assert_array_equal(from_csv.features.numeric, from_parquet.features.numeric)
    np.testing.assert_array_equal(from_csv.features.codes, from_parquet.features.codes)
    assert from_csv.features.static == from_parquet.features.static == {"age", "city", "member"}


def test_times_and_durations_are_days_and_dates_are_left_out() -> None:
    noon = datetime(1970, 1, 2, 12)
    columns = {
        "day": (pl.Series([date(1970, 1, 2), date(1970, 1, 4)]), None),
        "moment": (pl.Series([noon, noon + timedelta(1)], dtype=pl.Datetime("ns")), None),
        "zoned": (pl.Series([noon, noon + timedelta(1)]).dt.replace_time_zone("Asia/Tokyo"), None),
        "clock": (pl.Series([noon.time(), datetime(1970, 1, 1, 13).time()]), 0.5),
        "lasting": (pl.Series([timedelta(hours=6), timedelta(hours=8)], dtype=pl.Duration("ms")), 0.25),
    }
    rows = np.arange(ROWS) % 2
    log = log_from_frame(good_log().with_columns(values[rows].alias(name) for name, (values, _) in columns.items()))
    assert {finding.rule for finding in log.findings} == {"feature_calendar", "feature_duration"}
    for name, (_, first) in columns.items():
        assert (name in log.features.names) == (first is not None)
        assert first is None or numbers(log, name)[0] == pytest.approx(first)


def test_a_second_id_of_the_user_is_left_out() -> None:
    # It takes a third of the rows' number of values, but a value for every user.
    log = log_from_frame(good_log().with_columns(email=pl.format("user{}@example.org", pl.col("user"))))
    assert {finding.rule for finding in log.findings} == {"feature_like_id"}
    assert "email" not in log.features.names


def test_numbers_of_three_decimals_are_numbers(tmp_path: Path) -> None:
    """1.384 may be a thousand and more, but not beside 0.081; where no value decides, it is left as text."""
    log = good_log()
    exact = np.round(np.random.default_rng(3).normal(0.0, 1.0, len(log)), 3)
    unsure = np.where(exact < 0, "1.200", "2.400")
    (tmp_path / "log.csv").write_bytes(csv(log.with_columns(pl.Series("taste", exact), pl.Series("income", unsure))))
    inspection = inspect_log(tmp_path / "log.csv")
    told = [(finding.rule, finding.column) for finding in inspection.findings]
    assert ("feature_number_as_text", "taste") not in told
    assert ("feature_number_as_text", "income") in told
    assert inspection.log is not None and "taste" in inspection.log.features.numeric_names

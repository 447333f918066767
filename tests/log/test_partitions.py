"""A log in parts: however many, and from whatever files, it is the same log."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from math import isclose
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redenvelope import ColumnMap, Encoder, Finding, Log, LogError, UsageError, log_from_frame, read_log, split
from redenvelope.log.findings import Findings
from redenvelope.log.log import join_logs
from redenvelope.log.read import table_of
from redenvelope.log.schema.schema import FeatureColumn, Schema
from redenvelope.log.schema.statistics import NumberSums
from redenvelope.log.tables import Table
from tests.partitioned_log import partition_log, read_partitions

from .files import good_log
from .logs import frames
from .test_fuzz import odd_frames

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
PARTS = st.integers(1, 7)


def read(frame: pl.DataFrame, parts: int) -> tuple[Schema, Log] | tuple[Finding, ...]:
    """The schema and all parts joined, or why the log was refused."""
    try:
        schema, partitions = read_partitions(frame, parts=parts)
    except LogError as refusal:
        return refusal.findings
    return schema, join_logs(list(partitions))


def same_number(one: NumberSums, other: NumberSums) -> None:
    """Counts and extremes equal, moments but for the last digits of sums in another order."""
    for field in fields(NumberSums):
        if field.name != "moments":
            assert getattr(one, field.name) == getattr(other, field.name)
    assert one.moments.count == other.moments.count
    size = max(abs(one.low), abs(one.high))
    for here, there in zip(one.moments.mean[:1], other.moments.mean[:1], strict=True):
        assert isclose(here, there, rel_tol=1e-12, abs_tol=1e-12 * size)
    # A spread is a difference from the mean, which is known to 1e-16 of its size.
    tolerance = 1e-12 * size**2 * max(one.moments.count, 1)
    assert isclose(one.moments.spread[0], other.moments.spread[0], rel_tol=1e-12, abs_tol=tolerance)


def same_schema(one: Schema, other: Schema) -> None:
    for field in fields(Schema):
        if field.name != "features":
            assert getattr(one, field.name) == getattr(other, field.name)
    assert [column.name for column in one.features] == [column.name for column in other.features]
    for here, there in zip(one.features, other.features, strict=True):
        for field in fields(FeatureColumn):
            if field.name != "number":
                assert getattr(here, field.name) == getattr(there, field.name)
        assert (here.number is None) == (there.number is None)
        if here.number is not None and there.number is not None:
            same_number(here.number, there.number)


def same_log(one: Log, other: Log) -> None:
    assert one.users.to_list() == other.users.to_list()
    for name in ("starts", "step", "action", "propensity", "reward", "cost"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.catalogue == other.catalogue
    assert one.features.numeric_names == other.features.numeric_names
    assert one.features.category_names == other.features.category_names
    assert one.features.labels == other.features.labels
    assert one.features.static == other.features.static
    np.testing.assert_array_equal(one.features.numeric, other.features.numeric)
    np.testing.assert_array_equal(one.features.codes, other.features.codes)
    assert one.findings == other.findings


@SETTINGS
@given(frame=st.one_of(frames(), odd_frames()), parts=PARTS)
def test_any_number_of_parts_gives_the_same_schema_log_and_findings(frame: pl.DataFrame, parts: int) -> None:
    whole, divided = read(frame, 1), read(frame, parts)
    if len(whole) == 2 and isinstance(whole[0], Schema):
        same_schema(whole[0], divided[0])  # type: ignore[arg-type]
        same_log(whole[1], divided[1])  # type: ignore[arg-type]
        same_log(whole[1], log_from_frame(frame))
    else:
        assert whole == divided
        with pytest.raises(LogError) as refusal:
            log_from_frame(frame)
        assert refusal.value.findings == whole


@settings(SETTINGS, max_examples=40)
@given(frame=frames(), seed=st.integers(0, 99), files=st.integers(1, 4), ending=st.sampled_from(["parquet", "csv"]))
def test_any_files_give_the_same_log(frame: pl.DataFrame, seed: int, files: int, ending: str) -> None:
    file_of_row = np.random.default_rng(seed).integers(files, size=len(frame))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, places in (("one", np.zeros(len(frame), int)), ("several", file_of_row)):
            (folder / kind).mkdir()
            for number in np.unique(places):
                part = frame.filter(pl.Series(places == number))
                path = folder / kind / f"{number}.{ending}"
                part.write_parquet(path) if ending == "parquet" else part.write_csv(path)
        one, several = (_outcome(folder / kind) for kind in ("one", "several"))
        assert _without_places(one[0]) == _without_places(several[0])
        for parts in (1, 3):
            divided = _outcome(folder / "several", parts)
            assert divided[0] == several[0]
            if one[1] is not None and divided[1] is not None:
                for values in ("starts", "step", "action", "propensity", "reward", "cost"):
                    np.testing.assert_array_equal(getattr(one[1], values), getattr(divided[1], values))
                np.testing.assert_array_equal(one[1].features.numeric, divided[1].features.numeric)
                np.testing.assert_array_equal(one[1].features.codes, divided[1].features.codes)
                assert one[1].features.static == divided[1].features.static
                assert one[1].catalogue == divided[1].catalogue


def _outcome(folder: Path, parts: int | None = None) -> tuple[tuple[Finding, ...], Log | None]:
    try:
        if parts is None:
            log = read_log(folder)
        else:
            _, partitions = read_partitions(folder, parts=parts)
            log = join_logs(list(partitions))
    except LogError as refusal:
        return refusal.findings, None
    return log.findings, log


def _without_places(findings: tuple[Finding, ...]) -> list[tuple[str, str | None, int]]:
    """What does not depend on the files: the order of rows does, and so does where the first broken one stands."""
    return sorted(
        (finding.rule, finding.column, finding.count) for finding in findings if finding.rule != "rows_unordered"
    )


@settings(SETTINGS, max_examples=30)
@given(frame=frames(least_users=40, faults=False), parts=PARTS)
def test_any_number_of_parts_gives_the_same_folds_and_states(frame: pl.DataFrame, parts: int) -> None:
    log = log_from_frame(frame)
    _, partitions = read_partitions(frame, parts=parts)
    folds = {user: fold for fold, part in enumerate(split(log, (0.5, 0.5))) for user in part.users}
    encoder = Encoder.fit(log)
    states = encoder.encode(log)
    for part in partitions:
        places = np.searchsorted(log.users.to_numpy(), part.users.to_numpy())
        rows = np.concatenate([np.arange(log.starts[place], log.starts[place + 1]) for place in places])
        np.testing.assert_array_equal(encoder.encode(part), states[rows])
        if len(part.users) > 20:
            for fold, some in enumerate(split(part, (0.5, 0.5))):
                assert all(folds[user] == fold for user in some.users)


def test_parts_hold_every_user_once_and_only_whole_users() -> None:
    schema, partitions = read_partitions(good_log(), parts=4)
    logs = list(partitions)
    assert len(logs) == len(partitions.parts) == 4
    assert sorted(user for log in logs for user in log.users) == list(range(1, 121))
    assert all((log.lengths == 3).all() for log in logs)
    assert sum(len(log) for log in logs) == schema.rows == 360
    assert [len(log.users) for log in partitions] == [len(log.users) for log in logs]  # as often as asked for


def test_a_schema_says_what_is_in_the_log() -> None:
    frame = good_log().with_columns(
        city=pl.when(pl.col("user") <= 3).then(None).otherwise("city"), ticket=pl.int_range(360, eager=True)
    )
    schema, _ = read_partitions(frame, parts=3)
    assert (schema.users, schema.rows, schema.first_step, schema.last_step) == (120, 360, 0, 2)
    costs = dict(frame.group_by("action").agg(pl.col("cost").mean()).iter_rows())
    assert [action.label for action in schema.actions] == ["0", "1", "5"]
    for action in schema.actions:
        assert action.rows == 120
        assert action.mean_cost == pytest.approx(costs[int(action.label)], rel=1e-15)
    by_name = {column.name: column for column in schema.features}
    assert {name: (column.kind, column.role, column.why, column.static) for name, column in by_name.items()} == {
        "age": ("integer", "number", None, True),
        "city": ("text", "category", None, True),
        "visits": ("integer", "number", None, False),
        "ticket": ("integer", "left out", "feature_like_id", False),
    }
    number = by_name["visits"].number
    assert number is not None
    visits = frame["visits"].to_numpy().astype(float)
    assert (number.rows, number.missing, number.low, number.high) == (360, 0, visits.min(), visits.max())
    assert number.moments.mean[0] == pytest.approx(visits.mean())
    assert number.moments.spread[0] == pytest.approx(((visits - visits.mean()) ** 2).sum())
    assert number.moments.correlation(1) == pytest.approx(np.corrcoef(visits, frame["reward"].to_numpy())[0, 1])
    cities = frame.drop_nulls("city").group_by("city").agg(pl.len(), pl.col("user").n_unique()).sort("city")
    assert by_name["city"].labels == tuple(cities["city"])
    assert by_name["city"].label_rows == tuple(cities["len"])
    assert by_name["city"].label_users == tuple(cities["user"])


def test_a_part_is_read_from_its_rows_and_the_schema_alone(tmp_path: Path) -> None:
    frame = good_log().with_columns(action=pl.col("action").cast(pl.String), price=pl.lit("NA"))
    frame = frame.with_columns(price=pl.when(pl.col("user") == 7).then(pl.lit("2.5")).otherwise("price"))
    frame.write_csv(tmp_path / "log.csv")
    schema, _ = read_partitions(tmp_path, parts=3)
    table = table_of(tmp_path, ColumnMap(), Findings(), estimate_propensity=False)
    assert table is not None
    assert table.frame["user"].dtype == pl.String  # as the file holds it
    some = partition_log(Table(table.frame.filter(pl.col("user").is_in(["7", "10", "100"])), table.files), schema)
    whole = read_log(tmp_path)
    same_log(some, whole.select(np.isin(whole.users.to_numpy(), [7, 10, 100])))
    # A part that knows no number of this column, and none of two actions.
    other = partition_log(Table(table.frame.filter(pl.col("user") == "8")[:1], table.files), schema)
    assert other.catalogue == whole.catalogue
    assert other.features.numeric_names == whole.features.numeric_names == ("age", "visits", "price")
    assert np.isnan(other.features.numeric[0, 2])


def test_labels_are_counted_by_user_where_they_change() -> None:
    frame = good_log().with_columns(mood=pl.Series(np.random.default_rng(4).choice(["a", "b", "c"], 360)))
    schema, _ = read_partitions(frame, parts=2)
    mood = next(column for column in schema.features if column.name == "mood")
    expected = frame.group_by("mood").agg(pl.len(), pl.col("user").n_unique()).sort("mood")
    assert not mood.static
    assert mood.label_rows == tuple(expected["len"])
    assert mood.label_users == tuple(expected["user"])


def test_rows_that_differ_only_in_a_column_left_out_are_copies() -> None:
    frame = pl.concat([good_log(), good_log()[5:8]]).with_columns(ticket=pl.int_range(363, eager=True) + 7)
    for parts in (1, 5):
        schema, _ = read_partitions(frame, parts=parts)
        counts = {finding.rule: finding.count for finding in schema.findings}
        assert counts == {"feature_like_id": 363, "rows_duplicated": 3, "rows_unordered": 1}
        assert schema.rows == 360


def test_what_only_the_whole_log_shows_is_judged_on_it() -> None:
    rows = np.arange(360)
    frame = good_log().with_columns(
        number=pl.Series(np.where(rows == 359, 0, rows)),  # the first user's first and the last user's last agree
        moved=pl.Series(np.where(rows == 100, "b", "a")),
        mostly=pl.when(pl.Series(rows >= 181)).then(pl.Series(rows % 7)),
        uneven=pl.Series(np.where(rows % 3 == 0, (rows // 3 % 61).astype(str), "x")),
    )
    for parts in range(1, 8):
        schema, _ = read_partitions(frame, parts=parts)
        columns = {column.name: (column.role, column.why, column.static) for column in schema.features}
        assert columns["number"] == ("number", None, False)
        assert columns["moved"] == ("category", None, False)
        assert columns["mostly"] == ("number", None, False)
        # 61 numbers and a word among 120 users are more labels than half of the users.
        assert columns["uneven"] == ("left out", "feature_like_id", False)
        counts = {(finding.rule, finding.column): finding.count for finding in schema.findings}
        assert counts == {
            ("feature_missing_half", "mostly"): 181,
            ("feature_like_id", "uneven"): 62,
        }


@pytest.mark.parametrize("parts", [1, 3])
def test_propensities_are_estimated_alike_from_any_parts(parts: int) -> None:
    frame = good_log().drop("propensity")
    whole = log_from_frame(frame, estimate_propensity=True)
    schema, partitions = read_partitions(frame, parts=parts, estimate_propensity=True)
    joined = join_logs(list(partitions))
    np.testing.assert_allclose(joined.propensity, whole.propensity, rtol=1e-12)
    assert joined.propensity_source == "estimated"
    assert schema.findings == joined.findings == whole.findings
    with pytest.raises(LogError, match="propensity_not_estimable"):
        read_partitions(frame.filter(pl.col("user") == 1), parts=parts, estimate_propensity=True)


def test_a_log_in_no_parts_is_refused() -> None:
    with pytest.raises(UsageError, match="one part or more, not 0"):
        read_partitions(good_log(), parts=0)

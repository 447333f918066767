"""Whatever bytes or frames come in: a log of finite numbers, or a refusal that says why; never another exception."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redenvelope import Log, RedenvelopeError, inspect_log, log_from_frame
from redenvelope.log.columns import ROLES

from .files import csv, good_log, parquet

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SMALL = good_log().head(60)
GOOD = {
    "log.csv": csv(SMALL),
    "log.tsv": csv(SMALL.with_columns(pl.format('"{}"', "city").alias("city")), "\t"),
    "log.csv.gz": gzip.compress(csv(SMALL), mtime=0),
    "log.parquet": parquet(SMALL),
}


def check_log(log: Log) -> None:
    """What everything after reading relies on."""
    for values in (log.propensity, log.reward, log.cost):
        assert np.isfinite(values).all()
    assert not np.isinf(log.features.numeric).any()
    assert ((log.propensity > 0) & (log.propensity <= 1)).all()
    assert (log.cost >= 0).all()
    assert log.users.null_count() == 0
    assert log.users.n_unique() == len(log.users)
    assert log.users.is_sorted()
    within = ~log.is_last[:-1]
    assert (np.diff(log.step.astype(np.int64))[within] > 0).all()
    assert log.starts[-1] == len(log) > 0
    assert (log.action >= 0).all()
    assert log.action.max() < len(log.catalogue)
    for column, labels in enumerate(log.features.labels):
        codes = log.features.codes[:, column]
        assert codes.min() >= -1
        assert codes.max() < len(labels)
    assert all(finding.severity != "error" for finding in log.findings)


damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "repeat", "end"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
        st.one_of(
            st.binary(min_size=1, max_size=8), st.sampled_from([b'"', b"\n", b",", b"\0", b"\xff", b"nan", b"inf"])
        ),
    ),
    min_size=1,
    max_size=4,
)


def damaged(content: bytes, damage: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, where, number, more in damage:
        at = int(where * len(content))
        if kind == "flip":
            content = content[:at] + bytes([number]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at] + content[at + number :]
        elif kind == "insert":
            content = content[:at] + more + content[at:]
        elif kind == "repeat":
            content = content[: at + number] + content[at:]
        else:
            content = content[:at]
    return content


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("name", GOOD)
@SETTINGS
@given(damage=damages)
def test_damaged_files_are_refused_or_read_whole(
    name: str, folder: Path, damage: list[tuple[str, float, int, bytes]]
) -> None:
    path = folder / name
    path.write_bytes(damaged(GOOD[name], damage))
    inspection = inspect_log(path)
    if inspection.log is None:
        assert any(finding.severity == "error" for finding in inspection.findings)
    else:
        check_log(inspection.log)


@SETTINGS
@given(damage=damages)
def test_damaged_text_in_sound_gzip(folder: Path, damage: list[tuple[str, float, int, bytes]]) -> None:
    path = folder / "sound.csv.gz"
    path.write_bytes(gzip.compress(damaged(GOOD["log.csv"], damage), compresslevel=1))
    inspection = inspect_log(path)
    if inspection.log is not None:
        check_log(inspection.log)


words = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [
            "",
            " ",
            "nan",
            "inf",
            "-inf",
            "1e400",
            "NA",
            "true",
            "007",
            "5",
            "5.0",
            "−1",
            "１",
            "\0",
            "é",
            "👩‍👩‍👧",
            "9" * 25,
        ]
    ),
)
whole = st.one_of(st.integers(-3, 3), st.sampled_from([2**31, 2**53, 2**63 - 1, -(2**63)]))
decimal = st.one_of(st.floats(width=64), st.floats(0, 1), st.sampled_from([0.0, -0.0, 1.0, 1e300, 5e-324]))
VALUES: list[tuple[pl.DataType | type[pl.DataType], st.SearchStrategy]] = [
    (pl.Int64, whole),
    (pl.Int8, st.integers(-2, 2)),
    (pl.UInt64, st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])),
    (pl.Int128, st.sampled_from([0, 1, 2, 2**100, -(2**100)])),
    (pl.Float64, decimal),
    (pl.Float32, st.floats(width=32)),
    (pl.Boolean, st.booleans()),
    (pl.String, words),
    (pl.Categorical, words),
    (pl.Enum(["1", "2", "x"]), st.sampled_from(["1", "2", "x"])),
    (pl.Decimal(38, 2), st.sampled_from([Decimal("0.50"), Decimal("1"), Decimal("-3.25"), Decimal(10**30)])),
    (pl.Decimal(38, 0), st.sampled_from([Decimal(1), Decimal(2), Decimal(10**30)])),
    (pl.Date, st.sampled_from([date(1970, 1, 1), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)])),
    (pl.Datetime("ns", "UTC"), st.sampled_from([datetime(1970, 1, 1), datetime(2024, 2, 29, 12)])),
    (pl.Datetime("ms"), st.sampled_from([datetime(1, 1, 1), datetime(9999, 12, 31)])),
    (pl.Time, st.sampled_from([time(0), time(23, 59, 59, 999_999)])),
    (pl.Duration("us"), st.sampled_from([timedelta(0), timedelta(-1), timedelta(10**6)])),
    (pl.List(pl.Int64), st.lists(st.integers(0, 3), max_size=2)),
    (pl.Struct({"a": pl.Int64}), st.fixed_dictionaries({"a": st.integers(0, 3)})),
    (pl.Binary, st.binary(max_size=4)),
    (pl.Null, st.none()),
]


@st.composite
def odd_columns(draw: st.DrawFn, name: str, rows: int) -> pl.Series:
    """A few odd values, over and over, in one of many types."""
    dtype, values = draw(st.sampled_from(VALUES))
    if draw(st.booleans()):
        values = st.one_of(st.none(), values)
    few = draw(st.lists(values, min_size=1, max_size=7))
    moments = isinstance(dtype, pl.Datetime)
    series = pl.Series(name, few, dtype=pl.Datetime("us") if moments else dtype)
    if moments:
        series = series.dt.replace_time_zone(dtype.time_zone).dt.cast_time_unit(dtype.time_unit)
    return series.gather(np.arange(rows) % len(few))


@st.composite
def odd_frames(draw: st.DrawFn) -> pl.DataFrame:
    """A good log in which up to three roles or features are replaced by, or joined by, something odd."""
    rows = draw(st.sampled_from([0, 1, 2, 12, 60]))
    names = draw(
        st.lists(st.sampled_from([*ROLES, "age", "city", "new", "\0", "é 1"]), min_size=1, max_size=3, unique=True)
    )
    frame = SMALL.head(rows)
    return frame.with_columns(draw(odd_columns(name, rows)) for name in names)


@pytest.mark.parametrize("estimate_propensity", [False, True])
@SETTINGS
@given(frame=odd_frames())
def test_odd_frames_are_refused_or_read_whole(estimate_propensity: bool, frame: pl.DataFrame) -> None:
    try:
        log = log_from_frame(frame, estimate_propensity=estimate_propensity)
    except RedenvelopeError as refusal:
        assert str(refusal)
        return
    check_log(log)

"""One row as a mapping has the state it has in a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope import Encoder, ModelError, log_from_frame

from .files import ROWS, good_log
from .test_encoding import rich_frame

SETTINGS = settings(derandomize=True, deadline=None, database=None, max_examples=300)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    moment = pl.Series("since", [datetime(2024, 1, 1) + timedelta(hours=hours) for hours in range(ROWS)])
    codes = pl.Series("code", np.random.default_rng(8).choice(["007", "1", "2.5", "true", "2024-01-01", "1e300"], ROWS))
    return Encoder.fit(log_from_frame(rich_frame().with_columns(moment, codes)))


FEATURES = ["age", "city", "visits", "income", "score", "opened", "mood", "member", "since", "code"]

texts = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["", " ", "NA", "-", "null", "nan", "NaN", "inf", "-inf", "1e400", "1e3", "TRUE", "False", "007"]),
    st.sampled_from(["5", "5.0", "-5.25", "+5", ".5", "5.", "1_000", " 5", "5 ", "1,5", "１", "0x10", "−1", "1e300"]),
    st.sampled_from(["Rome", "Oslo", "good", "bad", "x", "true", "2.5", "9" * 40, "0." + "1" * 40]),
    st.integers(-(10**6), 10**6).map(str),
    st.floats(allow_nan=False).map(str),
)
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63, 2**64, 2**24 + 1]),
    st.floats(),
    st.sampled_from([0.0, -0.0, 3.4028234e38, 3.4028235677973366e38, 3.5e38, 1e300, 5e-324, 1.0, 2.5]),
    st.booleans(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=2),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**31), 2**31 - 1).map(np.int64),
    st.booleans().map(np.bool_),
)
moments = st.one_of(
    st.dates(),
    st.datetimes(),
    st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)),
    st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2030, 1, 1)).map(
        lambda moment: moment.replace(tzinfo=ZoneInfo("Asia/Tokyo"))
    ),
    st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2030, 1, 1)).map(
        lambda moment: moment.replace(tzinfo=timezone(timedelta(hours=-3)))
    ),
    st.times(),
    st.timedeltas(min_value=timedelta(days=-(10**6)), max_value=timedelta(days=10**6)),
)
odd = st.one_of(st.none(), st.binary(max_size=3), st.lists(st.integers(0, 3), max_size=2), st.just({"a": 1}))
values = st.one_of(texts, numbers, moments, odd)
steps = st.sampled_from([0, 1, 2, 0.0, 2.0, "1", "2.0", np.int64(2), Decimal(1)])


@SETTINGS
@given(step=steps, row=st.dictionaries(st.sampled_from(FEATURES), values))
def test_a_row_has_the_state_of_a_table_of_it(encoder: Encoder, step: object, row: dict[str, object]) -> None:
    row = {"step": step, **row}
    table = pl.DataFrame([pl.Series(name, [value]) for name, value in row.items()])
    expected, _ = encoder.encode_frame(table)
    state = encoder.encode_row(row)
    assert state.dtype == np.float32
    np.testing.assert_array_equal(state, expected[0])


@settings(SETTINGS, max_examples=100)
@given(step=values)
def test_a_step_outside_the_campaign_is_refused_in_a_row_as_in_a_table(encoder: Encoder, step: object) -> None:
    try:
        expected, _ = encoder.encode_frame(pl.DataFrame([pl.Series("step", [step])]))
    except ModelError:
        with pytest.raises(ModelError, match=r"is not a step of the campaign \(0 to 2\)"):
            encoder.encode_row({"step": step})
    else:
        np.testing.assert_array_equal(encoder.encode_row({"step": step}), expected[0])


def test_rows_of_a_log_have_the_states_of_the_log() -> None:
    log = log_from_frame(rich_frame())
    encoder = Encoder.fit(log)
    rows = rich_frame().drop("user", "action", "propensity", "reward", "cost").to_dicts()
    np.testing.assert_array_equal(np.stack([encoder.encode_row(row) for row in rows]), encoder.encode(log))


def test_what_no_table_can_hold_is_missing(encoder: Encoder) -> None:
    odd_row = {"step": 0, "age": 2**2000, "visits": object(), "city": object(), "mood": 2**2000}
    np.testing.assert_array_equal(
        encoder.encode_row(odd_row)[:10], encoder.encode_row({"step": 0, "city": "nowhere"})[:10]
    )


def test_a_row_without_a_step_is_refused(encoder: Encoder) -> None:
    with pytest.raises(ModelError, match="the row has no 'step'; pass the index of the decision"):
        encoder.encode_row({"age": 30})


def test_an_encoder_without_features_encodes_the_step_alone() -> None:
    log = log_from_frame(good_log().select("user", "step", "action", "propensity", "reward", "cost"))
    assert Encoder.fit(log).encode_row({"step": 1, "age": 7}).tolist() == [0.5]

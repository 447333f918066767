"""What happened before, against a plain reference; the same from a log, its parts, a table of past steps and rows."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope import Encoder, Log, ModelError, log_from_frame
from redenvelope.log.encoding.history import HistoryEncoding
from redenvelope.serialization import from_plain, to_plain

LABELS = ("none", "small", "large")


def frame_of(lengths: list[int], seed: int, labels: tuple[str, ...] = LABELS) -> pl.DataFrame:
    """Users with so many steps each; dearer actions cost more, so that the catalogue is in the order of the labels."""
    generator = np.random.default_rng(seed)
    user = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    # All actions are seen, whatever is drawn: the catalogue is the same.
    action = np.concatenate([np.arange(3), generator.integers(0, 3, len(user))])[: len(user)]
    return pl.DataFrame(
        {
            "user": user,
            "step": step,
            "action": [labels[place] for place in action],
            "propensity": np.full(len(user), 1 / 3),
            "reward": generator.normal(size=len(user)),
            "cost": action + 0.1 * generator.random(len(user)),
            "mood": generator.normal(size=len(user)),
        }
    )


def reference(encoding: HistoryEncoding, log: Log) -> np.ndarray:
    """Row by row, in plain words."""
    rows = []
    for first, last in zip(log.starts[:-1], log.starts[1:], strict=True):
        for row in range(first, last):
            before = range(first, row)
            one_hot, counts = [0.0] * 3, [0.0] * 3
            last_reward = last_cost = earned = spent = waited = 0.0
            for past in before:
                counts[log.action[past]] += 1
                earned += log.reward[past]
                spent += log.cost[past]
                waited = waited + 1 if log.action[past] == 0 else 0.0
            if row > first:
                one_hot[log.action[row - 1]] = 1.0
                last_reward, last_cost = log.reward[row - 1], log.cost[row - 1]
            rows.append([*one_hot, last_reward, last_cost, *counts, earned, spent, waited])
    return np.clip(np.array(rows) / np.array(encoding.scales), -8, 8)


ragged = st.lists(st.integers(1, 6), min_size=3, max_size=12)


@settings(max_examples=40)
@given(lengths=ragged, seed=st.integers(0, 1000))
def test_columns_are_those_of_a_plain_reference(lengths: list[int], seed: int) -> None:
    log = log_from_frame(frame_of(lengths, seed))
    encoding = HistoryEncoding.fit(log)
    assert encoding.labels == LABELS
    np.testing.assert_allclose(encoding.columns(log), reference(encoding, log), atol=1e-5)


@settings(max_examples=20)
@given(lengths=ragged, seed=st.integers(0, 1000), size=st.integers(1, 4))
def test_parts_of_whole_users_change_nothing(lengths: list[int], seed: int, size: int) -> None:
    log = log_from_frame(frame_of(lengths, seed))
    parts = list(log.batches(size))
    whole = Encoder.fit(log).with_history(log)
    apart = np.concatenate([whole.encode(part) for part in parts])
    np.testing.assert_array_equal(apart, whole.encode(log))


@pytest.fixture(scope="module")
def told() -> tuple[pl.DataFrame, Log, Encoder]:
    frame = frame_of([4] * 30, 0)
    log = log_from_frame(frame)
    return frame, log, Encoder.fit(log).with_history(log)


def test_the_first_step_has_no_past(told) -> None:
    _, log, encoder = told
    states = encoder.encode(log)
    assert not states[log.starts[:-1], encoder.layout.history].any()
    assert states[log.starts[:-1] + 1, encoder.layout.history].any(axis=1).all()
    plain = Encoder.fit(log)
    np.testing.assert_array_equal(states[:, : plain.layout.width], plain.encode(log))


def test_an_encoder_is_plain_data(told) -> None:
    _, log, encoder = told
    again = from_plain(Encoder, json.loads(json.dumps(to_plain(encoder))), "the encoder")
    assert again == encoder
    plain = Encoder.fit(log)
    assert from_plain(Encoder, to_plain(plain), "the encoder") == plain


def test_a_table_of_the_past_gives_the_states_of_the_log(told) -> None:
    frame, log, encoder = told
    states = encoder.encode(log)
    asked = frame.drop("action", "propensity", "reward", "cost")
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=1)
    np.testing.assert_allclose(encoder.encode_frame(asked, shuffled)[0], states, atol=1e-6)
    for row in (0, 1, 3, 6, 11):
        here = frame.row(row, named=True)
        past = frame.filter(pl.col("user") == here["user"]).to_dicts()
        np.testing.assert_allclose(encoder.encode_row(here, past[::-1]), states[row], atol=1e-6)


def test_numbers_as_labels_are_the_same_however_written() -> None:
    frame = frame_of([3] * 20, 2, ("0", "5", "10"))
    log = log_from_frame(frame.with_columns(pl.col("action").cast(pl.Int64)))
    encoder = Encoder.fit(log).with_history(log)
    states = encoder.encode(log)
    for kind in (pl.Int64, pl.Float64, pl.String):
        past = frame.with_columns(pl.col("action").cast(kind))
        np.testing.assert_allclose(encoder.encode_frame(frame, past)[0], states, atol=1e-6)
    past = frame.with_columns(pl.col("action").cast(pl.Int64)).to_dicts()[:2]
    np.testing.assert_allclose(encoder.encode_row(frame.row(2, named=True), past), states[2], atol=1e-6)


def test_at_the_first_step_nobody_needs_a_past(told) -> None:
    frame, _, encoder = told
    first = frame.filter(pl.col("step") == 0)
    states, _ = encoder.encode_frame(first)
    assert not states[:, encoder.layout.history].any()
    encoder.encode_row(first.row(0, named=True))


def broken(name: str, past: pl.DataFrame) -> pl.DataFrame | None:
    chosen = (pl.col("user") == 3) & (pl.col("step") == 1)
    return {
        "nothing": None,
        "no rows of a user": past.filter(pl.col("user") != 3),
        "a missing step": past.filter(~chosen),
        "a missing first step": past.filter(~((pl.col("user") == 3) & (pl.col("step") == 0))),
        "twice": pl.concat([past, past.filter(chosen)]),
        "a label": past.with_columns(pl.when(chosen).then(pl.lit("huge")).otherwise(pl.col("action")).alias("action")),
        "a reward": past.with_columns(pl.when(chosen).then(None).otherwise(pl.col("reward")).alias("reward")),
        "a column": past.drop("cost"),
    }[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "30 users past the campaign's first step.*pass their earlier steps"),
        ("no rows of a user", "1 user past the campaign's first step without a row in the history .the first: 3, st"),
        ("a missing step", "the history of 1 user lacks steps .the first: 3 has 2 of the steps before 3"),
        ("a missing first step", "lacks steps"),
        ("twice", "2 rows with the user and step"),
        ("a label", "the action 'huge' in 1 row, which the plan does not know; it knows none, small, large"),
        ("a reward", "row 14: the reward is not a number, in 1 row;"),
        ("a column", "no column 'cost'"),
    ],
)
def test_what_is_wrong_with_a_past_is_said(told, name: str, message: str) -> None:
    frame, _, encoder = told
    now = frame.filter(pl.col("step") == 3)
    with pytest.raises(ModelError, match=message):
        encoder.encode_frame(now, broken(name, frame))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda past: None, "step 3 is past the campaign's first"),
        (lambda past: past[1:], "holds the steps 1, 2; include every earlier step once"),
        (lambda past: [*past, past[0]], "holds the steps 0, 0, 1, 2"),
        (lambda past: [past[0] | {"action": "huge"}, *past[1:]], "the action 'huge'"),
        (lambda past: [past[0] | {"cost": None}, *past[1:]], "step 0: the cost is not a number"),
    ],
)
def test_what_is_wrong_with_past_rows_is_said(told, change, message: str) -> None:
    frame, _, encoder = told
    rows = frame.filter(pl.col("user") == 3).to_dicts()
    with pytest.raises(ModelError, match=message):
        encoder.encode_row(rows[3], change(rows[:3]))


def test_a_past_may_begin_late_where_users_did() -> None:
    frame = frame_of([4] * 30, 0).filter((pl.col("user") % 2 == 0) | (pl.col("step") > 0))
    log = log_from_frame(frame)
    encoder = Encoder.fit(log).with_history(log)
    asked = frame.filter((pl.col("step") > 1) | (pl.col("user") % 2 == 0))
    at = dict(zip(frame.select("user", "step").iter_rows(), encoder.encode(log), strict=True))
    expected = np.stack([at[key] for key in asked.select("user", "step").iter_rows()])
    np.testing.assert_allclose(encoder.encode_frame(asked, frame)[0], expected, atol=1e-6)

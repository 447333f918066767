"""States: fitted on some users, defined for everyone."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from redenvelope import Encoder, Log, ModelError, log_from_frame, split
from redenvelope.log.encoding.layout import MISSING, OTHER, StateLayout
from redenvelope.serialization import from_plain, to_plain

from .files import ROWS, USERS, good_log


def rich_frame() -> pl.DataFrame:
    """Static and dynamic features of every kind; `income` and `score` are sometimes missing."""
    generator = np.random.default_rng(3)
    income = np.where(generator.random(USERS) < 0.2, np.nan, generator.normal(50, 9, USERS))
    score = np.where(generator.random(ROWS) < 0.3, np.nan, generator.normal(size=ROWS))
    return good_log().with_columns(
        income=pl.Series(np.repeat(income, 3)).fill_nan(None),
        score=pl.Series(score).fill_nan(None),
        opened=pl.Series(generator.random(ROWS) < 0.4),
        mood=pl.Series(generator.choice(["good", "bad", "so-so"], ROWS)),
        member=pl.Series(np.repeat(generator.random(USERS) < 0.5, 3)),
    )


@pytest.fixture(scope="module")
def log() -> Log:
    return log_from_frame(rich_frame())


@pytest.fixture(scope="module")
def encoder(log: Log) -> Encoder:
    return Encoder.fit(log)


def test_the_layout_is_static_head_step_and_dynamic_tail(encoder: Encoder) -> None:
    layout = encoder.layout
    assert layout == StateLayout(
        static_categories=(5,),  # city: three labels, other, missing
        static_numbers=4,  # age, income and whether it is missing, member
        dynamic_numbers=2,  # visits, score
        dynamic_binaries=2,  # whether score is missing, opened
        dynamic_categories=(5,),  # mood
        step_change=0.5,
    )
    assert (layout.static_width, layout.step, layout.width) == (5, 5, 15)
    assert (layout.numbers, layout.binaries, layout.categories) == (slice(6, 8), slice(8, 10), (slice(10, 15),))


def test_states_hold_what_the_layout_says(log: Log, encoder: Encoder) -> None:
    frame, states = rich_frame(), encoder.encode(log)
    assert states.dtype == np.float32
    assert states.shape == (ROWS, encoder.layout.width)

    def standard(name: str) -> np.ndarray:
        values = frame[name].cast(pl.Float32).cast(pl.Float64)
        return ((values - values.mean()) / values.std(ddof=0)).fill_null(0.0).to_numpy()

    city = {"Lyon": 2, "Oslo": 3, "Rome": 4}
    expected = {
        0: [city[label] for label in frame["city"]],
        1: standard("age"),
        2: standard("income"),
        3: frame["income"].is_null(),
        4: standard("member"),
        5: frame["step"] / 2,
        6: standard("visits"),
        7: standard("score"),
        8: frame["score"].is_null(),
        9: frame["opened"],
        12: frame["mood"] == "bad",
        13: frame["mood"] == "good",
        14: frame["mood"] == "so-so",
    }
    for column, values in expected.items():
        np.testing.assert_allclose(states[:, column], np.asarray(values, dtype=np.float64), atol=2e-6)
    np.testing.assert_array_equal(states[:, 10:15].sum(axis=1), 1.0)
    # The head never changes within a user.
    head = states[:, : encoder.layout.static_width].reshape(USERS, 3, -1)
    np.testing.assert_array_equal(head, head[:, :1].repeat(3, axis=1))


def test_only_training_users_are_learned_from(log: Log) -> None:
    train, *_ = split(log)
    users = train.users.to_list()
    elsewhere = ~pl.col("user").is_in(users)
    other = rich_frame().with_columns(
        age=pl.when(elsewhere).then(90).otherwise("age"),
        score=pl.when(elsewhere).then(55.5).otherwise("score"),
        mood=pl.when(elsewhere).then(pl.lit("new")).otherwise("mood"),
    )
    train_of_other = split(log_from_frame(other))[0]
    assert train_of_other.users.to_list() == users
    assert Encoder.fit(train_of_other) == Encoder.fit(train)
    mean = rich_frame().filter(~elsewhere)["age"].mean()
    assert Encoder.fit(train).numbers[0].mean == pytest.approx(mean)


def test_labels_of_few_users_are_other_however_many_rows_they_have() -> None:
    # Three rows a user: nine users, of 27 rows, are few; of ten users, one row each is enough.
    counts = {"nine": 27, "ten": 10}
    user, step = pl.col("user"), pl.col("step")
    mood = pl.when(user <= 9).then(pl.lit("nine")).when((user <= 19) & (step == 0)).then(pl.lit("ten"))
    log = log_from_frame(good_log().with_columns(mood=mood.otherwise(pl.lit("many"))))
    encoder = Encoder.fit(log)
    encoding = next(category for category in encoder.categories if category.name == "mood")
    assert (encoding.labels, encoding.rare) == (("many", "ten"), ("nine",))
    block = encoder.encode(log)[:, encoder.layout.categories[0]]
    assert block[:, OTHER].sum() == counts["nine"]
    assert block[:, 3].sum() == counts["ten"]


def test_encode_frame_gives_the_states_of_the_log(log: Log, encoder: Encoder) -> None:
    states, findings = encoder.encode_frame(rich_frame().drop("user", "action", "propensity", "reward", "cost"))
    assert findings == ()
    np.testing.assert_array_equal(states, encoder.encode(log))
    # The same table out of a text file: every value is text, in any order of columns.
    as_text = rich_frame().select(pl.all().cast(pl.String)).select(sorted(rich_frame().columns, reverse=True))
    states, findings = encoder.encode_frame(as_text)
    assert findings == ()
    np.testing.assert_array_equal(states, encoder.encode(log))


def test_times_mean_the_same_in_a_log_and_at_serving_time() -> None:
    moments = pl.Series("since", [datetime(2024, 1, 1, 6) + timedelta(hours=hours) for hours in range(ROWS)])
    frame = good_log().with_columns(clock=moments.dt.time(), lasting=moments - datetime(2024, 1, 1))
    log = log_from_frame(frame)
    encoder = Encoder.fit(log)
    states, findings = encoder.encode_frame(frame)
    assert findings == ()
    np.testing.assert_array_equal(states, encoder.encode(log))
    assert len(np.unique(states, axis=0)) == ROWS


def test_what_was_never_seen_is_defined_and_reported(encoder: Encoder) -> None:
    frame = pl.DataFrame(
        {
            "step": [0, 1, 2, 2],
            "age": ["forty", "1e300", "NaN", None],
            "city": ["Rome", "Oulu", None, "Oulu"],
            "visits": [1e30, -1e30, float("nan"), float("inf")],
            "score": [[1], None, [2], None],
            "opened": [True, None, False, True],
            "mood": ["good", "odd", None, "bad"],
            "member": [1, 0, 1, 0],
        }
    )
    states, findings = encoder.encode_frame(frame)
    found = {(finding.rule, finding.column): finding for finding in findings}
    assert {key: (finding.count, finding.rows) for key, finding in found.items()} == {
        ("serving_column_missing", "income"): (4, ()),
        ("serving_not_a_number", "age"): (2, (1, 2)),
        ("serving_not_a_number", "visits"): (1, (4,)),
        ("serving_not_a_number", "score"): (2, (1, 3)),
        ("serving_outside", "visits"): (2, (1, 2)),
        ("serving_unseen_label", "city"): (2, (2, 4)),
        ("serving_unseen_label", "mood"): (1, (2,)),
    }
    assert all(finding.severity == "warning" for finding in findings)
    assert found["serving_not_a_number", "age"].examples == ("forty", "1e300")
    assert found["serving_unseen_label", "city"].examples == ("Oulu",)
    assert np.isfinite(states).all()
    assert states[:, 0].tolist() == [4, OTHER, MISSING, OTHER]
    assert states[:, 1].tolist() == [0, 0, 0, 0]  # no number is the mean
    assert states[:, 2:4].tolist() == [[0, 1]] * 4  # income: the mean, and said to be missing
    assert states[:, 6].tolist() == [8, -8, 0, 0]  # outliers are clipped
    assert states[:, 8].tolist() == [1, 1, 1, 1]
    assert states[:, 10:15].argmax(axis=1).tolist() == [3, OTHER, MISSING, 2]


def test_a_feature_the_log_lacks_is_missing(log: Log, encoder: Encoder) -> None:
    lacking = log_from_frame(rich_frame().drop("income", "mood"))
    states = encoder.encode(lacking)
    expected = encoder.encode(log).copy()
    expected[:, 2:4] = (0, 1)
    expected[:, 10:15] = (0, 1, 0, 0, 0)
    np.testing.assert_array_equal(states, expected)


def test_an_encoder_survives_json(log: Log, encoder: Encoder) -> None:
    again = from_plain(Encoder, json.loads(json.dumps(to_plain(encoder), allow_nan=False)), "the encoder")
    assert again == encoder
    np.testing.assert_array_equal(again.encode(log), encoder.encode(log))


@pytest.mark.parametrize("step", [3, -1, None, 1.5, float("nan"), "soon", [1], datetime(2024, 1, 1)])
def test_a_step_outside_the_campaign_is_refused(step: object, encoder: Encoder) -> None:
    frame = pl.DataFrame({"step": pl.Series([step], strict=False)})
    with pytest.raises(ModelError, match=r"row 1: step .* is not a step of the campaign \(0 to 2\)"):
        encoder.encode_frame(frame)


def test_a_table_without_steps_is_refused(encoder: Encoder) -> None:
    with pytest.raises(ModelError, match="no column 'step'"):
        encoder.encode_frame(rich_frame().drop("step"))


def test_a_log_without_features_is_only_a_step() -> None:
    log = log_from_frame(good_log().select("user", "step", "action", "propensity", "reward", "cost"))
    encoder = Encoder.fit(log)
    np.testing.assert_array_equal(encoder.encode(log), good_log()["step"].to_numpy()[:, None] / 2)
    assert encoder.encode_frame(good_log())[0].shape == (ROWS, 1)


def test_a_category_of_rare_labels_only_is_all_other() -> None:
    mood = pl.Series("mood", [f"m{row % 50}" for row in range(ROWS)])
    log = log_from_frame(good_log().with_columns(mood))
    encoder = Encoder.fit(log)
    states, findings = encoder.encode_frame(good_log().with_columns(mood))
    np.testing.assert_array_equal(states, encoder.encode(log))
    assert [finding.rule for finding in findings] == ["serving_rare_label"]

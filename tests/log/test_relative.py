"""Dates made relative: the same in a log, in a table to decide for and in a single row, and what calendars say."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, Encoder, Log, UsageError, log_from_frame
from redenvelope.log.cleaning.dates import dates_of, with_relative, with_relative_row

RELATIVE = ColumnMap(dates="relative")


def table(users: int = 400, seed: int = 0) -> pl.DataFrame:
    """Two decisions each, a few days apart, of customers who registered some time before."""
    random = np.random.default_rng(seed)
    first = np.repeat(random.integers(0, 60, size=users), 2)
    step = np.tile([0, 1], users)
    sent = [
        datetime(2023, 12, 20, 22, 30) + timedelta(days=int(day) + 3 * int(at))
        for day, at in zip(first, step, strict=True)
    ]
    since = np.repeat(random.integers(1, 900, size=users), 2)
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), 2),
            "step": step,
            "action": random.integers(0, 2, size=2 * users),
            "propensity": np.full(2 * users, 0.5),
            "reward": random.random(2 * users),
            "cost": random.random(2 * users),
            "sent_at": sent,
            "registered_on": [date(2023, 12, 20) - timedelta(days=int(days)) for days in since],
        }
    )


def features(log: Log) -> pl.DataFrame:
    """A log's features, under their names."""
    numbers = {name: log.features.numeric[:, place] for place, name in enumerate(log.features.numeric_names)}
    labels = {
        name: [log.features.labels[place][code] for code in log.features.codes[:, place]]
        for place, name in enumerate(log.features.category_names)
    }
    return pl.DataFrame({**numbers, **labels})


def expected(frame: pl.DataFrame) -> tuple[list[str], list[int]]:
    days = (frame["sent_at"].dt.date() - frame["registered_on"]).dt.total_days()
    return frame["sent_at"].dt.to_string("%A").to_list(), days.to_list()


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("columns", [RELATIVE, ColumnMap(dates="relative", time="sent_at")], ids=["found", "told"])
def test_the_calendar_is_right(columns: ColumnMap, text: bool) -> None:
    frame = table()
    weekdays, days = expected(frame)
    if text:
        german = pl.col("sent_at").dt.to_string("%d.%m.%Y %H:%M"), pl.col("registered_on").dt.to_string("%d.%m.%Y")
        frame = frame.with_columns(*german)
    log = log_from_frame(frame.drop("step") if columns.time else frame, columns)
    found = features(log)
    assert found["sent_at_weekday"].to_list() == weekdays
    assert found["registered_on_days_before_sent_at"].to_list() == days
    assert {"dates_relative"} <= {finding.rule for finding in log.findings}
    assert "feature_calendar" not in {finding.rule for finding in log.findings}


def test_without_the_option_dates_are_left_out() -> None:
    log = log_from_frame(table())
    assert log.features.numeric_names == log.features.category_names == ()


def test_rows_tables_and_logs_have_the_same_states() -> None:
    frame = table()
    log = log_from_frame(frame, RELATIVE)
    encoder = Encoder.fit(log)
    # Weeks later: other dates, the same weekdays and, by then, the same tenures.
    later = frame.with_columns(pl.col("sent_at") + timedelta(weeks=8), pl.col("registered_on") + timedelta(weeks=8))
    written = later.with_columns(pl.col("sent_at", "registered_on").cast(pl.String))
    states = encoder.encode(log)
    for asked in (later, written):
        found, findings = encoder.encode_frame(asked.drop("action", "propensity", "reward", "cost"))
        assert findings == ()
        np.testing.assert_array_equal(found, states)
        rows = np.stack([encoder.encode_row(row) for row in asked.head(40).iter_rows(named=True)])
        np.testing.assert_array_equal(rows, states[:40])
    # Whoever made the features is not asked for the dates.
    made = later.with_columns(
        sent_at_weekday=pl.col("sent_at").dt.to_string("%A"),
        registered_on_days_before_sent_at=(pl.col("sent_at").dt.date() - pl.col("registered_on")).dt.total_days(),
    ).drop("sent_at", "registered_on")
    np.testing.assert_array_equal(encoder.encode_frame(made)[0], states)


def test_what_is_lacking_or_no_date_is_missing_and_said() -> None:
    encoder = Encoder.fit(log_from_frame(table(), RELATIVE))
    frame = table().drop("registered_on").head(3)
    states, findings = encoder.encode_frame(frame)
    assert {(found.rule, found.column) for found in findings} == {
        ("serving_column_missing", "registered_on_days_before_sent_at")
    }
    for odd in ("soon", None, 5, ["2024-01-01"]):
        row = {"step": 0, "sent_at": odd, "registered_on": date(2023, 1, 1)}
        assert with_relative_row(row, encoder.of_dates)["sent_at_weekday"] is None
        np.testing.assert_array_equal(encoder.encode_row(row), encoder.encode_row({"step": 0}))
    assert len(states) == 3


def test_names_may_hold_the_words_themselves() -> None:
    assert dates_of("a_weekday") == {"a"}
    assert dates_of("a_days_before_b") == {"a", "b"}
    assert dates_of("weekday") == dates_of("_weekday") == dates_of("a_days_before_") == dates_of("age") == frozenset()
    name = "x_days_before_y_days_before_z"
    frame = pl.DataFrame({"x": [date(2024, 1, 1)], "y_days_before_z": [date(2024, 1, 8)]})
    assert with_relative(frame, [name])[name].to_list() == [7.0]
    assert with_relative_row(frame.row(0, named=True), [name])[name] == 7.0


def test_where_nothing_says_when_it_is_asked() -> None:
    frame = table().with_columns(seen_at=pl.col("sent_at") - timedelta(days=2) * pl.col("step"))
    (finding,) = (one for one in log_from_frame(frame, RELATIVE).findings if one.rule == "dates_not_relative")
    assert "--time" in finding.remedy
    log = log_from_frame(frame.drop("step"), ColumnMap(dates="relative", time="sent_at"))
    assert features(log)["seen_at_days_before_sent_at"].to_list() == [0.0, 2.0] * (len(frame) // 2)
    taken = frame.drop("seen_at").with_columns(sent_at_weekday=pl.lit("a") + pl.col("step").cast(pl.String))
    assert "dates_not_relative" in {one.rule for one in log_from_frame(taken, RELATIVE).findings}
    vague = table().with_columns(pl.col("sent_at").dt.to_string("%m/%d/%Y"))
    assert "dates_not_relative" in {one.rule for one in log_from_frame(vague, RELATIVE).findings}


def test_the_option_is_one_of_two(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave-out, relative"):
        ColumnMap(dates="absolute")
    (tmp_path / "campaign.toml").write_text('dates = "relative"\n', encoding="utf-8")
    assert ColumnMap.from_toml(tmp_path / "campaign.toml").dates == "relative"


def test_a_log_that_is_read_in_parts_has_the_same(tmp_path: Path) -> None:
    from redenvelope.engine.engine import LocalEngine
    from redenvelope.lake.reading import open_lake
    from redenvelope.log.read import read_log

    (tmp_path / "log").mkdir()
    frame = table().drop("step")
    for number, part in enumerate((frame[:300], frame[300:])):
        part.write_parquet(tmp_path / "log" / f"{number}.parquet")
    columns = ColumnMap(dates="relative", time="sent_at")
    lake = open_lake(tmp_path / "log", columns, tmp_path / "work", LocalEngine(1), parts=2)
    users = {
        int(user): (log.features.numeric[start], log.features.labels[0][log.features.codes[start, 0]])
        for part in lake.parts
        for log in lake.logs(part)
        for user, start in zip(log.users, log.starts[:-1], strict=True)
    }
    whole = features(read_log(tmp_path / "log", columns))[::2]
    days, weekdays = whole["registered_on_days_before_sent_at"], whole["sent_at_weekday"]
    assert {user: (float(number[0]), label) for user, (number, label) in users.items()} == dict(
        enumerate(zip(days.to_list(), weekdays.to_list(), strict=True))
    )
    with pytest.raises(UsageError, match="name it with columns"):
        open_lake(tmp_path / "log", RELATIVE, tmp_path / "other", LocalEngine(1))

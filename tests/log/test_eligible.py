"""The list column `eligible`: what each row's user might have got."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import LogError, ModelError, audit_log, log_from_frame, read_log
from redenvelope.log.eligibility import listed_actions
from redenvelope.log.log import ActionCatalogue
from tests.partitioned_log import read_partitions

USERS, STEPS = 400, 3


def table(seed: int = 0) -> pl.DataFrame:
    """A logger that draws evenly among what is eligible, which is not the same for everybody."""
    rng = np.random.default_rng(seed)
    rows = USERS * STEPS
    allowed = np.stack([np.ones(rows, dtype=bool), rng.random(rows) < 0.5, rng.random(rows) < 0.3], axis=1)
    action = np.array([rng.choice(np.flatnonzero(row)) for row in allowed])
    labels = np.array(["none", "push", "10 | coupon"], dtype=object)
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(USERS), STEPS),
            "step": np.tile(np.arange(STEPS), USERS),
            "action": labels[action],
            "propensity": 1 / allowed.sum(axis=1),
            "reward": rng.random(rows),
            "cost": action + 0.1 * rng.random(rows),
            "visits": rng.integers(0, 9, rows),
            "eligible": [labels[row].tolist() for row in allowed],
        },
        schema_overrides={"eligible": pl.List(pl.String)},
    )


def mask(frame: pl.DataFrame, labels: tuple[str, ...]) -> np.ndarray:
    return np.array([[label in row for label in labels] for row in frame["eligible"].to_list()])


def test_lists_are_read_and_are_no_feature(tmp_path: Path) -> None:
    frame = table()
    frame.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(tmp_path / "log.parquet")
    log = read_log(tmp_path / "log.parquet")
    assert log.features.names == ("visits",)
    assert log.eligible is not None and (log.eligible == mask(frame, log.catalogue.labels)).all()
    assert not [finding for finding in log.findings if "eligible" in finding.rule]
    part = log.select(np.arange(USERS) < 10)
    assert part.eligible is not None and (part.eligible == log.eligible[: 10 * STEPS]).all()
    _, parts = read_partitions(frame, parts=3)
    assert sum(0 if one.eligible is None else int(one.eligible.sum()) for one in parts) == log.eligible.sum()


def test_text_files_write_labels_with_bars_between(tmp_path: Path) -> None:
    frame = table().with_columns(pl.col("action").replace("10 | coupon", "coupon"))
    frame = frame.with_columns(pl.col("eligible").list.eval(pl.element().replace("10 | coupon", "coupon")))
    frame.with_columns(pl.col("eligible").list.join("|")).write_csv(tmp_path / "log.csv")
    log = read_log(tmp_path / "log.csv")
    assert log.eligible is not None and (log.eligible == mask(frame, log.catalogue.labels)).all()


def test_another_column_of_that_name_stays_a_feature() -> None:
    words = ["yes", "no", "perhaps"]
    log = log_from_frame(table().with_columns(pl.Series("eligible", [words[n % 3] for n in range(USERS * STEPS)])))
    assert log.eligible is None and "eligible" in log.features.names
    flags = log_from_frame(table().with_columns(pl.Series("eligible", [n % 2 == 0 for n in range(USERS * STEPS)])))
    assert flags.eligible is None and "eligible" in flags.features.names


def test_rows_without_a_list_allow_everything_and_contradictions_are_said() -> None:
    frame = table().with_columns(
        pl.when(pl.col("user") == 0).then(None).otherwise(pl.col("eligible")).alias("eligible"),
        pl.when(pl.col("user") == 1).then(pl.lit("push")).otherwise(pl.col("action")).alias("action"),
    )
    frame = frame.with_columns(
        pl.when(pl.col("user") == 1).then(pl.lit(["none"])).otherwise(pl.col("eligible")).alias("eligible")
    )
    log = log_from_frame(frame)
    assert log.eligible is not None and log.eligible[:3].all()
    (said,) = [finding for finding in log.findings if finding.rule == "eligible_not_logged"]
    assert said.count == 3
    assert log.eligible[3:6, log.catalogue.labels.index("push")].all()  # what was logged is taken as eligible


def test_a_column_that_lists_no_logged_action_is_refused() -> None:
    ages = pl.Series("age", [str(20 + n % 50) for n in range(USERS * STEPS)])
    with pytest.raises(LogError, match="eligible_no_lists"):
        log_from_frame(table().drop("eligible").with_columns(ages), {"eligible": "age"})


def test_numbers_are_listed_as_numbers() -> None:
    frame = table().with_columns(
        pl.col("action").replace_strict({"none": 0.0, "push": 2.5, "10 | coupon": 10.0}),
        pl.col("eligible").list.eval(
            pl.element().replace_strict({"none": 0.0, "push": 2.5, "10 | coupon": 10.0}, return_dtype=pl.Float64)
        ),
    )
    log = log_from_frame(frame)
    assert log.eligible is not None and log.catalogue.labels == ("0", "2.5", "10")
    wanted = np.array([[float(label) in row for label in log.catalogue.labels] for row in frame["eligible"].to_list()])
    assert (log.eligible == wanted).all()


def test_propensities_are_judged_where_an_action_was_eligible() -> None:
    calibrated = audit_log(log_from_frame(table())).calibration
    assert not any(entry.is_off for entry in calibrated)
    unlisted = audit_log(log_from_frame(table().drop("eligible"))).calibration
    assert any(entry.is_off for entry in unlisted)  # else half of the pushes seem to be missing


def test_users_to_decide_for_list_what_they_may_get() -> None:
    catalogue = ActionCatalogue(("none", "push"), False)
    lists = pl.Series([["none"], ["push", "unknown"], None, []], dtype=pl.List(pl.String))
    expected = [[True, False], [False, True], [True, True], [False, False]]
    assert listed_actions(lists, catalogue).tolist() == expected
    texts = pl.Series(["none", "push|unknown", None, "|"])
    assert listed_actions(texts, catalogue).tolist() == expected
    with pytest.raises(ModelError, match="lists 'yes', and none of its labels is an action"):
        listed_actions(pl.Series(["yes", "no"]), catalogue)
    with pytest.raises(ModelError, match="must hold lists of the labels"):
        listed_actions(pl.Series([True]), catalogue)


def test_a_column_that_rules_ask_for_is_no_leak() -> None:
    # Pushes are for those with many visits: without the lists, visits seem to know what was drawn.
    rng, rows = np.random.default_rng(0), 6_000
    visits = rng.integers(0, 10, rows)
    action = np.where(visits > 4, rng.integers(0, 2, rows), 0)
    labels = np.array(["none", "push"], dtype=object)
    frame = pl.DataFrame(
        {
            "user": np.repeat(np.arange(rows // 2), 2),
            "step": np.tile([0, 1], rows // 2),
            "action": labels[action],
            "propensity": np.where(visits > 4, 0.5, 1.0),
            "reward": rng.random(rows),
            "cost": action + 0.1 * rng.random(rows),
            "visits": visits,
            "eligible": [["none", "push"] if many > 4 else ["none"] for many in visits],
        }
    )
    assert [leak.column for leak in audit_log(log_from_frame(frame)).leaks] == []
    assert "visits" in [leak.column for leak in audit_log(log_from_frame(frame.drop("eligible"))).leaks]

"""One user is one user, whatever the id is stored as; what cannot be an id is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from redenvelope import inspect_log, read_log
from redenvelope.log.cleaning.ids import read_ids, read_steps
from redenvelope.randomness import user_key, user_keys

from .files import USERS, csv, good_log, parquet

WHOLE = list(range(1, USERS + 1))


def with_ids(ids: pl.Series) -> pl.DataFrame:
    return good_log().with_columns(ids.gather(good_log()["user"] - 1).alias("user"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    "ids",
    [
        pl.Series([float(user) for user in WHOLE]),
        pl.Series(WHOLE, dtype=pl.Float32),
        pl.Series([Decimal(user) for user in WHOLE], dtype=pl.Decimal(20, 3)),
        pl.Series([Decimal(user) for user in WHOLE], dtype=pl.Decimal(38, 0)),
        pl.Series(WHOLE, dtype=pl.Int128),
        pl.Series(WHOLE, dtype=pl.UInt64),
        pl.Series([f"{user}.0" for user in WHOLE]),
        pl.Series([f"{user}.0" if user % 2 else str(user) for user in WHOLE]),
        pl.Series([str(user) for user in WHOLE], dtype=pl.Categorical),
        pl.Series([f"{user}   " for user in WHOLE]),
    ],
    ids=lambda ids: str(ids.dtype),
)
def test_whole_numbers_are_integers_in_every_type(ids: pl.Series, ending: str, tmp_path: Path) -> None:
    frame = with_ids(ids)
    path = tmp_path / f"log.{ending}"
    path.write_bytes(csv(frame) if ending == "csv" else parquet(frame))
    log = read_log(path)
    assert log.users.to_list() == WHOLE
    assert {finding.rule for finding in log.findings} <= {"user_float"}
    assert log.reward.tolist() == good_log()["reward"].to_list()


@pytest.mark.parametrize("dtype", [pl.Int128, pl.Decimal(38, 0), pl.Decimal(38, 2), pl.String])
def test_ids_of_thirty_digits_are_exact(dtype: pl.DataType, tmp_path: Path) -> None:
    ids = [10**29 + user for user in WHOLE]
    with_ids(pl.Series(ids, dtype=pl.Int128).cast(dtype)).write_parquet(tmp_path / "log.parquet")
    log = read_log(tmp_path / "log.parquet")
    assert log.users.to_list() == [str(user) for user in ids]
    assert log.keys.tolist() == [user_key(user) for user in ids]


def test_text_is_itself_letter_by_letter() -> None:
    different = ["5", "05", "+5", "5e0", "5.5", "5.", "-5", "٥", "five", "5.0.0", str(2**64 + 5), "0x5"]
    assert len(set(user_keys(pl.Series(different)).tolist())) == len(different)
    same: list[int | str] = [5, "5", "5.0", "5.000", " 5 "]
    assert len({user_key(user) for user in same}) == 1
    wide: list[int | str] = [2**64 + 5, str(2**64 + 5), f"{2**64 + 5}.0"]
    assert len({user_key(user) for user in wide}) == 1
    ids = read_ids(pl.Series(different))
    assert ids is not None
    assert ids.values.to_list() == different
    assert not ids.rewritten.any()


def test_somebody_may_be_called_nan_but_no_number_is(tmp_path: Path) -> None:
    names = ["Nan", "NULL", *(f"user {user}" for user in WHOLE[2:])]
    with_ids(pl.Series(names)).write_csv(tmp_path / "log.csv")
    assert set(read_log(tmp_path / "log.csv").users) == set(names)
    for word, rule in (("nan", "user_not_finite"), ("NULL", "user_null"), ("1.23457e+18", "user_too_large")):
        with_ids(pl.Series([word, *map(str, WHOLE[1:])])).write_csv(tmp_path / "log.csv")
        assert rule in {finding.rule for finding in inspect_log(tmp_path / "log.csv").findings}


@pytest.mark.parametrize(
    ("steps", "read"),
    [
        (["0", "1.0", "+2", "-3", "1e0", "true", "x", "", None, "9" * 30], [0, 1, 2, -3, *[None] * 6]),
        ([0.0, 1.5, float("nan"), float("inf"), -0.0], [0, None, None, None, 0]),
        ([True, False], [None, None]),
        ([Decimal("1.0"), Decimal("1.5")], [1, None]),
        ([[1], [2]], [None, None]),
    ],
)
def test_steps_are_whole_numbers_as_they_are_written(steps: list[object], read: list[int | None]) -> None:
    assert read_steps(pl.Series(steps)).to_list() == read


@pytest.mark.parametrize("step", ["1e0", "true", "2024-01-01"])
def test_other_steps_of_a_log_are_named(step: str, tmp_path: Path) -> None:
    spoilt = good_log().with_columns(pl.Series("step", [step if row == 3 else str(row % 3) for row in range(360)]))
    spoilt.write_csv(tmp_path / "log.csv")
    (finding,) = inspect_log(tmp_path / "log.csv").findings
    assert (finding.rule, finding.rows, finding.examples) == ("step_not_integer", (4,), (step,))

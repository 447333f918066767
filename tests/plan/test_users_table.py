"""Tables of users as files: read by their very names, every user once, ids the same whatever they are stored as."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope.errors import ModelError, RedenvelopeError, UsageError
from redenvelope.plan.allocate import allocate_file
from redenvelope.plan.decide import Decider
from redenvelope.plan.plan import Plan

USERS = 40


def table(users: pl.Series | None = None) -> pl.DataFrame:
    ids = pl.Series("user", range(USERS)) if users is None else users.alias("user")
    return pl.DataFrame([ids, pl.Series("step", [0] * len(ids)), pl.Series("state", ["s0"] * len(ids))])


def decided(
    plan: Plan, frame: pl.DataFrame, folder: Path, name: str = "users.parquet", out: str = "o.parquet"
) -> pl.DataFrame:
    path = folder / name
    frame.write_parquet(path) if name.endswith("parquet") else frame.write_csv(path)
    allocate_file(plan, path, folder / out, seed=3)
    content = (folder / out).read_bytes()
    return pl.read_parquet(content) if out.endswith("parquet") else pl.read_csv(content)


@pytest.mark.parametrize("name", ["u[1].parquet", "u[1].csv", "u*.parquet", "u?.csv"])
@pytest.mark.parametrize("out", ["o[1].parquet", "o[1].csv", "o*.csv", f"{'o' * 250}.csv"])
def test_names_of_files_are_no_patterns(plan: Plan, name: str, out: str, tmp_path: Path) -> None:
    for other in ("u1.parquet", "u1.csv", "ux.parquet", "ux.csv"):
        others = table().with_columns(pl.col("user") + 10_000)
        others.write_parquet(tmp_path / other) if other.endswith("parquet") else others.write_csv(tmp_path / other)
    assert decided(plan, table(), tmp_path, name, out)["user"].to_list() == list(range(USERS))
    assert not [left for left in tmp_path.iterdir() if left.name.startswith(".")]


def test_only_files_are_opened(plan: Plan, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    for path, said in ((tmp_path / "pipe.parquet", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(UsageError, match=said):
            allocate_file(plan, path, tmp_path / "out.csv", seed=0)


WIDE = 2**63 + 5
SAME = {
    "float": pl.Series([float(user) for user in range(USERS)]),
    "float32": pl.Series(range(USERS), dtype=pl.Float32),
    "decimal": pl.Series([Decimal(user) for user in range(USERS)], dtype=pl.Decimal(38, 2)),
    "whole decimal": pl.Series([Decimal(user) for user in range(USERS)], dtype=pl.Decimal(38, 0)),
    "unsigned": pl.Series(range(USERS), dtype=pl.UInt64),
    "128 bits": pl.Series(range(USERS), dtype=pl.Int128),
    "small": pl.Series(range(USERS), dtype=pl.Int8),
    "text": pl.Series([str(user) for user in range(USERS)]),
    "text of decimals": pl.Series([f"{user}.0" for user in range(USERS)]),
    "categories": pl.Series([str(user) for user in range(USERS)], dtype=pl.Categorical),
}


@pytest.mark.parametrize("name", ["users.parquet", "users.csv"])
@pytest.mark.parametrize("kind", SAME)
def test_a_whole_number_is_the_same_user_in_every_type(plan: Plan, kind: str, name: str, tmp_path: Path) -> None:
    expected = plan.allocate(table(), seed=3)[0]
    found = decided(plan, table(SAME[kind]), tmp_path, name)
    assert found["user"].cast(pl.Int64).to_list() == list(range(USERS))
    assert found["action"].equals(expected["action"])
    assert found["propensity"].equals(expected["propensity"])
    single = Decider(plan, seed=3)
    for user in (5, 5.0, "5", "5.0", Decimal("5.00"), np.float64(5), np.int16(5)):
        assert single.decide({"user": user, "step": 0, "state": "s0"}).action == expected["action"][5]


@pytest.mark.parametrize("name", ["users.parquet", "users.csv"])
@pytest.mark.parametrize("dtype", [pl.UInt64, pl.Int128, pl.Decimal(38, 0), pl.String])
def test_ids_beyond_64_bits_are_exact(plan: Plan, dtype: pl.DataType, name: str, tmp_path: Path) -> None:
    ids = [WIDE + place for place in range(USERS)]
    found = decided(plan, table(pl.Series(ids, dtype=pl.UInt64).cast(dtype)), tmp_path, name)
    assert [int(user) for user in found["user"]] == ids
    assert found["action"].equals(plan.allocate(table(pl.Series([str(user) for user in ids])), seed=3)[0]["action"])
    single = Decider(plan, seed=3)
    assert [single.decide({"user": user, "step": 0, "state": "s0"}).action for user in ids] == found["action"].to_list()


BROKEN = {
    "nan": (pl.Series([1.0, float("nan")]), "row 2: nan is not a user id"),
    "infinite": (pl.Series([float("inf"), 1.0]), "row 1: inf is not a user id"),
    "fraction": (pl.Series([1.0, 1.5]), "row 2: the user 1.5 is a number with a fraction"),
    "fraction of a decimal": (pl.Series([Decimal("1.0"), Decimal("1.5")]), "row 2: the user 1.5 .* fraction"),
    "rounded": (pl.Series([1.0, 2.0**53]), "row 2: .* so large that it was rounded"),
    "rounded in 32 bits": (pl.Series([1.0, 2.0**24], dtype=pl.Float32), "row 2: .* so large that it was rounded"),
    "struct": (pl.Series([{"a": 1}, {"a": 2}]), "neither text nor integers"),
    "list": (pl.Series([[1], [2]]), "neither text nor integers"),
    "binary": (pl.Series([b"1", b"2"]), "neither text nor integers"),
    "truth": (pl.Series([True, False]), "neither text nor integers"),
    "date": (pl.Series([0, 1]).cast(pl.Date), "neither text nor integers"),
    "nothing": (pl.Series([None, None]), "row 1: the user is missing"),
    "a hole": (pl.Series([1, None]), "row 2: the user is missing"),
    "empty text": (pl.Series(["a", ""]), "row 2: the user is missing"),
    "nan as text": (pl.Series(["1", "NaN"]), "row 2: NaN is not a user id"),
    "missing as text": (pl.Series(["1", "NULL"]), "row 2: the user is missing"),
    "rounded as text": (pl.Series(["1", "1.23457e+18"]), "row 2: .* so large that it was rounded"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_id_is_refused_in_words(plan: Plan, kind: str, tmp_path: Path) -> None:
    ids, said = BROKEN[kind]
    with pytest.raises(ModelError, match=said):
        plan.allocate(table(ids), seed=0)
    with pytest.raises(ModelError, match=said):
        decided(plan, table(ids), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["users.parquet"]


@pytest.mark.parametrize("name", ["users.parquet", "users.csv"])
def test_a_user_twice_is_found_however_far_apart(plan: Plan, name: str, tmp_path: Path) -> None:
    ids = pl.Series(range(200_001)).set(pl.Series([False] * 200_000 + [True]), 5)
    with pytest.raises(ModelError, match=r"rows 6 and 200,001 share a user and step \(1 row"):
        decided(plan, table(ids), tmp_path, name)
    text = pl.Series(["a", "5", "b", "5.0"])
    with pytest.raises(ModelError, match="rows 2 and 4 share a user and step"):
        decided(plan, table(text), tmp_path, name)
    with pytest.raises(ModelError, match=r"row 2: 2 row\(s\) share"):
        plan.allocate(table(text), seed=0)


def test_places_in_later_parts_are_rows_of_the_file(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redenvelope.plan.allocate.ROWS_AT_ONCE", 7)
    odd = table().with_columns(state=pl.when(pl.col("user") == 30).then(pl.lit("s99")).otherwise(pl.lit("s0")))
    odd.write_parquet(tmp_path / "users.parquet")
    (finding,) = allocate_file(plan, tmp_path / "users.parquet", tmp_path / "out.parquet", seed=0).findings
    assert finding.rows == (31,)
    holes = table(pl.Series(range(USERS)).set(pl.Series(range(USERS)) == 30, None))
    with pytest.raises(ModelError, match="row 31: the user is missing"):
        decided(plan, holes, tmp_path)
    late = table().with_columns(step=pl.when(pl.col("user") == 30).then(9).otherwise(0))
    with pytest.raises(ModelError, match="row 31: step 9 is not"):
        decided(plan, late, tmp_path)


@pytest.mark.parametrize(
    "step", ["1e0", "true", True, 0.5, float("nan"), "x", "", None, [0], {"a": 0}, b"0", 2**40, -1]
)
def test_what_is_no_step_is_refused_in_words(plan: Plan, step: object, tmp_path: Path) -> None:
    frame = table().with_columns(pl.Series("step", [step] * USERS))
    for refused in (lambda: plan.allocate(frame, seed=0), lambda: decided(plan, frame, tmp_path)):
        with pytest.raises(RedenvelopeError, match="step"):
            refused()
    with pytest.raises(RedenvelopeError, match="step"):
        Decider(plan).decide({"user": 1, "step": step, "state": "s0"})


def test_columns_that_are_not_needed_do_not_matter(plan: Plan, tmp_path: Path) -> None:
    odd = table().with_columns(pl.lit(1).alias("*"), pl.lit("x").alias("^.*$"), pl.Series("list", [[1]] * USERS))
    expected = plan.allocate(table(), seed=3)[0]
    assert decided(plan, odd, tmp_path).equals(expected)
    assert plan.allocate(odd, seed=3)[0].equals(expected)


def test_files_of_another_kind_are_called_what_they_are(plan: Plan, tmp_path: Path) -> None:
    table().write_csv(tmp_path / "users.parquet")
    table().write_parquet(tmp_path / "users.csv")
    (tmp_path / "wide.csv").write_text(",".join(f"c{place}" for place in range(20_000)) + "\n")
    kinds = {"users.parquet": "is text, not parquet", "users.csv": "is parquet, not text", "wide.csv": "20,000 columns"}
    for name, said in kinds.items():
        with pytest.raises(UsageError, match=said):
            allocate_file(plan, tmp_path / name, tmp_path / "out.csv", seed=0)


def test_a_table_that_does_not_fit_is_refused_before_it_is_read(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table().write_parquet(tmp_path / "users.parquet")
    monkeypatch.setattr("redenvelope.log.limits.available_memory", lambda: 300)
    with pytest.raises(UsageError, match=r"40 rows need .* of memory"):
        allocate_file(plan, tmp_path / "users.parquet", tmp_path / "out.csv", seed=0)

"""Names of columns, files and folders are names, whatever they look like to a library."""

from __future__ import annotations

import ast
import os
import socket
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import redenvelope.log
from redenvelope import ColumnMap, Encoder, UsageError, inspect_log, log_from_frame, read_log

from .files import csv, good_log, parquet

PATTERNS = ["*", "^.*$", "^r.*$", "^x$", "^user$", "a|b", "x^", "x\x01", "$1", "{column}", "%s", "col*", "~", "^^$$"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_column_may_be_called_like_a_pattern(name: str, ending: str, tmp_path: Path) -> None:
    for position in ("first", "last"):
        renamed = good_log().rename({"age": name})
        frame = (
            renamed[[name, *(other for other in renamed.columns if other != name)]] if position == "first" else renamed
        )
        path = tmp_path / f"log.{ending}"
        path.write_bytes(csv(frame) if ending == "csv" else parquet(frame))
        log = read_log(path)
        assert log.findings == ()
        assert sorted(log.features.names) == sorted([name, "city", "visits"])
        column = log.features.numeric[:, log.features.numeric_names.index(name)]
        np.testing.assert_array_equal(column, good_log()["age"].to_numpy())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_many_such_columns_at_once_and_as_roles_and_ignored(ending: str, tmp_path: Path) -> None:
    frame = good_log().rename({"user": "*", "reward": "^.*$", "age": "^c.*$"}).with_columns(pl.lit(3).alias("^cost$"))
    path = tmp_path / f"log.{ending}"
    path.write_bytes(csv(frame) if ending == "csv" else parquet(frame))
    log = read_log(path, ColumnMap({"user": "*", "reward": "^.*$"}, frozenset({"^cost$", "^c.*$"})))
    assert log.findings == ()
    assert log.reward.tolist() == good_log()["reward"].to_list()
    assert log.cost.tolist() == good_log()["cost"].to_list()
    assert sorted(log.features.names) == ["city", "visits"]


def test_a_spoilt_value_in_such_a_column_is_named(tmp_path: Path) -> None:
    frame = good_log().with_columns(pl.Series("^.*$", ["7"] * 359 + ["word"]))
    (tmp_path / "log.csv").write_bytes(csv(frame))
    (finding,) = (each for each in inspect_log(tmp_path / "log.csv").findings if each.rule == "feature_mixed")
    assert (finding.column, finding.rows) == ("^.*$", (360,))


def test_columns_are_never_asked_for_by_a_name_of_the_table() -> None:
    """A name that is not written in the code must not reach what takes it for a pattern."""
    folder = Path(redenvelope.log.__file__).parents[1]
    for file in (file for room in ("log", "audit", "plan") for file in (folder / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                asks = node.func.attr in ("col", "exclude", "struct") and getattr(node.func.value, "id", "") == "pl"
                asks |= node.func.attr == "drop"
                if asks:
                    fixed = all(
                        isinstance(each, ast.Constant) or getattr(each, "id", "").isupper() for each in node.args
                    )
                    assert fixed, f"{file.name}:{node.lineno}"


@pytest.mark.parametrize(
    "name", ["u[1].parquet", "u*.csv", "u?.parquet", "[a-z].csv", "~.csv", "day=1.parquet", "a b#.csv"]
)
def test_a_file_that_exists_is_read_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    decoy = good_log().with_columns(reward=9)
    for other in ("u1.parquet", "u2.csv", "ux.parquet", "b.csv"):
        (tmp_path / other).write_bytes(csv(decoy) if other.endswith("csv") else parquet(decoy))
    (tmp_path / name).write_bytes(csv(good_log()) if name.endswith("csv") else parquet(good_log()))
    assert read_log(tmp_path / name).reward.tolist() == good_log()["reward"].to_list()


@pytest.mark.parametrize("folder", ["p[1]", "p*", "day=[x]"])
def test_so_is_a_folder(folder: str, tmp_path: Path) -> None:
    for place, reward in ((folder, None), ("p1", 9), ("px", 9)):
        (tmp_path / place).mkdir()
        frame = good_log() if reward is None else good_log().with_columns(reward=pl.lit(reward))
        frame.write_csv(tmp_path / place / "part[0].csv")
    assert read_log(tmp_path / folder).reward.tolist() == good_log()["reward"].to_list()


def test_a_name_that_does_not_exist_is_tried_as_a_pattern(tmp_path: Path) -> None:
    good_log()[:180].write_csv(tmp_path / "u1.csv")
    good_log()[180:].write_csv(tmp_path / "u2.csv")
    good_log().write_csv(tmp_path / "_u3.csv")
    assert len(read_log(f"{tmp_path}/*u[0-9].csv")) == 360
    assert [finding.rule for finding in read_log(f"{tmp_path}/*u[0-9].csv").findings] == ["files_hidden"]
    assert len(read_log(f"{tmp_path}/_u*.csv")) == 360
    with pytest.raises(UsageError, match="no file matches"):
        read_log(f"{tmp_path}/v[0-9].csv")


def test_a_home_folder_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    good_log().write_parquet(tmp_path / "~" / "log.parquet")
    assert len(read_log("~/log.parquet")) == 360


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")  # no name is this folder, whatever it holds
    os.mkfifo(tmp_path / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(tmp_path / "socket.parquet"))
        for path in (tmp_path / "pipe.csv", tmp_path / "socket.parquet", Path("/dev/zero")):
            with pytest.raises(UsageError, match="a pipe, a socket or a device"):
                read_log(path)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match="no tables in this folder"):
        read_log(tmp_path / "folder.csv")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for odd in (tmp_path / "loop.csv", tmp_path / ("x" * 300 + ".csv"), "a\0b.csv", "", tmp_path / "gone" / "log.csv"):
        with pytest.raises(UsageError, match=r"\w"):
            read_log(odd)


def test_a_name_that_is_no_text_is_read(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.parquet"))
    path.write_bytes(parquet(good_log()))
    assert len(read_log(path)) == 360


def test_columns_without_a_name_are_left_out_of_parquet_too(tmp_path: Path) -> None:
    frame = good_log().with_columns(pl.lit(1).alias(""), pl.lit(2).alias("\0row"), pl.lit(3).alias("\0file"))
    frame.write_parquet(tmp_path / "log.parquet")
    for log in (read_log(tmp_path / "log.parquet"), log_from_frame(frame)):
        assert [(finding.rule, finding.count) for finding in log.findings] == [("column_unnamed", 3)]


@pytest.mark.parametrize("name", PATTERNS)
def test_serving_knows_such_columns_too(name: str) -> None:
    for feature in ("age", "city"):
        frame = good_log().rename({feature: name})
        encoder = Encoder.fit(log_from_frame(frame))
        states, findings = encoder.encode_frame(frame.with_columns(pl.lit(1).alias("^c.*$")))
        assert findings == ()
        np.testing.assert_array_equal(states, encoder.encode(log_from_frame(frame)))
        np.testing.assert_array_equal(encoder.encode_row(frame.row(0, named=True)), states[0])
        spoilt = frame.with_columns(pl.Series(name, ["odd"] * 360))
        assert [finding.column for finding in encoder.encode_frame(spoilt)[1]] == [name]

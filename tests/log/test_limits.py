"""What is too large is refused in words, before memory or time is spent on it."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, inspect_log, read_log
from redenvelope.engine.memory import available_memory
from redenvelope.log import limits
from redenvelope.log.formats import discovery as contents
from redenvelope.log.formats.parquet import stored_bytes

from .files import csv, good_log, parquet


def rules(path: Path) -> list[str]:
    return [finding.rule for finding in inspect_log(path).findings if finding.severity == "error"]


def packed_zeros(path: Path, megabytes: int) -> None:
    """A small file that unpacks to so much."""
    packer = zlib.compressobj(9, wbits=31)
    with path.open("wb") as file:
        file.write(packer.compress(csv(good_log())))
        for _ in range(megabytes):
            file.write(packer.compress(b"1,0,0,0.5,0,0,1,a,1\n" * 50_000))
        file.write(packer.flush())


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_at_once(tmp_path: Path) -> None:
    packed_zeros(tmp_path / "log.csv.gz", 150)
    began = time.perf_counter()
    assert rules(tmp_path / "log.csv.gz") == ["file_unpacks"]
    assert time.perf_counter() - began < 5


def test_a_file_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.csv").write_bytes(csv(good_log()))
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(csv(good_log())))
    (tmp_path / "log.parquet").write_bytes(parquet(good_log()))
    monkeypatch.setattr(limits, "available_memory", lambda: 20_000)
    for name in ("log.csv", "log.csv.gz", "log.parquet"):
        (finding,) = inspect_log(tmp_path / name).findings
        assert finding.rule == "file_too_large"
        assert finding.message.endswith("; 0.0 MB is available")
        assert "--work FOLDER" in finding.remedy
    monkeypatch.setattr(limits, "available_memory", lambda: None)
    assert rules(tmp_path / "log.csv") == []


def test_a_table_of_a_billion_rows_in_a_few_kilobytes_is_refused(tmp_path: Path) -> None:
    rows = 2**24
    path = tmp_path / "log.parquet"
    zeros = pl.DataFrame({name: pl.zeros(rows, dtype=pl.Int64, eager=True) for name in ("user", "step")})
    zeros.write_parquet(path, row_group_size=rows)
    assert path.stat().st_size < 2**20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "available_memory", lambda: 2**28)
        assert rules(path) == ["file_too_large"]


@pytest.mark.parametrize("columns", [20_000, 1_000_000])
def test_too_many_columns_are_refused_at_once(columns: int, tmp_path: Path) -> None:
    header, row = ",".join(f"c{place}" for place in range(columns)), ",".join(["1"] * columns)
    (tmp_path / "log.csv").write_text(f"{header}\n{row}\n{row}\n")
    began = time.perf_counter()
    (finding,) = inspect_log(tmp_path / "log.csv").findings
    assert (finding.rule, finding.count) == ("columns_too_many", columns)
    assert time.perf_counter() - began < 5


def test_as_many_columns_as_are_allowed_are_read(tmp_path: Path) -> None:
    more = limits.MOST_COLUMNS - len(good_log().columns)
    numbers = np.random.default_rng(0).integers(0, 9, (more, 360))
    wide = good_log().with_columns(pl.Series(f"c{place}", values) for place, values in enumerate(numbers))
    wide.write_csv(tmp_path / "log.csv")
    wide.write_parquet(tmp_path / "log.parquet")
    wide.with_columns(one_more=1).write_parquet(tmp_path / "wider.parquet")
    for name in ("log.csv", "log.parquet"):
        assert len(read_log(tmp_path / name).features.names) == limits.MOST_COLUMNS - 6
    assert rules(tmp_path / "wider.parquet") == ["columns_too_many"]


def test_a_value_that_is_a_document_is_named(tmp_path: Path) -> None:
    long = "x" * (limits.LONGEST_TEXT + 1)
    spoilt = good_log().with_columns(note=pl.Series([long if row == 7 else "a" for row in range(360)]))
    spoilt.write_csv(tmp_path / "log.csv")
    spoilt.write_parquet(tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        (finding,) = (each for each in inspect_log(tmp_path / name).findings if each.severity == "error")
        assert (finding.rule, finding.column, finding.rows) == ("text_too_long", "note", (8,))
        assert len(str(finding)) < 1_000


def test_labels_and_names_in_messages_are_cut(tmp_path: Path) -> None:
    long = good_log().with_columns(action=pl.lit("y" * 9_000)).rename({"age": "z" * 9_000})
    long.write_parquet(tmp_path / "log.parquet")
    for finding in inspect_log(tmp_path / "log.parquet").findings:
        assert len(str(finding)) < 2_000


def test_nested_columns_are_never_read(tmp_path: Path) -> None:
    nested = good_log().with_columns(pl.Series("list", [[1, 2]] * 360), pl.Series("record", [{"a": 1}] * 360))
    nested.write_parquet(tmp_path / "log.parquet")
    found = inspect_log(tmp_path / "log.parquet").findings
    assert [(each.rule, each.column) for each in found] == [("column_nested", "list"), ("column_nested", "record")]
    nested.select("list", user="record").write_parquet(tmp_path / "log.parquet")
    assert "role_nested" in rules(tmp_path / "log.parquet")


def test_the_description_of_a_parquet_file_says_how_much_it_unpacks_to(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    text = pl.Series("text", [f"{place:050d}" for place in range(10_000)])
    pl.DataFrame([text]).write_parquet(path, row_group_size=1_000, compression="zstd")
    assert list(stored_bytes(path)) == ["text"]
    assert 50 * 10_000 <= stored_bytes(path)["text"] < 60 * 10_000
    nested = good_log().with_columns(pl.Series("list", [[1, 2]] * 360))
    nested.write_parquet(path)
    assert set(stored_bytes(path)) == set(nested.columns)
    for cut in range(4, 400, 7):
        spoilt = bytearray(path.read_bytes())
        spoilt[-cut - 4] ^= 0xFF
        (tmp_path / "spoilt").write_bytes(spoilt)
        assert all(size >= 0 for size in stored_bytes(tmp_path / "spoilt").values())


def test_a_long_column_that_is_ignored_needs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = good_log().with_columns(note=pl.Series([f"{row:09000d}" for row in range(360)]))
    long.write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr(limits, "available_memory", lambda: 1_000_000)
    assert rules(tmp_path / "log.parquet") == ["file_too_large"]
    assert len(read_log(tmp_path / "log.parquet", ColumnMap(ignored=frozenset({"note"})))) == 360


def test_memory_is_what_the_least_of_all_limits_leaves(tmp_path: Path) -> None:
    assert available_memory()
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert available_memory(tmp_path) == 5_000 * 1024
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/outer/inner\n")
    for name, most, used in (("outer", "3000000", "1000000"), ("outer/inner", "max", "5000")):
        group = tmp_path / "sys" / "fs" / "cgroup" / name
        group.mkdir(parents=True)
        (group / "memory.max").write_text(most)
        (group / "memory.current").write_text(used)
    assert available_memory(tmp_path) == 2_000_000


def test_a_limit_on_the_process_is_heeded(tmp_path: Path) -> None:
    """Through a real limit: a log of some 30 MB of text where 200 MB more may be asked for."""
    text = csv(good_log()).decode().split("\n", 1)
    (tmp_path / "log.csv").write_text(text[0] + "\n" + text[1] * 3_000)
    program = (
        "import resource\n"
        "from redenvelope.log.read import inspect_log\n"
        "used = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmSize')) * 1024\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000,) * 2)\n"
        f"print([finding.rule for finding in inspect_log({str(tmp_path / 'log.csv')!r}).findings])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "['file_too_large']", result.stderr


@pytest.mark.parametrize(
    ("name", "content", "held"),
    [
        ("log.csv", parquet(good_log()), "parquet"),
        ("log.parquet", csv(good_log()), "text"),
        ("log.csv", b"\x28\xb5\x2f\xfd" + bytes(50), "zstd"),
        ("log.csv", b"BZh91AY&SY" + bytes(50), "bzip2"),
        ("log.csv", b"PK\x03\x04" + bytes(50), "zip"),
        ("log.parquet", b"PK\x03\x04" + bytes(50), "zip"),
        ("log.csv", csv(good_log()).decode().encode("utf-16"), "UTF-16"),
        ("log.csv.gz", gzip.compress(gzip.compress(csv(good_log()))), None),
        ("log.csv.gz", gzip.compress(parquet(good_log())), "parquet"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    name: str, content: bytes, held: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    (finding,) = inspect_log(tmp_path / name).findings
    assert finding.severity == "error"
    if held is not None:
        assert finding.rule == "file_kind"
        assert held in finding.message


def test_chunks_of_many_members_are_one_file(tmp_path: Path) -> None:
    halves = csv(good_log()).split(b"\n", 100)
    members = [gzip.compress(b"\n".join(halves[:100]) + b"\n"), gzip.compress(halves[100])]
    (tmp_path / "log.csv.gz").write_bytes(b"".join(members))
    assert len(read_log(tmp_path / "log.csv.gz")) == 360
    assert contents.held_kind(b"user,step") is None


def test_a_million_labels_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = 100_000
    frame = pl.DataFrame(
        {
            "user": np.arange(rows),
            "step": np.zeros(rows, dtype=int),
            "action": np.arange(rows) % 2,
            "propensity": np.full(rows, 0.5),
            "reward": np.arange(rows) % 3,
            "cost": np.arange(rows) % 2,
            "label": [f"label {place}" for place in range(rows)],
            "x": np.arange(rows) % 11,
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    assert [each.rule for each in read_log(tmp_path / "log.parquet").findings] == ["feature_like_id"]
    frame.with_columns(action=pl.col("label")).write_parquet(tmp_path / "log.parquet")
    assert rules(tmp_path / "log.parquet") == ["action_too_many"]

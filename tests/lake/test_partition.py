"""A lake in parts is the same log as in memory: whatever its files, its slices, its parts, and where it was stopped."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from redenvelope import (
    ColumnMap,
    EnvelopeCampaign,
    LakeLog,
    LocalEngine,
    Log,
    LogError,
    UsageError,
    audit_log,
    open_lake,
    read_log,
)
from redenvelope.audit.audit import audit_partitions
from redenvelope.lake.inputs import LogReader
from redenvelope.lake.partition import buckets_of, partition
from redenvelope.log.log import join_logs

ONE = LocalEngine(1)


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    """A log in no order, with a feature of text that is all numbers, and one that is sometimes missing."""
    rows = EnvelopeCampaign(population=20).log(400, seed=1)
    rows = rows.with_columns(
        tens=(pl.col("user") % 7 * 10).cast(pl.String),
        hole=pl.when(pl.col("user") % 5 > 0).then(pl.col("user") % 3),
    )
    return rows.sample(fraction=1.0, shuffle=True, seed=3)


@pytest.fixture(scope="module")
def folder(frame: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lake")
    for number, rows in enumerate((frame[:900], frame[900:901], frame[901:])):
        rows.write_parquet(place / f"{number}.parquet")
    return place


def opened(source: Path | str, work: Path, parts: int = 8, columns: ColumnMap | None = None, **said: Any) -> LakeLog:
    return open_lake(source, columns or ColumnMap(), work, ONE, parts=parts, rows_at_once=300, **said)


def whole(lake: LakeLog) -> Log:
    return join_logs([log for part in lake.parts for log in lake.logs(part)])


def assert_same(one: Log, other: Log) -> None:
    """The same log, but that a lake has no order to be found out of."""
    assert one.users.to_list() == other.users.to_list()
    assert (one.catalogue, one.features.names, one.features.labels) == (
        other.catalogue,
        other.features.names,
        other.features.labels,
    )
    assert one.features.static == other.features.static
    for name in ("starts", "step", "action", "propensity", "reward", "cost"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.features.numeric, other.features.numeric)
    np.testing.assert_array_equal(one.features.codes, other.features.codes)
    assert one.findings == tuple(finding for finding in other.findings if finding.rule != "rows_unordered")


@pytest.mark.parametrize("parts", [1, 8])
def test_a_lake_is_the_log_that_memory_would_hold(folder: Path, tmp_path: Path, parts: int) -> None:
    lake = opened(folder, tmp_path / "work", parts)
    assert_same(whole(lake), read_log(folder))
    files = sorted((tmp_path / "work" / "parts").glob("*.parquet"))
    assert len(files) == parts
    users = [set(pl.read_parquet(file)["user"]) for file in files]
    assert sum(map(len, users)) == len(set().union(*users)) == 400


def test_no_number_of_parts_changes_a_bit_of_the_audit(folder: Path, tmp_path: Path) -> None:
    found = []
    for parts in (1, 16):
        lake = opened(folder, tmp_path / f"work-{parts}", parts)
        found.append(repr(audit_partitions(lake.parts, 3.0, lake.opened(ONE))))
    assert found[0] == found[1]
    memory = audit_log(read_log(folder), 3.0)
    assert memory.logged_cost.estimate == pytest.approx(
        audit_partitions(lake.parts, 3.0, lake.opened(ONE)).logged_cost.estimate, rel=1e-12
    )


def test_text_files_and_folders_with_values_too(frame: pl.DataFrame, tmp_path: Path) -> None:
    for country, rows in (("DE", frame.filter(pl.col("user") % 2 == 0)), ("FR", frame.filter(pl.col("user") % 2 == 1))):
        place = tmp_path / "log" / f"country={country}"
        place.mkdir(parents=True)
        rows.with_columns(user=pl.format("u{}", "user")).write_csv(place / "part.csv")
    lake = opened(tmp_path / "log", tmp_path / "work")
    assert "country" in [feature.name for feature in lake.schema.features]
    assert_same(whole(lake), read_log(tmp_path / "log"))


def test_times_episodes_and_costs_that_were_left_empty(frame: pl.DataFrame, tmp_path: Path) -> None:
    day = pl.lit(1_700_000_000) + pl.col("step") * 86_400
    rows = frame.with_columns(
        sent=pl.from_epoch(day),
        joined=pl.from_epoch(day - pl.col("user") % 30 * 86_400).cast(pl.Date),
        wave=pl.format("{}", pl.col("user") % 12),
        cost=pl.when(pl.col("cost") > 0).then("cost"),
    ).drop("step")
    (tmp_path / "log").mkdir()
    rows.write_parquet(tmp_path / "log" / "a.parquet")
    with pytest.raises(UsageError, match=r'the time of each decision; name it with columns=\{"time"'):
        opened(tmp_path / "log", tmp_path / "work", columns=ColumnMap().reading(dates="relative"))
    columns = ColumnMap().reading("sent", "wave", 0.0, "relative")
    lake = opened(tmp_path / "log", tmp_path / "work", columns=columns)
    assert_same(whole(lake), read_log(tmp_path / "log", columns))


def test_what_is_wrong_is_said_with_its_place(frame: pl.DataFrame, tmp_path: Path) -> None:
    place = tmp_path / "log"
    place.mkdir()
    frame[:500].write_parquet(place / "a.parquet")
    odd = (
        frame[500:]
        .with_row_index("row")
        .with_columns(propensity=pl.when(pl.col("row") == 41).then(1.5).otherwise("propensity"))
    )
    odd.drop("row").write_parquet(place / "b.parquet")
    with pytest.raises(LogError) as refusal:
        opened(place, tmp_path / "work")
    with pytest.raises(LogError) as expected:
        read_log(place)
    assert refusal.value.findings == expected.value.findings
    with pytest.raises(LogError, match=r'column_missing.*columns=\{"user": "customer"'):
        renamed = tmp_path / "renamed"
        renamed.mkdir()
        frame.rename({"user": "customer"}).write_parquet(renamed / "a.parquet")
        opened(renamed, tmp_path / "other")


def test_a_lake_is_not_guessed_at(frame: pl.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    dressed = frame.with_columns(spent=pl.format("{},50 €", pl.col("user") % 90))
    dressed.write_parquet(tmp_path / "log" / "a.parquet")
    with pytest.raises(UsageError, match=r"column 'spent' holds formatted numbers.*\"ignore\": \"spent\""):
        opened(tmp_path / "log", tmp_path / "work")
    assert whole(opened(tmp_path / "log", tmp_path / "other", columns=ColumnMap(ignored=frozenset({"spent"}))))


def test_broken_off_anywhere_it_goes_on_and_touches_no_input(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "log"
    shutil.copytree(folder, source)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.iterdir()}
    reader, work = LogReader(ColumnMap()), tmp_path / "work"
    straight = partition(source, reader, tmp_path / "straight", ONE, parts=8, rows_at_once=300)
    for lasting in range(40):
        try:
            lake = partition(source, reader, work, _Breaking(lasting), parts=8, rows_at_once=300)
            break
        except _BrokenOffError:
            assert not (work / "manifest.json").exists()
    assert lasting > 3
    assert lake.notes == straight.notes
    assert (
        partition(source, reader, work, _Breaking(-1), parts=8, rows_at_once=300).notes == lake.notes
    )  # nothing to do
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.iterdir()} == before
    damaged = work / "parts" / "part-000003.parquet"
    held = damaged.read_bytes()
    damaged.write_bytes(held[:-9])
    assert partition(source, reader, work, ONE, parts=8, rows_at_once=300).notes == lake.notes
    assert damaged.read_bytes() == held


@pytest.mark.parametrize("name", ["manifest.json", "parts/part-000001.json"])
def test_a_record_that_was_changed_is_not_believed(folder: Path, tmp_path: Path, name: str) -> None:
    """A manifest of no parts would be a lake without users."""
    reader, work = LogReader(ColumnMap()), tmp_path / "work"
    straight = partition(folder, reader, work, ONE, parts=2, rows_at_once=3_000)
    record = work / name
    content = json.loads(record.read_text())
    for field in sorted(content.keys() - {"seal"}):
        for odd in (None, [], {}, 0, -1, 10**9, "text"):
            record.write_text(json.dumps(content | {field: odd}))
            if name != "manifest.json":
                (work / "manifest.json").unlink(missing_ok=True)
            assert partition(folder, reader, work, ONE, parts=2, rows_at_once=3_000).notes == straight.notes
            assert json.loads(record.read_text()) == content
    (work / "asked.json").write_text('{"inputs": 3}')
    with pytest.raises(UsageError, match="its checksum does not match its content"):
        partition(folder, reader, work, ONE, parts=2, rows_at_once=3_000)


def test_other_inputs_need_another_folder(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "log"
    shutil.copytree(folder, source)
    opened(source, tmp_path / "work", 2)
    with pytest.raises(UsageError, match="with different parts; choose another folder"):
        opened(source, tmp_path / "work", 4)
    pl.read_parquet(source / "1.parquet").head(1).with_columns(reward=0.0).write_parquet(source / "1.parquet")
    with pytest.raises(UsageError, match=r"different inputs \(.*1\.parquet has changed since\)"):
        opened(source, tmp_path / "work", 2)
    with pytest.raises(UsageError, match="choose another work folder"):
        opened(source, source, 2)


def test_an_id_has_one_bucket_however_it_is_stored() -> None:
    ids = pl.Series("user", [7, 0, -3, 12_345_678_901])
    stored = [ids, ids.cast(pl.Float64), ids.cast(pl.String), pl.Series("user", [f" {value}.0 " for value in ids])]
    found = [buckets_of(each, 1_024).tolist() for each in stored]
    assert all(each == found[0] for each in found)
    many = buckets_of(pl.Series("user", range(64_000)), 64)
    assert np.bincount(many, minlength=64).std() < 4 * np.sqrt(1_000)  # about as many in each
    assert buckets_of(pl.Series("user", [None, "a"]), 64)[0] == 0


@pytest.mark.slow
def test_killed_for_good_it_goes_on(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from redenvelope.engine.engine import LocalEngine\n"
        "from redenvelope.lake.partition import partition; from redenvelope.lake.inputs import LogReader\n"
        "from redenvelope.log.columns import ColumnMap\n"
        "partition(sys.argv[1], LogReader(ColumnMap()), Path(sys.argv[2]), LocalEngine(1), parts=64, rows_at_once=50)"
    )
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "work")]
    began = time.monotonic()
    subprocess.run([*command[:-1], str(tmp_path / "straight")], check=True)
    lasts, moments = time.monotonic() - began, random.Random(3)
    for _ in range(8):
        with subprocess.Popen(command) as child:
            time.sleep(moments.uniform(0.3, 1.0) * lasts)
            child.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True)
    for file in (tmp_path / "straight" / "parts").glob("*.parquet"):
        assert (tmp_path / "work" / "parts" / file.name).read_bytes() == file.read_bytes()


class _BrokenOffError(Exception):
    pass


@dataclass
class _Breaking:
    """An engine that breaks off after some parts."""

    lasting: int

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            self.lasting -= 1
            if self.lasting < 0:
                raise _BrokenOffError
            yield work(part)

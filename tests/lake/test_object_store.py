"""Lakes and decisions in an object store: a real S3 server on this machine, which also fails and is slow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from redenvelope import Plan, UsageError, read_log, two_step
from redenvelope.log.formats.stores import read_address, scan_address, sink_address, store_failures
from tests.lake.object_store import ObjectStore
from tests.program import run_here
from tests.two_step_plan import plan, small_models, stages

__all__ = ["plan", "small_models", "stages"]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with ObjectStore() as opened:
        for name, value in opened.environment.items():
            monkeypatch.setenv(name, value)
        yield opened
        opened.failures, opened.delay, opened.refused = 0, 0.0, ""


def packed(frame: pl.DataFrame) -> bytes:
    room = io.BytesIO()
    frame.write_parquet(room)
    return room.getvalue()


def a_lake(store: ObjectStore, folder: Path) -> str:
    """A log in three objects, and the same in three files."""
    frame = two_step().log(1_200, seed=1)
    (folder / "lake").mkdir()
    for part in range(3):
        rows = frame.filter(pl.col("user") % 3 == part)
        store.put(f"lake/{part}.parquet", packed(rows))
        rows.write_parquet(folder / "lake" / f"{part}.parquet")
    return "s3://bucket/lake/*.parquet"


def users(rows: int = 300) -> pl.DataFrame:
    return two_step().log(rows, seed=2).filter(step=0).select("user", "step", "state")


def test_a_log_is_read_into_memory(store: ObjectStore, tmp_path: Path) -> None:
    lake = a_lake(store, tmp_path)
    one, other = read_log(lake), read_log(tmp_path / "lake")
    assert one.users.equals(other.users)
    assert one.cost.tolist() == other.cost.tolist()
    assert read_log("s3://bucket/lake/").reward.tolist() == other.reward.tolist()


@pytest.mark.usefixtures("small_models")
def test_a_lake_gives_the_same_plan_as_files(store: ObjectStore, tmp_path: Path) -> None:
    lake = a_lake(store, tmp_path)
    for source, name in ((lake, "far"), ("lake", "near")):
        options = ("--budget", "2.9", "--work", f"work-{name}", "--engine", "local", "--parts", "2", "--out", name)
        done = run_here("fit", source, *options, folder=tmp_path)
        assert done.returncode in (0, 3, 4), done.stderr
    far, near = Plan.load(tmp_path / "far"), Plan.load(tmp_path / "near")
    assert far.certificate.as_dict() == near.certificate.as_dict()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_decisions_are_written_to_the_store(store: ObjectStore, plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    store.put("users/0.parquet", packed(users().head(100)))
    store.put("users/1.parquet", packed(users().slice(100)))
    users().write_parquet(tmp_path / "users.parquet")
    done = run_here("allocate", "plan", "users.parquet", "--out", "near.parquet", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = pl.read_parquet(tmp_path / "near.parquet").sort("user")
    for source in ("users.parquet", "s3://bucket/users/*.parquet"):
        out = "s3://bucket/out/decisions.parquet"
        done = run_here("allocate", "plan", source, "--out", out, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert read_address(out).sort("user").equals(expected)
    done = run_here("allocate", "plan", "users.parquet", "--out", "s3://bucket/out/", folder=tmp_path)
    assert done.returncode == 2
    assert ".parquet" in done.stderr


def test_a_store_that_fails_for_a_while_and_is_slow_is_survived(store: ObjectStore, plan: Plan, tmp_path: Path) -> None:
    lake = a_lake(store, tmp_path)
    expected = read_log(tmp_path / "lake").cost.tolist()
    store.failures = 3
    assert read_log(lake).cost.tolist() == expected
    assert store.failures == 0
    store.delay = 0.3
    assert read_log(lake).cost.tolist() == expected
    plan.save(tmp_path / "plan")
    users().write_parquet(tmp_path / "users.parquet")
    store.failures, store.delay = 2, 0.1
    done = run_here("allocate", "plan", "users.parquet", "--out", "s3://bucket/d.parquet", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert store.failures == 0
    assert len(read_address("s3://bucket/d.parquet")) == 300


def test_a_store_that_does_not_answer_ends_in_words(store: ObjectStore, tmp_path: Path) -> None:
    lake = a_lake(store, tmp_path)
    store.delay = 2.0
    with pytest.raises(UsageError, match="try again later"), store_failures(lake):
        scan_address("s3://bucket/lake/0.parquet", patience=0.2).collect()


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_a_refusal_is_about_credentials(status: str, store: ObjectStore, tmp_path: Path) -> None:
    lake = a_lake(store, tmp_path)
    store.refused = status
    with pytest.raises(UsageError, match="the store refuses"):
        read_log(lake)
    with pytest.raises(UsageError, match="the store refuses"):
        sink_address(users().lazy(), "s3://bucket/never.parquet", 1)


@pytest.mark.parametrize(
    "said",
    [
        "object-store error: Error performing GET http://127.0.0.1:40340/bucket/0.parquet in 6.540138055s",
        "error sending request for url (https://bucket.s3.amazonaws.com/)",
    ],
)
def test_a_store_that_cannot_be_reached_is_no_refusal_and_no_other_format(said: str) -> None:
    with pytest.raises(UsageError, match="try again later"), store_failures("s3://bucket/0.parquet"):
        raise OSError(said)


def test_decisions_for_a_store_that_fails_for_good_end_in_words(store: ObjectStore) -> None:
    store.failures = 10**9
    with pytest.raises(UsageError, match="try again later"):
        sink_address(users().lazy(), "s3://bucket/never.parquet", 1)
    store.failures = 0
    with pytest.raises(UsageError, match="no Parquet here"):
        read_address("s3://bucket/never.parquet")  # nothing of it was written


@pytest.mark.slow  # it is asked again for half a minute
def test_a_log_in_a_store_that_fails_for_good_ends_in_words(store: ObjectStore, tmp_path: Path) -> None:
    lake = a_lake(store, tmp_path)
    store.failures = 10**9
    with pytest.raises(UsageError, match="try again later"):
        read_log(lake)


@pytest.mark.parametrize(
    "address", ["s3://bucket/nothing/*.parquet", "s3://bucket/no.parquet", "s3://no-bucket/x.parquet"]
)
def test_what_is_not_there_is_told(store: ObjectStore, address: str, tmp_path: Path) -> None:
    done = run_here("audit", address, folder=tmp_path)
    assert done.returncode == 2
    assert "check the bucket and the path" in done.stderr
    assert "hunter2" not in done.stderr


def test_what_is_no_parquet_is_told(store: ObjectStore, tmp_path: Path) -> None:
    store.put("log.csv", b"user,step\n1,0\n")
    done = run_here("audit", "s3://bucket/log.csv", folder=tmp_path)
    assert done.returncode == 2
    assert "Parquet" in done.stderr

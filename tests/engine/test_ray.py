"""A real cluster of two workers on this machine: the same answers as in this process, whatever happens to a worker."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from redenvelope import ColumnMap, LocalEngine, RayEngine, UsageError, open_lake, two_step
from redenvelope.audit.audit import audit_partitions
from redenvelope.engine.engine import engine_named
from tests.engine.ray_work import Killed, refuse, square, where

# Not imported here: the engine sets Ray up before its first import.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the extra 'ray' is not installed")


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    """One cluster for all tests of this file: starting it takes most of their time."""
    yield RayEngine(workers=2)
    import ray

    ray.shutdown()


@pytest.mark.slow  # a busy machine takes a minute to start a cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_cluster_works_as_a_process_does(engine: RayEngine, tmp_path: Path) -> None:
    assert list(engine.map(square, range(20))) == [number**2 for number in range(20)]
    found = list(engine.map(where, range(12)))
    assert {(polars, numbers) for _, polars, numbers in found} == {("1", "1")}  # a worker is a core
    with pytest.raises(UsageError, match=r"^part 3 is damaged$"):
        list(engine.map(refuse, range(10)))
    # Killed for good in the middle of three parts, chosen at random.
    killed = Killed(tmp_path, tuple(random.Random(1).sample(range(12), 3)))
    assert list(engine.map(killed, range(12))) == [number**2 for number in range(12)]
    assert len(list(tmp_path.iterdir())) == 3
    # Nobody but this machine is listened to.
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:] + Path("/proc/net/tcp6").read_text().splitlines()[1:]
    ports = {f"{port:04X}" for port in _ports_of_ray()}
    assert ports
    for line in listening:
        address, port = line.split()[1].rsplit(":", 1)
        if line.split()[3] == "0A" and port in ports:
            assert address.endswith("0100007F"), address


@pytest.mark.slow  # a busy machine takes a minute to start a cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_lake_on_a_cluster_is_the_same_to_the_last_bit(engine: RayEngine, tmp_path: Path) -> None:
    frame = two_step().log(600, seed=2).sample(fraction=1.0, shuffle=True, seed=1)
    (tmp_path / "log").mkdir()
    for number in range(3):
        frame[number * 400 : (number + 1) * 400].write_parquet(tmp_path / "log" / f"{number}.parquet")
    found = []
    for name, where_to_run, parts in (("here", LocalEngine(2), 2), ("there", engine, 4)):
        lake = open_lake(tmp_path / "log", ColumnMap(), tmp_path / name, where_to_run, parts=parts, rows_at_once=150)
        found.append(repr(audit_partitions(lake.parts, 3.0, lake.opened(where_to_run))))
    assert found[0] == found[1]
    rows = pl.concat([pl.read_parquet(file) for file in (tmp_path / "there" / "parts").glob("*.parquet")])
    assert rows.select(frame.columns).sort("user", "step").equals(frame.sort("user", "step"))


def test_engines_by_name() -> None:
    assert engine_named("local") == LocalEngine()
    assert engine_named("ray") == RayEngine()
    assert engine_named("ray://head:10001") == RayEngine("ray://head:10001")
    assert engine_named("ray:head:6379") == RayEngine("head:6379")
    for wrong in ("spark", "ray://", "ray:", ""):
        with pytest.raises(UsageError, match="unknown engine"):
            engine_named(wrong)
    with pytest.raises(UsageError, match="at least one worker"):
        RayEngine(workers=0)


def test_without_the_package_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['ray'] = None\n"
        "from redenvelope.engine.ray import RayEngine\n"
        "try: list(RayEngine().map(len, []))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'redenvelope[ray]'" in done.stdout


def _ports_of_ray() -> set[int]:
    import psutil

    here = psutil.Process()
    return {
        each.laddr.port
        for process in [here, *here.children(recursive=True)]
        for each in process.net_connections(kind="tcp")
        if each.status == "LISTEN"
    }

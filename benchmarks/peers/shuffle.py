"""Three ways to divide a lake by user on Ray: our tasks, Ray Data's hash shuffle, and Daft on Ray.

Needs daft and fsspec beside ray (`pip install daft fsspec`). Prints the seconds of each, and of the processor in all
processes of the cluster, once it is up.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from lake import write_lake

PARTS = 8


def tasks(folder: Path) -> None:
    from redenvelope.engine.ray import RayEngine
    from redenvelope.lake.inputs import LogReader
    from redenvelope.lake.partition import partition
    from redenvelope.log.columns import ColumnMap

    partition(folder / "log", LogReader(ColumnMap()), folder / "tasks", RayEngine(), parts=PARTS, rows_at_once=100_000)


def ray_data(folder: Path) -> None:
    import ray

    context = ray.data.DataContext.get_current()
    context.shuffle_strategy = ray.data.context.ShuffleStrategy.HASH_SHUFFLE
    context.enable_progress_bars = False
    rows = ray.data.read_parquet(str(folder / "log"))
    rows.repartition(PARTS, keys=["user"]).write_parquet(str(folder / "ray-data"))


def daft(folder: Path) -> None:
    import daft as library

    library.set_runner_ray(noop_if_initialized=True)
    rows = library.read_parquet(f"{folder}/log/*.parquet")
    rows.repartition(PARTS, "user").write_parquet(str(folder / "daft"))


WAYS: dict[str, Callable[[Path], None]] = {"tasks": tasks, "ray-data": ray_data, "daft": daft}


def processor() -> float:
    """Seconds of this process and all below it."""
    here, total = psutil.Process(), 0.0
    for process in [here, *here.children(recursive=True)]:
        try:
            used = process.cpu_times()
            total += used.user + used.system
        except psutil.Error:
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    arguments = parser.parse_args()
    from redenvelope.engine.ray import RayEngine

    with tempfile.TemporaryDirectory() as place:
        write_lake(Path(place) / "full", arguments.rows)
        write_lake(Path(place) / "warm", 10_000)
        list(RayEngine(workers=2).map(abs, range(8)))
        for name in arguments.ways:
            WAYS[name](Path(place) / "warm")
            before, began = processor(), time.perf_counter()
            WAYS[name](Path(place) / "full")
            seconds, used = time.perf_counter() - began, processor() - before
            print(
                f"{name:9s} {arguments.rows / seconds:10,.0f} rows/s, {arguments.rows / used:10,.0f} rows a second",
                end="",
            )
            print(f" of a processor ({seconds:.1f} s, {used:.1f} s)", flush=True)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()

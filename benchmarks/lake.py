"""A lake on one machine: partitioning, audit and allocation by size, memory of a process, one worker against two.

Every stage runs in a process of its own, so that its peak memory is its own. Rows come day after day, their users in no
order. Sizes: --rows; --engines compares the same allocation called directly, on one worker of Ray and on two. Other
work on the machine adds to the seconds; those of the processor are the work's own, on all cores together.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

STEPS, ACTIONS, NUMBERS = 5, 6, 8
ROWS_A_FILE = 1_000_000
_TURNS = 2
LABELS = ("nothing", "mail", "push", "5 % off", "10 % off", "coupon")
CITIES = tuple(f"city {number}" for number in range(40))


def write_lake(folder: Path, rows: int) -> None:
    """A log of ten features, and the users at their next decision: a day after the other, in files."""
    users = rows // STEPS
    generator = np.random.default_rng(rows)
    for name in ("log", "users"):
        (folder / name).mkdir(parents=True)
    for step in range(STEPS):
        order = generator.permutation(users)
        for first in range(0, users, ROWS_A_FILE):
            frame = _day(order[first : first + ROWS_A_FILE], step, generator)
            frame.write_parquet(folder / "log" / f"day-{step}-{first:09d}.parquet")
            if step == 0:
                known = frame.drop("action", "propensity", "reward", "cost")
                known.write_parquet(folder / "users" / f"users-{first:09d}.parquet")


def _day(user: np.ndarray, step: int, generator: np.random.Generator) -> pl.DataFrame:
    rows, action = len(user), generator.integers(ACTIONS, size=len(user))
    eager = (user * 2_654_435_761 % 1_000) / 1_000
    bought = generator.random(rows) < 0.05 + 0.1 * eager + 0.02 * action
    columns: dict[str, Any] = {
        "user": user,
        "step": np.full(rows, step, np.int32),
        "action": pl.Series(LABELS).gather(action),
        "propensity": np.full(rows, 1 / ACTIONS),
        "reward": bought.astype(float),
        "cost": np.round(action * 0.5 * (generator.random(rows) < 0.3 + 0.4 * eager), 2),
        "eager": eager.astype(np.float32),
    }
    for number in range(NUMBERS - 1):
        columns[f"number_{number}"] = generator.normal(size=rows).astype(np.float32)
    columns["city"] = pl.Series(CITIES).gather(user % len(CITIES))
    columns["device"] = pl.Series(("ios", "android", "web")).gather(generator.integers(3, size=rows))
    return pl.DataFrame(columns)


def _engine(name: str) -> Any:
    from redenvelope.engine.engine import LocalEngine
    from redenvelope.engine.ray import RayEngine

    kind, _, workers = name.partition("-")
    if kind == "direct":
        return _Direct()
    return LocalEngine(int(workers)) if kind == "local" else RayEngine(workers=int(workers))


class _Direct:
    """The work, called."""

    def map(self, work: Callable[[Any], Any], parts: Any) -> Any:
        return map(work, parts)


def stage_partition(folder: Path, engine: str) -> int:
    from redenvelope.lake.inputs import LogReader
    from redenvelope.lake.partition import partition
    from redenvelope.log.columns import ColumnMap

    shutil.rmtree(folder / "work", ignore_errors=True)
    return partition(folder / "log", LogReader(ColumnMap()), folder / "work", _engine(engine)).notes.rows


def stage_sort(folder: Path, engine: str) -> int:
    scan = pl.scan_parquet(sorted((folder / "log").glob("*.parquet")))
    scan.sort("user", "step").sink_parquet(folder / "sorted.parquet", compression="lz4")
    (folder / "sorted.parquet").unlink()
    return int(scan.select(pl.len()).collect().item())


def stage_audit(folder: Path, engine: str) -> int:
    from redenvelope.campaign.campaign import Campaign
    from redenvelope.fitting.lake import audit_lake
    from redenvelope.progress import Stages

    lake = _lake(folder, engine)
    return audit_lake(lake, _engine(engine), Campaign(), 2.0, (), Stages()).rows


def stage_fit(folder: Path, engine: str) -> int:
    """A small plan of two steps ahead, from 10,000 users: what is measured is how it is applied."""
    from redenvelope.fitting.fit import fit
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.log.read import read_log
    from redenvelope.models.training import NeuralSettings, TrainingSettings

    write_lake(folder / "small", 10_000 * STEPS)
    neural = NeuralSettings(
        outcome_hidden=(32,),
        transition_hidden=(32,),
        members=1,
        reward_structure="independent",
        cost_structure="independent",
        training=TrainingSettings(steps=500, batch_rows=256),
    )
    log = read_log(folder / "small" / "log")
    settings = FitSettings(method="planned", horizon=2, temperature=0.05, history="none", neural=neural)
    fit(log, budget=2.0, settings=settings).save(folder.parent / "plan", {})
    return len(log)


def stage_allocate(folder: Path, engine: str) -> int:
    from redenvelope.plan.lake import allocate_folder
    from redenvelope.plan.plan import Plan

    out, plan = folder / "decisions", Plan.load(folder.parent / "plan")
    shutil.rmtree(out, ignore_errors=True)
    return allocate_folder(plan, folder / "users", out, engine=_engine(engine), work=folder / "users-work").users


def stage_decide(folder: Path, engine: str) -> tuple[int, float]:
    """Allocation alone, when the users are divided and the workers are warm: a second pass over all parts."""
    from redenvelope.plan.lake import DecidePart
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.storage import PackedPlan

    plan, lake = PackedPlan.of(Plan.load(folder.parent / "plan")), _users(folder)
    out, runs = folder / "decided", _engine(engine)

    def decide() -> int:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        work = DecidePart(plan, out, len(lake.parts), 0, lake.notes.files)
        return sum(decided.rows for decided in runs.map(work, lake.parts))

    return _second(decide)


def _second(run: Callable[[], int]) -> tuple[int, float]:
    """Rows and seconds of a second run: everything is compiled, and the workers are there."""
    run()
    began = time.perf_counter()
    rows = run()
    return rows, time.perf_counter() - began


def _users(folder: Path) -> Any:
    from redenvelope.engine.engine import LocalEngine
    from redenvelope.lake.inputs import TableReader
    from redenvelope.lake.partition import partition
    from redenvelope.plan.allocate import needed_columns
    from redenvelope.plan.plan import Plan

    reader = TableReader({}, tuple(sorted(needed_columns(Plan.load(folder.parent / "plan")))))
    return partition(folder / "users", reader, folder / "decide-work", LocalEngine(1), parts=16)


def _lake(folder: Path, engine: str) -> Any:
    from redenvelope.lake.reading import open_lake
    from redenvelope.log.columns import ColumnMap

    return open_lake(folder / "log", ColumnMap(), folder / "work", _engine(engine))


STAGES: dict[str, Callable[[Path, str], Any]] = {
    name.removeprefix("stage_"): value for name, value in list(globals().items()) if name.startswith("stage_")
}


def run_stage(name: str, folder: Path, engine: str) -> None:
    """One stage, in this process; prints its figures."""
    began, loaded = time.perf_counter(), time.process_time()
    found = STAGES[name](folder, engine)
    rows, seconds = found if isinstance(found, tuple) else (found, time.perf_counter() - began)
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak = max(each.ru_maxrss for each in used)
    processor = sum(each.ru_utime + each.ru_stime for each in used) - loaded
    print(json.dumps({"rows": rows, "seconds": seconds, "processor": processor, "bytes": peak * 1024}))


_ONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
# What is called directly has one core, as a worker of Ray has.
_THREADS = {
    False: {"POLARS_MAX_THREADS": "1"},
    True: _ONE | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"},
}


def measure(name: str, folder: Path, engine: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--stage", name, "--folder", str(folder), "--engine", engine]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | _THREADS[name == "decide"])
    if ended.returncode:
        sys.exit(f"{name} failed:\n{ended.stderr[-3_000:]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    speed, memory = found["rows"] / found["seconds"], found["bytes"] / 2**30
    print(f"  {name:9s} {engine:8s} {found['rows']:>12,} rows {found['seconds']:8.1f} s", end=" ")
    if engine.startswith("ray"):
        print(f"{speed:12,.0f} rows/s {memory:6.2f} GiB peak", flush=True)
        return found
    print(f"{speed:12,.0f} rows/s; {found['processor']:7.1f} s of a processor,", end=" ")
    print(f"{found['rows'] / found['processor']:10,.0f} rows/s; {memory:6.2f} GiB peak", flush=True)
    return found


def compare_engines(folder: Path) -> None:
    """One worker, two, and the work called directly: turn and turn about, because other work comes and goes."""
    turns = [
        {each: measure("decide", folder, each)["seconds"] for each in ("direct", "ray-1", "ray-2")}
        for _ in range(_TURNS)
    ]
    direct, one, two = (min(turn[each] for turn in turns) for each in ("direct", "ray-1", "ray-2"))
    print(f"  one worker of Ray takes {one / direct:.2f} x the same work called", end="; ")
    print(f"two workers are {one / two:.2f} x as fast as one (best of {_TURNS} turns each)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[5_000_000, 20_000_000, 60_000_000])
    parser.add_argument("--engine", default="local-2", help="local-N or ray-N, N workers; direct")
    parser.add_argument("--engines", action="store_true", help="also one worker of Ray against two, and no engine")
    parser.add_argument("--quick", action="store_true", help="200,000 and 400,000 rows")
    parser.add_argument("--place", type=Path, help="folder for the files; some 130 bytes a row")
    parser.add_argument("--plan", type=Path, help="a plan that an earlier run made, to make none")
    parser.add_argument("--stage", choices=sorted(STAGES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        run_stage(arguments.stage, arguments.folder, arguments.engine)
        return
    with tempfile.TemporaryDirectory(dir=arguments.place) as place:
        speeds: dict[str, list[float]] = {}
        if arguments.plan is not None:
            shutil.copytree(arguments.plan, Path(place) / "plan")
        sizes = [200_000, 400_000] if arguments.quick else arguments.rows
        for rows in sizes:
            folder = Path(place) / str(rows)
            print(f"{rows:,} rows, {rows // STEPS:,} users", flush=True)
            write_lake(folder, rows)
            if not (Path(place) / "plan").exists():
                measure("fit", folder, arguments.engine)
            for name in ("partition", "sort", "audit", "allocate"):
                found = measure(name, folder, arguments.engine)
                speeds.setdefault(name, []).append(found["rows"] / found["processor"])
            if arguments.engines and rows == sizes[min(1, len(sizes) - 1)]:  # long enough passes
                compare_engines(folder)
            shutil.rmtree(folder)
        for name, found in speeds.items():
            if len(found) > 1:
                share = found[-1] / found[0]
                print(f"{name}: rows a second of a processor, the largest size against the smallest: {share:.2f}")


if __name__ == "__main__":
    main()

"""Reading, checking and splitting a log, against polars only reading and sorting the same file.

Each side runs in a process of its own, so that its peak memory is its own; the two alternate, and the best of
`--repeats` counts, because other work on the machine can only add time. Prints one line a size.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

FEATURES, STEPS, ACTIONS = 20, 5, 10
LIMITS = {"time": 3.0, "memory": 2.5}


def write_log(path: Path, rows: int) -> None:
    """A clean log as a campaign writes it: day after day, so not sorted by user."""
    generator = np.random.default_rng(rows)
    users = rows // STEPS
    order = np.concatenate([generator.permutation(users) for _ in range(STEPS)])
    action = generator.integers(ACTIONS, size=rows)
    columns = {
        "user": order,
        "step": np.repeat(np.arange(STEPS), users),
        "action": action,
        "propensity": np.full(rows, 1 / ACTIONS),
        "reward": (generator.random(rows) < 0.1 + 0.02 * action).astype(float),
        "cost": action * (generator.random(rows) < 0.5).astype(float),
    }
    for number in range(FEATURES):
        static = generator.normal(size=users)[order]
        columns[f"feature_{number}"] = static if number % 2 else static + generator.normal(size=rows)
    pl.DataFrame(columns).write_parquet(path)


def run_side(side: str, path: str) -> None:
    """Do one side's work and print seconds and peak memory; called in a process of its own."""
    if side == "redenvelope":
        from redenvelope.log.log import split
        from redenvelope.log.read import read_log
    start = time.perf_counter()
    if side == "polars":
        rows = len(pl.read_parquet(path).sort("user", "step"))
    else:
        rows = sum(len(part) for part in split(read_log(path)))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rows": rows, "seconds": seconds, "bytes": peak}))


def measure(path: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Best time and peak memory of each side."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for side in ("polars", "redenvelope"):
            command = [sys.executable, __file__, "--side", side, "--path", str(path)]
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            if side not in best or result["seconds"] < best[side]["seconds"]:
                best[side] = result
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="only the smallest size, once")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments.side, arguments.path)
        return
    sizes = arguments.rows[:1] if arguments.quick else arguments.rows
    print(f"{'rows':>12} {'polars s':>9} {'ours s':>8} {'time ×':>7} {'polars GB':>10} {'ours GB':>8} {'memory ×':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for rows in sizes:
            path = Path(folder) / f"{rows}.parquet"
            write_log(path, rows)
            sides = measure(path, 1 if arguments.quick else arguments.repeats)
            polars, ours = sides["polars"], sides["redenvelope"]
            time_ratio = ours["seconds"] / polars["seconds"]
            memory_ratio = ours["bytes"] / polars["bytes"]
            print(
                f"{rows:>12,} {polars['seconds']:>9.2f} {ours['seconds']:>8.2f} {time_ratio:>7.2f} "
                f"{polars['bytes'] / 1e9:>10.2f} {ours['bytes'] / 1e9:>8.2f} {memory_ratio:>9.2f}"
            )
            path.unlink()
    print(f"bars: time at most {LIMITS['time']} ×, memory at most {LIMITS['memory']} ×")


if __name__ == "__main__":
    main()

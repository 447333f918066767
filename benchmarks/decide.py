"""One user at a time in a long-lived process: six actions, 20 features, planned as `fit` plans by itself.

A plan is fitted once on a small log, with an ensemble of four networks and with one. Then, in a process of its own: how
long the plan takes to load and to warm up, the first decision, and the median and the 99th percentile of the
following; beside them, what the same decisions cost when a table of one row goes through the batch path.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FEATURES, ACTIONS = 20, 6
MEDIAN_MILLISECONDS, P99_MILLISECONDS, WARM_SECONDS = 0.5, 1.5, 5.0
KEPT_WARM_SECONDS = 1.0


def make_plan(folder: Path, users: int, members: int) -> None:
    """A plan of the size that is asked about; how good it is does not matter here."""
    from redenvelope.fitting.fit import fit
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.log.read import log_from_frame
    from redenvelope.models.training import NeuralSettings
    from redenvelope.simulate.envelopes import EnvelopeCampaign

    known = {"user", "step", "action", "propensity", "reward", "cost"}
    own = len(set(EnvelopeCampaign(population=10).log(10, 0).columns) - known)
    campaign = EnvelopeCampaign(population=50, extra_noise_features=FEATURES - own)
    frame = campaign.log(users, seed=1)
    assert len(set(frame.columns) - known) == FEATURES
    assert frame["action"].n_unique() == ACTIONS
    neural = NeuralSettings(members=members, reward_structure="dose", cost_structure="dose")
    plan = fit(log_from_frame(frame), budget=4.0, settings=FitSettings(neural=neural))
    plan.save(folder / f"plan-{members}")
    frame.drop("action", "propensity", "reward", "cost").head(2_000).write_parquet(folder / "users.parquet")


def child(plan: str, users: str, decisions: str) -> dict[str, Any]:
    """Load, warm up and decide, as a service would."""
    start = time.perf_counter()
    import numpy as np
    import polars as pl

    from redenvelope.plan.decide import Decider
    from redenvelope.plan.plan import Plan

    opened = Plan.load(plan)
    loaded = time.perf_counter()
    decider = Decider(opened).warm()
    warm = time.perf_counter()
    frame = pl.read_parquet(users)
    rows = frame.to_dicts()
    taken, made = [], []
    for number in range(int(decisions)):
        row = rows[number % len(rows)]
        before = time.perf_counter()
        made.append(decider.decide(row))
        taken.append(time.perf_counter() - before)
    together, _ = opened.allocate(frame)
    same = min(len(made), len(frame))
    gap = np.abs(np.array([one.propensity for one in made[:same]]) - together["propensity"].to_numpy()[:same])
    opened.allocate(frame[:1])
    before = time.perf_counter()
    for number in range(5):
        opened.allocate(frame[number : number + 1])
    batch = (time.perf_counter() - before) / 5
    return {
        "load": loaded - start,
        "warm": warm - loaded,
        "first": taken[0],
        "median": float(np.median(taken[1:])),
        "p99": float(np.quantile(taken[1:], 0.99)),
        "batch": batch,
        "same actions": sum(one.action == other for one, other in zip(made[:same], together["action"], strict=False)),
        "compared": same,
        "largest gap": float(gap.max()),
    }


def verdict(good: bool) -> str:
    return "met" if good else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=6_000, help="of the log that the plans are made from")
    parser.add_argument("--decisions", type=int, default=5_000)
    parser.add_argument("--quick", action="store_true", help="four networks alone, 1,000 decisions")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(*arguments.child)))
        return
    decisions = 1_000 if arguments.quick else arguments.decisions
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "REDENVELOPE_CACHE": str(folder / "cache")}
        for members in (4,) if arguments.quick else (1, 4):
            make_plan(folder, arguments.users, members)
            command = [sys.executable, __file__, "--child", str(folder / f"plan-{members}")]
            command += [str(folder / "users.parquet"), str(decisions)]
            # The first process compiles, the second finds the programs kept.
            cold, kept = (
                json.loads(
                    subprocess.run(
                        command, check=True, capture_output=True, text=True, env=environment
                    ).stdout.splitlines()[-1]
                )
                for _ in range(2)
            )
            show(members, decisions, kept, cold["warm"])


def show(members: int, decisions: int, found: dict[str, Any], cold: float) -> None:
    print(f"\n{members} network(s), {ACTIONS} actions, {FEATURES} features, {decisions:,} decisions")
    print(f"  import and load      {found['load']:8.2f} s")
    for name, taken, bar in (("compiling", cold, WARM_SECONDS), ("kept", found["warm"], KEPT_WARM_SECONDS)):
        print(f"  warm up, {name:<12}{taken:8.2f} s    (bar {bar:g}: {verdict(taken <= bar)})")
    print(f"  first decision       {1e3 * found['first']:8.2f} ms")
    for name, bar in (("median", MEDIAN_MILLISECONDS), ("p99", P99_MILLISECONDS)):
        taken = 1e3 * found[name]
        print(f"  {name:<20} {taken:8.2f} ms   (bar {bar:g}: {verdict(taken <= bar)})")
    print(
        f"  a table of one row   {1e3 * found['batch']:8.2f} ms   "
        f"({found['batch'] / found['median']:.0f} times as long)"
    )
    print(
        f"  equal to the batch path: {found['same actions']:,} of {found['compared']:,} actions, "
        f"propensities within {found['largest gap']:.1e}"
    )


if __name__ == "__main__":
    main()

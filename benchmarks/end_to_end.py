"""One million rows from file to decisions: 200,000 users × 5 steps, 20 features, 6 actions.

Prints seconds by stage of `fit` and its peak memory, the first time and then with the programs kept that the first
compiled, users decided a second by `allocate`, and the processor time of `--help`, each in a process of its own with
all cores. The log and the programs are made in a folder that is thrown away. `allocate` decides by the plan as it is,
and by the same model with trees of one and two steps and values to go, and with a tree of three steps alone (four
networks as well, copies of the one), in turns, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redenvelope.progress import Event

FEATURES, ACTIONS, STEPS = 20, 6, 5
FIT_PROCESSOR_SECONDS, FIT_GIGABYTES, HELP_SECONDS = 60.0, 1.4, 0.5
FASTER = {"1 step and values": 6.0, "2 steps and values": 2.0}
TREE = "tree of 3 steps"
AUDIT_SECONDS, CHECK_SECONDS = 5.0, 10.0


def make_log(users: int, folder: Path) -> tuple[Path, Path, float]:
    """A log, the table of its users at their first step, and a budget."""
    import polars as pl

    from redenvelope.simulate.envelopes import EnvelopeCampaign

    known = {"user", "step", "action", "propensity", "reward", "cost"}
    own = len(set(EnvelopeCampaign(population=10).log(10, 0).columns) - known)
    campaign = EnvelopeCampaign(population=1_000, extra_noise_features=FEATURES - own)
    frame = campaign.log(users, seed=1)
    assert len(set(frame.columns) - known) == FEATURES
    assert frame["action"].n_unique() == ACTIONS
    assert frame["step"].n_unique() == STEPS
    log, table = folder / "log.parquet", folder / "users.parquet"
    frame.write_parquet(log)
    frame.filter(pl.col("step") == 0).drop("action", "propensity", "reward", "cost").write_parquet(table)
    least, uniform = campaign.cheapest().cost, campaign.uniform().cost
    return log, table, least + 0.6 * (uniform - least)


def peak_gigabytes() -> float:
    """Of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Clock:
    """Seconds and processor seconds of each stage, and the peak of memory at its end."""

    def __init__(self) -> None:
        self.begun: dict[str, tuple[float, float]] = {}
        self.stages: dict[str, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Told as `fit` tells its progress."""
        self.tick(event.stage)

    def tick(self, stage: str) -> None:
        """A stage begins, goes on, or ends."""
        now = time.perf_counter(), time.process_time()
        first = self.begun.setdefault(stage, now)
        self.stages[stage] = {
            "seconds": now[0] - first[0],
            "processor": now[1] - first[1],
            "gigabytes": peak_gigabytes(),
        }


def child_fit(log: str, plan: str, budget: str) -> dict[str, Any]:
    """What `redenvelope fit` does, with the time of every stage."""
    clock = Clock()
    clock.tick("in all")
    clock.tick("import")
    from redenvelope.fitting.fit import fit
    from redenvelope.log.read import read_log
    from redenvelope.report.page import render_report

    clock.tick("import")
    clock.tick("read")
    read = read_log(log)
    clock.tick("read")
    made = fit(read, budget=float(budget), progress=clock)
    clock.tick("report and folder")
    made.save(plan, {"report.html": render_report(made).encode()})
    clock.tick("report and folder")
    clock.tick("in all")
    stages = {name: figures for name, figures in clock.stages.items() if name != "in all"}
    return {
        "stages": stages | {"in all": clock.stages["in all"]},
        "certificate": made.certificate.sentence(),
        "method": made.certificate.method,
    }


def child_first(plan: str, table: str, out: str) -> dict[str, Any]:
    """What `redenvelope allocate` does, from the plan's folder to the table of decisions."""
    start = time.perf_counter()
    from redenvelope.plan.allocate import allocate_file
    from redenvelope.plan.plan import Plan

    opened = Plan.load(plan)
    loaded = time.perf_counter()
    allocate_file(opened, Path(table), Path(out), seed=0)
    return {"load": loaded - start, "first": time.perf_counter() - loaded, "gigabytes": peak_gigabytes()}


def child_allocate(plan: str, table: str, out: str) -> dict[str, Any]:
    """The same again and again in one process, by several plans."""
    from redenvelope.plan.allocate import allocate_file
    from redenvelope.plan.plan import Plan

    opened = Plan.load(plan)
    users = allocate_file(opened, Path(table), Path(out), seed=0).users
    kinds = {"the plan": opened} | variants(opened)
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(4):
        for name, each in kinds.items():
            start_one = time.perf_counter()
            allocate_file(each, Path(table), Path(out), seed=turn)
            taken[name].append(time.perf_counter() - start_one)
    return {
        "users": users,
        "again": {name: min(times[1:]) for name, times in taken.items()},  # the first turn compiles
    }


def variants(plan: Any) -> dict[str, Any]:
    """The same model with other trees, and with four networks."""
    from dataclasses import replace

    import jax
    import numpy as np

    from redenvelope.models.neural_model import NeuralModel

    def other(source: Any, horizon: int, ends: bool) -> Any:
        specification = replace(plan.policy.specification, horizon=horizon, leaf_values=ends)
        return replace(plan, policy=replace(plan.policy, specification=specification, source=source))

    found, source = {}, plan.policy.source
    model = source.model
    copies = [0] * 4
    outcome, transition = jax.tree.map(lambda array: np.asarray(array)[copies], (model.outcome, model.transition))
    four = NeuralModel(
        outcome, transition, model.targets, model.scale, replace(model.architecture, members=4), model.history
    )
    for members, own in ((model.architecture.members, source), (4, replace(source, model=four))):
        for name, horizon, ends in (("1 step and values", 1, True), ("2 steps and values", 2, True), (TREE, 3, False)):
            found[f"{name}, {members} network(s)"] = other(own, horizon, ends)
    return found


def in_a_process(programs: Path, name: str, *arguments: str) -> dict[str, Any]:
    """Run one of the children above; compiled programs are kept in a folder."""
    command = [sys.executable, __file__, "--child", name, *arguments]
    environment = {**os.environ, "REDENVELOPE_CACHE": str(programs)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def help_seconds() -> float:
    """Processor time of a fresh `redenvelope --help`."""
    code = "import sys; sys.argv = ['redenvelope', '--help']; from redenvelope.cli import main; main()"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def verdict(good: bool) -> str:
    return "met" if good else "MISSED"


def measure(users: int, folder: Path) -> None:
    log, table, budget = make_log(users, folder)
    print(
        f"{users * STEPS:,} rows: {users:,} users × {STEPS} steps, {FEATURES} features, {ACTIONS} actions", flush=True
    )
    programs = folder / "programs"
    first, fitted = (in_a_process(programs, "fit", str(log), str(folder / "plan"), str(budget)) for _ in range(2))
    print(f"\nfit ({fitted['method']}): {fitted['certificate']}")
    whole = first["stages"]["in all"]
    print(f"  the first time, compiling: {whole['seconds']:.1f} s, {whole['processor']:.1f} s of a processor; then:")
    for stage, figures in fitted["stages"].items():
        print(
            f"  {stage:<20}{figures['seconds']:>8.1f} s {figures['processor']:>8.1f} s of a processor"
            f"   peak so far {figures['gigabytes']:.2f} GB"
        )
    whole = fitted["stages"]["in all"]
    good = whole["processor"] <= FIT_PROCESSOR_SECONDS and whole["gigabytes"] <= FIT_GIGABYTES
    print(f"  (bar {FIT_PROCESSOR_SECONDS:.0f} processor seconds and {FIT_GIGABYTES:g} GB: {verdict(good)})")
    audit = fitted["stages"]["audit"]["seconds"]
    check = sum(fitted["stages"][name]["seconds"] for name in ("certificate", "comparison"))
    print(f"  audit {audit:.1f} s (bar {AUDIT_SECONDS:g}: {verdict(audit <= AUDIT_SECONDS)})")
    print(f"  certificate and comparison {check:.1f} s (bar {CHECK_SECONDS:g}: {verdict(check <= CHECK_SECONDS)})")
    given = (str(folder / "plan"), str(table), str(folder / "decisions.parquet"))
    cold, kept = (in_a_process(programs, "first", *given) for _ in range(2))
    decided = in_a_process(programs, "allocate", *given)
    print(f"\nallocate {decided['users']:,} users, peak {kept['gigabytes']:.2f} GB, {kept['load']:.1f} s to start")
    print(f"  {decided['users'] / cold['first']:>10,.0f} users a second, compilation included")
    print(f"  {decided['users'] / kept['first']:>10,.0f} users a second in another process, with programs kept")
    for name, taken in decided["again"].items():
        kind, _, members = name.partition(", ")
        tree = decided["again"].get(f"{TREE}, {members}", taken)
        least = FASTER.get(kind)
        bar = "" if least is None else f"  (bar {least:g} ×: {verdict(tree / taken >= least)})"
        print(
            f"  {decided['users'] / taken:>10,.0f} users a second after that: {name:<34}"
            f"{tree / taken:.1f} × the tree{bar}"
        )
    seconds = min(help_seconds() for _ in range(3))
    print(f"\n--help: {seconds:.2f} s of processor time   (bar {HELP_SECONDS}: {verdict(seconds <= HELP_SECONDS)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--quick", action="store_true", help="10,000 users")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        from redenvelope.engine.memory import share_arena

        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does
        share_arena()
        children = {"fit": child_fit, "first": child_first, "allocate": child_allocate}
        print(json.dumps(children[arguments.child[0]](*arguments.child[1:])))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(10_000 if arguments.quick else arguments.users, Path(folder))


if __name__ == "__main__":
    main()

"""Can bounds and certificates be trusted? Many campaigns that nothing was tuned to, and the truth nobody was shown.

Coverage: a policy that differs clearly from the logger (half a plan of a model fitted on other users, half chance) is
estimated on 2,000 fresh users; prints how often the one-sided 95 % bound of its cost covers the truth, for sequential
doubly robust and for the estimator that certifies. Plans: fit on a log, then ask the simulator what the plan really
costs; prints how many plans were certified, how many of those really keep to the budget, and beside it the plug-in
plan, whose price comes from the model's own belief about the users it was trained on.

Every campaign is appended to --out as a line of JSON: a run that was interrupted goes on where it stopped, and
--report prints what there is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

# One thread a worker: threads that fight for a core cost several times what they save.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

FRESH_USERS = 2_000
USERS = {"finite": 6_000, "envelopes": 24_000}
"""Logs with which a fit takes seconds and certificates are mostly given."""


def one(task: tuple[str, str, int, int, float]) -> dict[str, Any]:
    """Everything about one campaign, as plain data."""
    from trials.closed_loop import closed_loop
    from trials.coverage import coverage

    return coverage(task) if task[0] == "coverage" else closed_loop(task)


def interval(hits: int, count: int) -> str:
    """A share with its exact (Clopper-Pearson) 95 % interval."""
    if not count:
        return "none"
    lower = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, count - hits + 1))
    upper = 1.0 if hits == count else float(beta.ppf(0.975, hits + 1, count - hits))
    return f"{hits} of {count} = {hits / count:.1%} [{lower:.1%}, {upper:.1%}]"


def report_coverage(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}: one-sided 95 % bounds of cost on {FRESH_USERS:,} fresh users, {len(rows)} campaigns")
    for name in rows[0]["fresh"]:
        figures = [(row["fresh"][name], row["true_cost"]) for row in rows]
        covered = sum(figure["upper"] >= truth for figure, truth in figures)
        bias = np.mean([(figure["estimate"] - truth) / truth for figure, truth in figures])
        error = np.median([figure["error"] / truth for figure, truth in figures])
        print(f"  {name:<38} {interval(covered, len(rows))}   (bar 93 %)")
        print(f"    off by {bias:+.2%} on average; standard error {error:.1%} of the cost")
        used = [(figure, truth) for figure, truth in figures if not figure["refused"]]
        if len(used) < len(figures):
            covered = sum(figure["upper"] >= truth for figure, truth in used)
            print(f"    where overlap is not refused         {interval(covered, len(used))}")


def report_plans(title: str, rows: list[dict[str, Any]]) -> None:
    certified = [row for row in rows if row["certified"]]
    kept = sum(row["true_cost"] <= row["budget"] for row in certified)
    covered = sum(row["bound"] >= row["true_cost"] for row in rows)
    spent = [row["true_cost"] / row["budget"] for row in certified]
    excess = np.array([row["plug_in_cost"] / row["budget"] - 1 for row in rows])
    print(f"\n{title}: plans in closed loop, {len(rows)} campaigns")
    print(f"  certified                              {interval(len(certified), len(rows))}")
    print(f"  of those within the budget in truth    {interval(kept, len(certified))}   (bar 95 %)")
    print(f"  share of the budget spent, certified   {np.mean(spent) if spent else float('nan'):.1%}")
    print(f"  certificate's bound covers the truth   {interval(covered, len(rows))}")
    print(f"  plug-in plan over the budget           {interval(int((excess > 0).sum()), len(rows))}")
    print(f"    by {excess.mean():+.1%} on average, by more than 2 % in {(excess > 0.02).mean():.1%}")
    print(f"  made by                                {dict(Counter(row['method'] for row in rows))}")
    print(f"  seconds of a processor, a campaign     {np.mean([row['processor_seconds'] for row in rows]):.1f}")


def read(out: Path) -> list[dict[str, Any]]:
    """The campaigns of a file; a last line cut short by an interruption is left out."""
    if not out.exists():
        return []
    rows = []
    for line in out.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def told(row: dict[str, Any]) -> str:
    """A campaign in one line."""
    start = (
        f"{row['kind']} {row['family']} {row['seed']}, {row['processor_seconds']:.1f} s: truth {row['true_cost']:.3f}"
    )
    if row["kind"] == "coverage":
        return start + "".join(f", {name} ≤ {figure['upper']:.3f}" for name, figure in row["fresh"].items())
    status = "certified" if row["certified"] else "refused"
    figures = f"budget {row['budget']:.3f}, plug-in {row['plug_in_cost']:.3f}"
    return f"{start}, {row['method']} {status} ≤ {row['bound']:.3f}, {figures}"


def run(tasks: Iterable[tuple[str, str, int, int, float]], workers: int, out: Path) -> None:
    """Run the campaigns that are missing, and write each down as soon as it is done."""
    waiting = list(tasks)
    with multiprocessing.get_context("spawn").Pool(workers) as pool, out.open("a") as file:
        for number, row in enumerate(pool.imap_unordered(one, waiting), start=1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{number} of {len(waiting)}: {told(row)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=200, help="of each family")
    parser.add_argument("--users", type=int, help="in every log that a plan is fitted on; else what suits the family")
    parser.add_argument("--share", type=float, default=0.6, help="budget between the cheapest and the uniform policy")
    parser.add_argument("--families", nargs="+", default=["finite", "envelopes"])
    parser.add_argument("--kinds", nargs="+", default=["coverage", "plan"])
    parser.add_argument("--first", type=int, default=1_000, help="seed of the first campaign")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="default: a file that is thrown away")
    parser.add_argument("--report", action="store_true", help="print what the file holds; run nothing")
    parser.add_argument("--quick", action="store_true", help="3 campaigns of each")
    arguments = parser.parse_args()
    count = 3 if arguments.quick else arguments.campaigns
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or Path(folder) / "honesty.jsonl"
        if not arguments.report:
            done = {tuple(row[name] for name in ("kind", "family", "seed", "users", "share")) for row in read(out)}
            tasks = [
                (kind, family, arguments.first + number, size, arguments.share)
                for number in range(count)
                for family in arguments.families
                for kind, size in (("coverage", FRESH_USERS), ("plan", arguments.users or USERS[family]))
                if kind in arguments.kinds
            ]
            run([task for task in tasks if task not in done], arguments.workers, out)
        rows = read(out)
    if not rows:
        sys.exit(f"{out}: no campaigns")
    for kind, report in (("coverage", report_coverage), ("plan", report_plans)):
        chosen = [row for row in rows if row["kind"] == kind]
        families = sorted({row["family"] for row in chosen})
        for family in families:
            report(family, [row for row in chosen if row["family"] == family])
        if len(families) > 1:
            report("all", chosen)


if __name__ == "__main__":
    main()

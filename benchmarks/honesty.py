"""Can bounds and certificates be trusted? Many campaigns that nothing was tuned to, and the truth nobody was shown.

Families of campaigns, one file each under trials/families: in some the state tells all and money is tame, in others a
habit is hidden, a few users cost most of the money, costs come late, users leave, a propensity is wrong.

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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trials.tables import interval, report_coverage, report_plans, summary
from trials.task import Task

# One thread a worker: threads that fight for a core cost several times what they save.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

FRESH_USERS = 2_000
TURN = 25

__all__ = ["Task", "interval", "main", "one", "read"]


def one(task: Task) -> dict[str, Any]:
    """Everything about one campaign, as plain data."""
    from trials.closed_loop import closed_loop
    from trials.coverage import coverage

    return coverage(task) if task.kind == "coverage" else closed_loop(task)


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
    start = f"{row['kind']} {row['family']} {row['seed']}, {row['processor_seconds']:.1f} s"
    if row["kind"] == "coverage":
        names = (f", {name} ≤ {figure['upper']:.3f}" for name, figure in row["fresh"].items())
        return f"{start}: truth {row['true_cost']:.3f}" + "".join(names)
    status = "certified" if row["certified"] else f"refused ({', '.join(row['rules'])})"
    if "true_cost" not in row:
        return f"{start}: {status}"
    figures = f"truth {row['true_cost']:.3f}, budget {row['budget']:.3f}, plug-in {row['plug_in_cost']:.3f}"
    return f"{start}: {figures}, {row['method']} {status} ≤ {row['bound']:.3f}"


def run(tasks: Iterable[Task], workers: int, out: Path) -> None:
    """Run the campaigns that are missing, and write each down as soon as it is done."""
    waiting = list(tasks)
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=50) as pool, out.open("a") as file:
        for number, row in enumerate(pool.imap_unordered(one, waiting), start=1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{number} of {len(waiting)}: {told(row)}", flush=True)


def arguments_given() -> argparse.Namespace:
    from trials.families.registry import FAMILIES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=100, help="of each family")
    parser.add_argument("--users", type=int, help="in every log that a plan is fitted on; else what suits the family")
    parser.add_argument("--share", type=float, help="budget between the cheapest and the uniform policy; else as suits")
    parser.add_argument("--explore", type=float, help="share of decisions by chance; else what fit takes")
    parser.add_argument("--cross-fit", type=int, default=1, help="groups of users, each checking the others' plan")
    parser.add_argument("--fresh-checks", type=int, default=0, help="logs of other users that check every plan, too")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--kinds", nargs="+", default=["coverage", "plan"], choices=["coverage", "plan"])
    parser.add_argument("--first", type=int, default=1_000, help="seed of the first campaign")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="default: a file that is thrown away")
    parser.add_argument("--report", action="store_true", help="print what the file holds; run nothing")
    parser.add_argument("--quick", action="store_true", help="3 campaigns of each")
    return parser.parse_args()


def tasks_of(arguments: argparse.Namespace) -> Iterable[Task]:
    """What is asked for, a few of each family in turn: a run cut short has some of each, and yet programs that were
    compiled for a family are used again."""
    from trials.families.registry import FAMILIES

    numbers = range(3 if arguments.quick else arguments.campaigns)
    turns = [numbers[start : start + TURN] for start in range(0, len(numbers), TURN)]
    for name, turn in ((name, turn) for turn in turns for name in arguments.families):
        for number in turn:
            family = FAMILIES[name]
            share = family.share if arguments.share is None else arguments.share
            for kind, size in (("coverage", FRESH_USERS), ("plan", arguments.users or family.users)):
                if kind in arguments.kinds:
                    how = (arguments.explore, arguments.cross_fit, arguments.fresh_checks)
                    yield Task(kind, name, arguments.first + number, size, share, *how)


def main() -> None:
    arguments = arguments_given()
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or Path(folder) / "honesty.jsonl"
        if not arguments.report:
            done = {Task.of(row) for row in read(out)}
            run([task for task in tasks_of(arguments) if task not in done], arguments.workers, out)
        rows = read(out)
    if not rows:
        sys.exit(f"{out}: no campaigns")
    for kind, report in (("coverage", report_coverage), ("plan", report_plans)):
        chosen = [row for row in rows if row["kind"] == kind]
        for family in dict.fromkeys(row["family"] for row in chosen):
            report(family, [row for row in chosen if row["family"] == family])
    plans = [row for row in rows if row["kind"] == "plan"]
    if plans:
        print(f"\n{summary(plans)}")


if __name__ == "__main__":
    main()

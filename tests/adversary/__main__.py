"""`python -m tests.adversary --count 20000`: so many bad logs, tables of users and plans, and how they ended."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before polars is imported: small tables, many of them

import polars as pl

from redenvelope import FitSettings, Plan, fit, log_from_frame, two_step
from tests.adversary.trials import LONGEST, Good, log_trial, plan_trial, used, users_trial
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK

_KINDS = ("logs", "users", "plans")
_PLANS = {
    "planned": FitSettings(neural=QUICK),
    "learned": FitSettings(neural=QUICK, method="learned", temperature=0.05),
    "with history": FitSettings(neural=QUICK, temperature=0.0),
}


def main() -> None:
    """Run the trials; the exit code says whether all ended as they should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first, to go on where another run ended")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of single trials, to see them again")
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS)
    given = parser.parse_args()
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as scratch:
        trials = _trials(Path(scratch), given.kinds)
        # Whatever is left among temporary files is left behind by a trial.
        os.environ["TMPDIR"] = tempfile.tempdir = str(_made(Path(scratch) / "temporary"))
        numbers = given.only or range(given.first, given.first + given.count)
        failed = sum(_run(kind, trials[kind], numbers, Path(scratch)) for kind in given.kinds)
    sys.exit(bool(failed))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _trials(scratch: Path, kinds: list[str]) -> dict[str, Callable[[int, Path], str]]:
    """What a trial of each kind is, in a folder of its own."""
    if kinds == ["logs"]:
        return {"logs": log_trial}
    log = scratch / "log.parquet"
    _told(two_step().log(200, seed=5)).write_parquet(log)
    goods = [Good(folder, log) for folder in _plans(scratch, ["planned"] if kinds == ["users"] else list(_PLANS))]
    for good in goods:  # compiled here, so that no trial waits for it
        used(Plan.load(good.folder), pl.read_parquet(log), draw=True)
    first = Plan.load(goods[0].folder)
    return {
        "logs": log_trial,
        "users": lambda number, folder: users_trial(number, folder, first, goods[0].folder),
        "plans": lambda number, folder: plan_trial(number, folder, goods[number % len(goods)]),
    }


def _told(frame: pl.DataFrame) -> pl.DataFrame:
    """The campaign's table with a feature that says nothing."""
    return frame.with_columns((pl.col("user") % 7).alias("lucky"))


def _plans(scratch: Path, names: list[str]) -> list[Path]:
    """Plans of every kind that a folder can hold: a model, values without one, and what knows the past."""
    frame = two_step().log(6_000, seed=4)
    found = []
    for name in names:
        own = _told(frame).drop("state") if name == "with history" else frame
        with quick_programs():
            plan = fit(log_from_frame(own), budget=BUDGET, settings=_PLANS[name])
        found.append(plan.save(scratch / name.replace(" ", "_"), {"report.html": b"<p>a report</p>"}))
    return found


def _run(kind: str, trial: Callable[[int, Path], str], numbers: Sequence[int], scratch: Path) -> int:
    """Run trials of a kind and print how they ended; returns how many failed."""
    ended = {"used": 0, "refused": 0, "failed": 0}
    folder, longest = _made(scratch / kind), 0.0
    for done, number in enumerate(numbers, start=1):
        # What hangs where Python cannot stop it ends here, with the place.
        faulthandler.dump_traceback_later(6 * LONGEST, exit=True)
        began = time.process_time()
        try:
            ended[trial(number, folder)] += 1
            left = [*folder.iterdir(), *(scratch / "temporary").iterdir()]
            assert not left, f"left behind: {left}"
        except Exception as error:
            ended["failed"] += 1
            print(f"{kind} {number}: {type(error).__name__}: {error}", flush=True)
        longest = max(longest, time.process_time() - began)
        if done % 1_000 == 0:
            print(f"{kind}: {ended}, the longest {longest:.1f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    told = ", ".join(f"{number:,} {name}" for name, number in ended.items())
    print(f"{kind}: {len(numbers):,} mutations, {told}; the longest took {longest:.1f} s", flush=True)
    return ended["failed"]


if __name__ == "__main__":
    main()

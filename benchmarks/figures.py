"""Measure the table of the README anew: one commit, one run, every figure as its benchmark printed it.

It takes about a quarter of an hour on two cores with nothing else to do, and writes the table between two marks in
README.md. What measures time runs alone, the others two at a time. `--quick` runs small sizes in a few minutes and
prints the table instead.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARKS = "<!-- figures -->", "<!-- end of figures -->"
Told = Iterator[tuple[str, str]]
"""Rows of the table: what was measured, and the figures."""


@dataclass(frozen=True)
class Run:
    """One command, and what the table says of its output."""

    script: str
    options: str
    quick: str
    rows: Callable[[str], Told]
    timed: bool = False
    """Whether it measures time: then nothing else runs beside it."""

    def command(self, quick: bool) -> str:
        """The command as the table names it."""
        return f"benchmarks/{self.script}.py {self.quick if quick else self.options}".strip()


def every(pattern: str, output: str) -> list[tuple[str, ...]]:
    """The groups of every line that matches; an output without one is an error, not an empty cell."""
    found = [match.groups() for match in re.finditer(pattern, output, flags=re.MULTILINE)]
    if not found:
        raise SystemExit(f"no line matches {pattern!r}:\n{output}")
    return found


def quality(output: str) -> Told:
    means = every(r"^ *([\d,]+) users  (.+?)  +[\d.].*mean ([\d.]+)", output)
    for policy, what in (
        ("2 steps and values", "of the gain of the best possible plan at the same true cost, a learned plan brings"),
        ("bandit", "a bandit by the same model, which looks at one step only"),
    ):
        shares = [f"{float(mean):.0%} from {users} users" for users, name, mean in means if name == policy]
        yield what, ", ".join(shares)
    shares = [f"{float(mean):.0%} from {users} users" for users, name, mean in means if name.startswith("certified")]
    yield (
        "the same at equal budget: certified plans, exploring, with what certainty leaves unspent",
        (f"{', '.join(shares)} (mean of a tenth, a quarter and half of the logged cost)"),
    )


def honesty(output: str) -> Told:
    rows = every(
        r"^\| (\w+) \| (\d+) \| (\d+) \| (?:(\d+) = \S+ \[(\S+?), (\S+?)\])? ?\| [^|]*\| [^|]*\| ([^|]*)\|", output
    )
    for family, campaigns, certified, over, least, most, spent in rows:
        told = f"{certified} of {campaigns} campaigns certified"
        if over:
            told += f"; truly over the budget: {over} (95% interval {least} to {most}; 5% are promised); spent {spent}"
        yield f"certificates against the truth: {FAMILIES[family]}", told.rstrip()


FAMILIES = {
    "finite": "nothing is wrong with the log",
    "hidden_habit": "users form a habit that no column shows",
    "whales": "one user in a thousand carries the cost",
}


def end_to_end(output: str) -> Told:
    ((rows, users),) = every(r"^([\d,]+) rows: ([\d,]+) users", output)
    ((compiling,),) = every(r"the first time, compiling: [\d.]+ s, ([\d.]+) s of a processor", output)
    ((seconds, processor, memory),) = every(
        r"in all +([\d.]+) s +([\d.]+) s of a processor +peak so far ([\d.]+)", output
    )
    yield (
        f"`fit` on {rows} rows of 20 features ({users} users), from file to plan",
        (
            f"{float(seconds):.0f} s, {float(processor):.0f} s of processors, {float(memory):.1f} GB at most "
            f"(the first time, compiling: {float(compiling):.0f} s of processors)"
        ),
    )
    ((first,),) = every(r"^ +([\d,]+) users a second, compilation included", output)
    ((rate,),) = every(r"^ +([\d,]+) users a second in another process, with programs kept", output)
    yield (
        f"`allocate` for these {users} users, reading and writing included",
        f"{rate} users a second (the first time, compiling: {first})",
    )


def decide(output: str) -> Told:
    ((median,),), ((last,),) = every(r"median +([\d.]+) ms", output)[:1], every(r"p99 +([\d.]+) ms", output)[:1]
    ((cold,),), ((kept,),) = every(r"compiling +([\d.]+) s", output)[:1], every(r"kept +([\d.]+) s", output)[:1]
    yield (
        "one decision in a process (`Decider`): median, 99th percentile; warming up the first time, later",
        (f"{median} ms, {last} ms; {cold} s, {kept} s"),
    )


def serve(output: str) -> Told:
    ((clients, rate, _, last),) = every(r"^service +(\d\d+) +(\d+) +([\d.]+) +([\d.]+)", output)
    ((alone,),) = every(r"^service +1 +\d+ +([\d.]+)", output)
    yield (
        f"decisions over HTTP, durable in SQLite, {clients} clients on the same machine",
        (f"{int(rate):,} a second, 99th percentile {last} ms; a client alone: median {alone} ms"),
    )


def faults(output: str) -> Told:
    rows = every(r"^(sqlite|postgresql), (.+?) +([\d,]+) decisions +([\d,]+) outcomes", output)
    decisions = sum(int(count.replace(",", "")) for _, _, count, _ in rows)
    ended = every(r"^(nothing lost, nothing overspent|SOMETHING IS WRONG)$", output)[0][0]
    yield (
        "killed under load, then checked against what clients had been told",
        (f"{'; '.join(f'{database} {how}' for database, how, _, _ in rows)}: {decisions:,} decisions, **{ended}**"),
    )


def pacing(output: str) -> Told:
    ((users,),) = every(r"^([\d,]+) users, ", output)
    worlds = every(r"^(\S+(?: \S+)*?) +([\d.]+)% +[\d.]+ +[\d.]+ +([\d.]+) +([\d.]+)%", output)
    told = [f"{world}: {spent}%, {share} ({before}%)" for world, spent, share, before in worlds]
    what = f"a paced campaign of {users} users who redeem otherwise than logged: spent of the total"
    yield f"{what}, reward against the best constant price in hindsight (spent without pacing)", "; ".join(told)


RUNS = (
    Run("quality", "--sizes 20000 --seeds 1 --population 30", "--sizes 2000 --seeds 1 --population 10", quality),
    Run(
        "honesty",
        "--kinds plan --families finite hidden_habit whales --campaigns 20 --first 30000",
        "--kinds plan --families finite --campaigns 2",
        honesty,
    ),
    Run("end_to_end", "", "--quick", end_to_end, timed=True),
    Run("decide", "--quick", "--quick", decide, timed=True),
    Run("serve", "--connections 16 --seconds 8", "--connections 16 --seconds 3", serve, timed=True),
    Run("faults", "--kills 50 --restarts 5 --races 2 --seeds 5", "--kills 3 --restarts 1 --races 1 --seeds 2", faults),
    Run("pacing", "--users 20000", "--users 500", pacing),
)


def measured(run: Run, quick: bool) -> list[str]:
    """The lines of the table that come from one command."""
    command, start = run.command(quick), time.perf_counter()
    done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{time.perf_counter() - start:6.0f} s  {command}", file=sys.stderr, flush=True)
    if done.returncode > 1 or "Traceback" in done.stderr:  # 1 without one is a bar that was missed
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [f"| {what} | {figures} | `{command}` |" for what, figures in run.rows(done.stdout)]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes; the table is printed, README.md stays")
    parser.add_argument("--only", nargs="+", choices=[run.script for run in RUNS], help="with --quick: only these")
    options = parser.parse_args()
    if options.only and not options.quick:
        parser.error("the table of the README is from one run of everything; --only needs --quick")
    if not options.quick and git("status", "--porcelain", "--untracked-files=no"):
        parser.error("there are changes that are not committed; the figures are those of a commit")
    start = time.perf_counter()
    chosen = [run for run in RUNS if not options.only or run.script in options.only]
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(2) as both:
        together = [run for run in chosen if not run.timed]
        found |= zip(
            (run.script for run in together), both.map(lambda run: measured(run, options.quick), together), strict=True
        )
    found |= {run.script: measured(run, options.quick) for run in chosen if run.timed}
    lines = [line for run in chosen for line in found[run.script]]
    minutes = (time.perf_counter() - start) / 60
    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    said = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} at commit `{commit}`, in one `make figures` of {minutes:.0f} minutes"
        f" on {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}. Times depend on the "
        "machine; [benchmarks](benchmarks/README.md) says what each command does."
    )
    table = "\n".join(["", said, "", "| what | figure | command |", "|---|---|---|", *lines, ""])
    if options.quick:
        print(table)
        return
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    readme.write_text(f"{before}{MARKS[0]}{table}{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

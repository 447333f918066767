"""The product on public logs: audit, fit and report of every log in a folder, and one table of what came of it.

    make public-data DATA=folder            # or: python -m experiments.public_data folder [NAME …] [--out results]

The folder holds the logs as Parquet files named as in `LOGS`, in the project's own columns. They are not part of the
project: docs/reproduce.md says where each comes from.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PublicLog:
    """How a log is read, and how much may be spent."""

    name: str
    options: tuple[str, ...] = ()
    """Of audit and fit alike."""
    share: float = 0.8
    """The budget, as a share of the logged cost per user."""
    budget: float | None = None
    """The budget itself, where one was published."""


_OFFERS = ("--columns", "user=customer,step=wave,action=offer,reward=completed,cost=payout")
LOGS = (
    PublicLog("hillstrom", ("--ignore", "visit,conversion")),
    PublicLog("thornton_hiv", ("--cluster", "villnum")),
    PublicLog("heartsteps", ("--episode", "episode")),
    PublicLog("starbucks_tiers", _OFFERS),
    PublicLog("starbucks_offers", _OFFERS),
    # "5+" and "3+" stand among numbers there: neither numbers nor categories.
    PublicLog("complete_journey", ("--estimate-propensity", "--ignore", "household_size,kids_count")),
    PublicLog("gotv", ("--cluster", "household"), budget=5.0),
)
HEADS = ("log", "audit", "certificate", "cost / budget", "plan − untargeted (95 %)", "seconds")


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    content: dict[str, Any]
    """Empty where it refused."""
    error: str


def run(*arguments: str) -> Answer:
    """One command of the product."""
    program = [sys.executable, "-c", "from redenvelope.cli import main; main()", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    content = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return Answer(done.returncode, content, lines[0] if lines else "")


def row(log: PublicLog, folder: Path, out: Path) -> tuple[str, ...]:
    """A line of the table."""
    begin, path = time.perf_counter(), str(folder / f"{log.name}.parquet")
    audit = run("audit", path, *log.options, "--json")
    errors = [found["rule"] for found in audit.content.get("findings", ()) if found["severity"] == "error"]
    warnings = {found["rule"] for found in audit.content.get("findings", ()) if found["severity"] == "warning"}
    verdict = f"refused: {', '.join(errors)}" if audit.code else f"fit for use; {', '.join(sorted(warnings)) or '–'}"
    if audit.code:
        return log.name, verdict, "–", "–", "–", f"{time.perf_counter() - begin:.0f}"
    budget = log.budget or log.share * float(audit.content["logged_cost"]["estimate"])
    plan = out / log.name
    fitted = run("fit", path, *log.options, "--budget", f"{budget:.6g}", "--out", str(plan), "--no-cache", "--json")
    if not fitted.content:
        return log.name, verdict, f"no plan: {fitted.error}", "–", "–", f"{time.perf_counter() - begin:.0f}"
    report = run("report", str(plan), "--out", str(out / f"{log.name}.html"))
    certificate, beside = fitted.content["certificate"], fitted.content["untargeted"]
    refusals = [each["rule"] for each in certificate["rules"] if each["weight"] == "refusal"]
    status = f"refused: {', '.join(refusals)}" if refusals else "certified"
    status += "" if report.code == 0 else f"; no report: {report.error}"
    cost = certificate["cost"]
    spent = f"{cost['estimate']:.4g} ≤ {cost['upper']:.4g} / {certificate['budget']:.4g}"
    adds = f"{beside['adds']:+.3g} ({beside['lower']:+.3g} to {beside['upper']:+.3g})"
    return log.name, verdict, status, spent, adds, f"{time.perf_counter() - begin:.0f}"


def main() -> None:
    """Print the table, a line at a time."""
    parser = argparse.ArgumentParser(description="Audit, fit and report of public logs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="logs to run; by default all that the folder holds")
    parser.add_argument("--out", type=Path, default=Path("results/public-data"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for log in LOGS:
        if log.name in given.names or (not given.names and (given.folder / f"{log.name}.parquet").exists()):
            print(f"| {' | '.join(row(log, given.folder, given.out))} |", flush=True)


if __name__ == "__main__":
    main()

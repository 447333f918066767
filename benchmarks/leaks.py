"""Columns that were known too late, and columns that only tell much: which of them does the audit ask about?

Logs of all families (`trials/families`) get a column that no decision could have known (`trials/leak_columns.py`), one
kind at a time: how often is it named? The same logs without it, with the true chances of every user, and with what came
of earlier steps: how often is anything named? Nothing may be; where a column tells most of an outcome and the action
does too little to it to show where the column comes from, it is asked about all the same, and the last table says how
often.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator

import polars as pl

from redenvelope.audit.leakage import Leak, suspected_leaks
from redenvelope.errors import LogError
from redenvelope.log.read import log_from_frame
from trials.families.campaign import SimulatedCampaign
from trials.families.registry import FAMILIES
from trials.leak_columns import Telling, honest_columns, leaked_columns, spenders

FIRST = 4_000  # seeds that thresholds were not chosen on


def named(frame: pl.DataFrame) -> dict[str, Leak]:
    """What the audit asks about, by column."""
    return {leak.column: leak for leak in suspected_leaks([log_from_frame(frame)])}


def found(frame: pl.DataFrame, column: pl.Series) -> bool | None:
    """Whether the column is named, or refused as a copy; None where it is no feature of this log."""
    try:
        log = log_from_frame(frame.with_columns(column))
    except LogError as error:
        return any(finding.rule == "feature_leak" for finding in error.findings)
    if column.name not in log.features.names:
        return None
    return any(leak.column == column.name for leak in suspected_leaks([log]))


def power(users: int, seeds: int, one_step: bool) -> None:
    """Print how often each kind of leak is found, over all families."""
    hits: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for name, family in FAMILIES.items():
        for seed in range(FIRST, FIRST + seeds):
            frame = family.campaign(seed).log(users, seed)
            if one_step:
                frame = frame.filter(pl.col("step") == frame["step"].max())
                if frame["cost"].n_unique() < 2:
                    continue
            for kind, column in leaked_columns(frame, seed).items():
                answer = found(frame, column)
                if answer is not None:
                    hits[kind][name].append(answer)
    print(f"\nfound with {users:,} users, {'the last step alone' if one_step else 'all steps'}")
    for kind, by_family in hits.items():
        answers = [answer for family in by_family.values() for answer in family]
        missed = {name: f"{sum(family)} of {len(family)}" for name, family in by_family.items() if not all(family)}
        share = sum(answers) / len(answers)
        print(f"  {kind:<56}{sum(answers):>4} of {len(answers):<4} {share:>5.0%}  {missed or ''}", flush=True)


def innocent(users: int, seeds: int) -> None:
    """Print how often anything is named in logs without leaks."""
    asked: dict[str, list[str]] = {}
    logs = 0
    start = time.perf_counter()
    for name, seed, frame in _innocent_logs(users, seeds):
        logs += 1
        for leak in named(frame).values():
            asked.setdefault(f"{name} {seed}", []).append(f"{leak.column}: {leak.evidence}")
    seconds = time.perf_counter() - start
    print(
        f"{users:>8,} users: {len(asked)} of {logs} logs have a column named {asked or ''} ({seconds:.0f} s)",
        flush=True,
    )


def _innocent_logs(users: int, seeds: int) -> Iterator[tuple[str, int, pl.DataFrame]]:
    for name, family in FAMILIES.items():
        for seed in range(FIRST, FIRST + seeds):
            telling = SimulatedCampaign(Telling(family.laws(seed)))
            yield name, seed, honest_columns(telling.log(users, seed))


def strong(users: int, seeds: int) -> None:
    """Print how often a column is named that tells 80 % of the reward and was known before, by what actions do."""
    for steps in (1, 4):
        for lift in (0.05, 0.1, 0.2, 0.4):
            asked = sum(bool(named(spenders(users, steps, seed, lift))) for seed in range(FIRST, FIRST + seeds))
            effect = lift * (2 / 3) ** 0.5 / 5**0.5
            print(
                f"{users:>8,} users, {steps} step(s), actions move the reward by {effect:.1%} of its spread: "
                f"asked {asked} of {seeds}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[3_000])
    parser.add_argument("--innocent-users", type=int, nargs="+", default=[1_000, 3_000, 10_000, 50_000])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="two seeds, up to 3,000 users")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.innocent_users = 2, [1_000, 3_000]
    print("logs without leaks")
    for users in options.innocent_users:
        innocent(users, options.seeds if users < 50_000 else max(options.seeds // 5, 1))
    for users in options.users:
        power(users, options.seeds, one_step=False)
        power(users, options.seeds, one_step=True)
    print("\na column that was known before and tells 80 % of what the action leaves of the reward")
    for users in options.innocent_users[:2]:
        strong(users, 2 * options.seeds)


if __name__ == "__main__":
    main()

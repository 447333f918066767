"""Whether expected costs are right: beside the outcomes of held-out users, by action and step.

A model is learned as `fit` does, from the train and tune users of a log. It says what the decisions of the check users
were expected to cost. In a cell of an action and a step, what they cost less what was expected is zero on average if
the model is right: within two standard errors in 95 % of the cells. A model's own means have errors, too; counting
those of means over the users it learned from, the second share is the one that should be 95 %.

    benchmarks/expected.py                                       simulated campaigns
    benchmarks/expected.py --log MY.parquet --rename wave=step   a log of your own, its columns renamed to the contract
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.fitting.learn import learn_model
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.log import Log, split
from redenvelope.log.read import log_from_frame
from redenvelope.progress import Stages
from trials.families.registry import FAMILIES

CAMPAIGNS = ("envelopes", "groups")
LEAST_USERS = 200
MOST_ERRORS = 2.0


def errors_of(log: Log, seed: int) -> NDArray[np.float64]:
    """By how many standard errors costs exceed what was expected in each cell with enough check users: those of the
    cell's mean, and those that also count a mean over the users the model learned from, [2, cells]."""
    train, tune, check = split(log, seed=seed)
    learned = learn_model(train, tune, FitSettings(seed=seed), Stages(None))
    expected = learned.neural.model.predict(learned.encoder.encode(check))[1]
    left = check.cost - expected[np.arange(len(check)), check.action]
    found = []
    for step in np.unique(check.step):
        for action in range(len(check.catalogue)):
            cells = [(fold.step == step) & (fold.action == action) for fold in (check, train, tune)]
            users, *taught = (int(cell.sum()) for cell in cells)
            spread = left[cells[0]].std() if users >= LEAST_USERS else 0.0
            if spread > 0:  # what always costs the same is known
                shares = np.array([1 / users, 1 / users + 1 / max(sum(taught), 1)])
                found.append(left[cells[0]].mean() / (spread * np.sqrt(shares)))
    return np.array(found).T


def logs(options: argparse.Namespace) -> Iterator[tuple[str, int, Log]]:
    """Name, seed and log of everything that was asked for."""
    renamed = dict(pair.split("=") for pair in options.rename)
    for path in options.log:
        log = log_from_frame(pl.read_parquet(path).rename(renamed))
        yield from ((path.stem, seed, log) for seed in range(options.seeds))
    for name in () if options.log else CAMPAIGNS:
        users = FAMILIES[name].users // (3 if options.quick else 1)
        for seed in range(options.seeds):
            yield name, seed, log_from_frame(FAMILIES[name].campaign(seed).log(users, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, nargs="*", default=[], help="logs of your own (parquet)")
    parser.add_argument("--rename", nargs="*", default=[], metavar="OLD=NEW", help="columns of these logs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a third of the users, one seed")
    options = parser.parse_args()
    options.seeds = 1 if options.quick else options.seeds
    found: dict[str, list[NDArray[np.float64]]] = {}
    for name, seed, log in logs(options):
        errors = errors_of(log, seed)
        found.setdefault(name, []).append(errors)
        print(f"{name:<18} seed {seed}  errors of cells: {np.round(errors[0], 1).tolist()}", flush=True)
    for name, parts in found.items():
        errors = np.concatenate(parts, axis=1)
        own, both = (np.abs(errors) <= MOST_ERRORS).mean(axis=1)
        print(f"{name:<18} {errors.shape[1]} cells: {own:.0%} within two standard errors", end="")
        print(f", {both:.0%} counting those of the model; mean {errors[0].mean():+.2f}")


if __name__ == "__main__":
    main()

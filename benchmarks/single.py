"""One user at a time: the time of a decision in plain arrays, planned or by learned values.

The log is noise of the size that the bars are set for: 20 features (10 static numbers, 2 static categories, 6 dynamic
numbers, 2 binaries), 6 actions, hidden layers of 64 and 64 for outcomes and 64 for what follows, 3 steps ahead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from learning import start_again_on_one_core
from redenvelope.learning.settings import LearningSettings
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.examples import Examples
from redenvelope.models.fit import NeuralSettings, fit_neural
from redenvelope.models.training import TrainingSettings
from redenvelope.planning.single import SinglePlanner
from redenvelope.planning.single_learned import SingleLearned
from redenvelope.planning.tree import TreePlanner

USERS, STEPS, ACTIONS, HORIZON, PRICE = 400, 10, 6, 3, 0.3
MOST_MILLISECONDS = {1: 0.6, 4: 0.8}
"""Median of a decision, by members of the ensemble."""
QUICK = TrainingSettings(steps=1, epochs_least=1, epochs_most=1)

Decide = Callable[[NDArray[np.float32]], object]


def noise() -> Examples:
    """A log of noise."""
    generator, rows = np.random.default_rng(0), USERS * STEPS
    user = np.repeat(np.arange(USERS), STEPS)
    action = generator.integers(0, ACTIONS, rows)
    reward = generator.random(rows) < 0.2 + 0.1 * action
    columns: dict[str, NDArray[np.generic]] = {
        "user": user,
        "step": np.tile(np.arange(STEPS), USERS),
        "action": action,
        "propensity": np.full(rows, 1 / ACTIONS),
        "reward": reward.astype(np.float64),
        "cost": reward * (generator.random(rows) < 0.6) * action.astype(np.float64),
    }
    columns |= {f"fixed {number}": generator.normal(size=USERS)[user] for number in range(10)}
    columns |= {f"kind {number}": generator.integers(0, 6, USERS).astype("U1")[user] for number in range(2)}
    columns |= {f"moving {number}": generator.normal(size=rows) for number in range(6)}
    columns |= {f"on {number}": generator.random(rows) < 0.5 for number in range(2)}
    log = log_from_frame(pl.DataFrame(columns))
    return Examples.from_log(log, Encoder.fit(log))


def median(decide: Decide, states: NDArray[np.float32], rounds: int) -> float:
    """Median milliseconds of a decision, in the quietest of some rounds: machines are shared."""
    medians = []
    for _ in range(rounds):
        taken = []
        for state in states:
            start = time.perf_counter()
            decide(state)
            taken.append(time.perf_counter() - start)
        medians.append(1e3 * float(np.median(taken)))
    return min(medians)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer decisions")
    options = parser.parse_args()
    start_again_on_one_core()
    rounds = 2 if options.quick else 20
    examples = noise()
    states = np.ascontiguousarray(examples.states[examples.starts[:-1]])
    missed = []
    for members, bar in MOST_MILLISECONDS.items():
        model = fit_neural(examples, NeuralSettings(members=members, training=QUICK)).model
        for temperature in (0.0, 0.1):
            planner = TreePlanner(model, HORIZON, temperature, STEPS)
            single = SinglePlanner.of(planner, model, [PRICE])
            alone = median(lambda state, single=single: single.decide(state, STEPS), states, rounds)
            if alone > bar:
                missed.append(f"{members} member(s)")
            print(f"{members} member(s), temperature {temperature}: {alone:.3f} ms (bar: {bar})", flush=True)
    settings = LearningSettings(immediate=QUICK, future=replace(QUICK, steps=1))
    learned = SingleLearned.of(SoftQ.prepare(examples, settings).learn_all(0.1), [PRICE])
    print(f"learned values: {median(lambda state: learned.decide(state, STEPS), states, rounds):.3f} ms")
    if missed and not options.quick:
        sys.exit(f"above the bar: {', '.join(missed)}")


if __name__ == "__main__":
    main()

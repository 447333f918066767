"""Speed of training: the neural model against the bare matrix multiplications that its training consists of.

Both sides take turns in one run on one core, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.networks import WideDeep, event_count, tail_scale
from redenvelope.models.neural_model import Architecture
from redenvelope.models.targets import outcome_targets, starting_scores
from redenvelope.models.training import NeuralSettings, outcome_loss, train, transition_loss
from redenvelope.simulate.envelopes import EnvelopeCampaign

MOST_RATIO = 2.0
EPOCHS = 3


def start_again_on_one_core() -> None:
    """Both sides must have one thread, and libraries ask how many they may have when they are loaded."""
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    os.execv(sys.executable, [sys.executable, *sys.argv])


def matrices(network: WideDeep) -> list[tuple[int, int, bool]]:
    """(inputs, outputs, whether its inputs need a gradient) of every matrix of one member."""
    found = [(array.shape[1], array.shape[2], False) for array in (*network.wide_tables, network.wide_weights)]
    found += [(table.shape[1], table.shape[2], False) for table in network.embedding_tables]
    embedded = bool(network.embedding_tables)
    for place, array in enumerate((*network.trunk_weights, network.deep_weights)):
        found.append((array.shape[1], array.shape[2], embedded or place > 0))
    return found


def products(networks: dict[str, object], members: int, batch_rows: int) -> Callable[[], None]:
    """One step's multiplications, as numpy does them: forward, and back to the weights and the inputs."""
    generator = np.random.default_rng(0)
    jobs = []
    for part in networks.values():
        for inputs, outputs, needs_gradient in matrices(part.network):  # type: ignore[attr-defined]
            rows, weights, errors = (
                generator.normal(size=shape).astype(np.float32)
                for shape in ((batch_rows, inputs), (inputs, outputs), (batch_rows, outputs))
            )
            jobs += [(rows, weights), (rows.T, errors)]
            if needs_gradient:
                jobs.append((errors, weights.T))
    results = [np.empty((left.shape[0], right.shape[1]), np.float32) for left, right in jobs]

    def run() -> None:
        for _ in range(members):
            for (left, right), result in zip(jobs, results, strict=True):
                np.matmul(left, right, out=result)

    run.operations = members * sum(2.0 * left.size * right.shape[1] for left, right in jobs)  # type: ignore[attr-defined]
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, nargs="*", help="units of the outcome network's hidden layers")
    options = parser.parse_args()
    start_again_on_one_core()
    log = log_from_frame(EnvelopeCampaign().log(options.users, seed=0))
    encoder = Encoder.fit(log)
    examples = Examples.from_log(log, encoder)
    settings, members = NeuralSettings(reward_structure="cumulative", cost_structure="dose"), 4
    if options.hidden:
        settings = replace(settings, outcome_hidden=tuple(options.hidden), transition_hidden=tuple(options.hidden))
    targets = outcome_targets(examples.outcomes, examples.action, examples.actions)
    architecture = Architecture(
        layout=encoder.layout,
        actions=examples.actions,
        events=event_count(targets),
        members=members,
        outcome_hidden=settings.outcome_hidden,
        transition_hidden=settings.transition_hidden,
        reward_structure="cumulative",
        cost_structures=("dose",),
    )
    starts = [
        starting_scores(target, value, examples.reward, examples.action, examples.actions)
        for target, value in zip(targets.all, examples.outcomes, strict=True)
    ]
    networks = architecture.networks(0, np.stack(starts))
    rows = np.arange(len(examples))
    chunk = jax.device_put(examples.gather(rows))
    schedule = replace(settings.training, epochs_least=EPOCHS, epochs_most=EPOCHS)
    constants = (targets, tail_scale(examples, rows))
    held_out = examples.gather(rows[:1_024])

    def train_once() -> None:
        seeds = [(0, member) for member in range(members)]
        for part, loss in (("outcome", outcome_loss), ("transition", transition_loss)):
            own = {part: networks[part]}
            train(own, constants, loss, lambda epoch: [chunk], len(rows), held_out, schedule, seeds)

    steps = EPOCHS * (len(rows) // schedule.batch_rows)
    one_step = products(networks, members, schedule.batch_rows)
    best = {"training": np.inf, "products": np.inf}
    train_once()  # compiles
    for _ in range(options.rounds):
        for name, job in (("training", train_once), ("products", lambda: [one_step() for _ in range(steps)])):
            # On one core, processor time is wall time without what other processes took of it.
            start = time.process_time()
            job()
            best[name] = min(best[name], time.process_time() - start)
    work = one_step.operations * steps / 1e9  # type: ignore[attr-defined]
    print(f"{steps} steps of {schedule.batch_rows} rows, {members} members, {work:.1f} GFLOP in products")
    for name, seconds in best.items():
        print(f"  {name:<10}{seconds:8.3f} s {work / seconds:8.1f} GFLOP/s")
    print(f"training against its bare products: {best['training'] / best['products']:.2f} (bar: at most {MOST_RATIO})")


if __name__ == "__main__":
    main()

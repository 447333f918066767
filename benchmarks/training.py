"""Speed of training: the neural model against the bare matrix multiplications that its training consists of.

Both sides take turns in one run on one core, so that a busy machine slows both.

`--curve` prints instead what more training buys: for every size of log and every setting (rows of a batch, steps,
members, width) the processor seconds of training without compilation, the held-out losses, and the share of the true
optimum's gain that a plan with this model earns (as in `quality.py`; means over seeds).
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
from redenvelope.models.fit import fit_neural
from redenvelope.models.networks import WideDeep, event_count, tail_scale
from redenvelope.models.neural_model import Architecture
from redenvelope.models.targets import outcome_targets, starting_scores
from redenvelope.models.training import NeuralSettings, outcome_loss, train, transition_loss
from redenvelope.simulate.envelopes import EnvelopeCampaign

MOST_RATIO = 2.0
EPOCHS = 3
CURVE_HORIZON = 3


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


def settings_on_the_curve(rows: int) -> dict[str, NeuralSettings]:
    """The default with four members, and settings that differ from it, for a log of so many rows."""
    # Structures are given: trials would only blur the comparison.
    plain = NeuralSettings(members=4, reward_structure="dose", cost_structure="dose")

    def trained(batch_rows: int, share: float) -> NeuralSettings:
        """Batches of this size, in a share of 2,500 steps of 1,024 rows, but at most of 30 epochs."""
        epochs = max(1, round(share * min(2_500 * 1_024 / rows, 30)))
        steps = epochs * rows // batch_rows
        schedule = replace(plain.training, batch_rows=batch_rows, steps=steps, epochs_least=epochs, epochs_most=epochs)
        return replace(plain, training=schedule)

    def wide(units: int) -> NeuralSettings:
        return replace(plain, outcome_hidden=(units, units), transition_hidden=(units,))

    return {
        "default": plain,
        "1,024 rows": trained(1_024, 1.0),
        "1,024 rows, half the epochs": trained(1_024, 0.5),
        "1,024 rows, twice the epochs": trained(1_024, 2.0),
        "512 rows": trained(512, 1.0),
        "512 rows, half the epochs": trained(512, 0.5),
        "256 rows, a quarter": trained(256, 0.25),
        "2 members": replace(plain, members=2),
        "1 member": replace(plain, members=1),
        "32 units": wide(32),
        "128 units": wide(128),
    }


def print_curve(sizes: list[int], seeds: int, names: list[str]) -> None:
    """One line per size and setting."""
    from quality import Stage, answers, learn  # they need a planner, which the rest does not
    from redenvelope.planning.planner import TreePlanner

    stage = Stage(EnvelopeCampaign(population=150))
    print(
        "  users  setting                       processor s  outcome loss  transition loss  share of the optimum's gain"
    )
    for users in sizes:
        logs = [learn(stage.campaign, users, seed) for seed in range(seeds)]
        for name, settings in settings_on_the_curve(9 * len(logs[0][1]) // 10).items():
            if names and name not in names:
                continue
            found = []
            for seed, (encoder, examples) in enumerate(logs):
                once = replace(settings.training, epochs_least=1, epochs_most=1)
                fit_neural(examples, replace(settings, training=once), seed=seed)  # compiles
                start = time.process_time()
                fit = fit_neural(examples, settings, seed=seed)
                seconds = time.process_time() - start
                planner = TreePlanner(fit.model, CURVE_HORIZON, 0.0, stage.campaign.steps)
                shares = stage.share(stage.earn(answers(stage, encoder, planner)))
                found.append((seconds, *fit.held_out_loss.values(), shares.mean()))
            seconds, outcome, transition, share = np.mean(found, axis=0)
            apart = np.ptp([figures[-1] for figures in found])
            print(
                f"{users:>7,}  {name:<30}{seconds:>11.1f}{outcome:>14.4f}{transition:>17.4f}"
                f"{share:>13.3f} (range over seeds {apart:.3f})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, nargs="*", help="units of the outcome network's hidden layers")
    parser.add_argument("--curve", action="store_true", help="what more training buys, instead")
    parser.add_argument("--sizes", type=int, nargs="*", default=[5_000, 20_000, 80_000], help="users of its logs")
    parser.add_argument("--seeds", type=int, default=2, help="logs drawn for each size")
    parser.add_argument("--settings", nargs="*", default=[], help="only these, by their names in the table")
    options = parser.parse_args()
    start_again_on_one_core()
    if options.curve:
        print_curve(options.sizes, options.seeds, options.settings)
        return
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
    constants = (targets, tail_scale(examples, rows), np.ones(examples.layout.width, np.float32))
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

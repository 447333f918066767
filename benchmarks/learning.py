"""Learning without a model: speed against d3rlpy, all prices against one at a time, and what it earns.

speed     updates of a network a second at batch 256, two hidden layers of 256, 20 features, 10 actions
prices    time of a whole dual search by bisection: one training for all prices, or one for each price
two-step  true reward against planning in a counted model, at equal true cost; whether cost falls with the dual
envelopes share of the optimum's gain at equal true cost, beside planning and the bandit
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.retrained import RetrainedPrice

from peers.environment import peer_python
from quality import Stage, interval
from quality import answers as planned_answers
from quality import learn as read_campaign
from redenvelope.learning.backward import LearningSettings
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import fit_neural
from redenvelope.planning.planner import TreePlanner
from redenvelope.simulate.envelopes import EnvelopeCampaign
from sections.prices import run_prices
from sections.two_step import run_two_step

BATCH, UNITS, FEATURES, ACTIONS, STEPS = 256, 256, 20, 10, 2
LEAST_SPEED, LEAST_SHARE = 3.0, 0.80
FOLDER = Path(__file__).parent


def start_again_on_one_core() -> None:
    """All sides must have one thread, and libraries ask how many they may have when they are loaded."""
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    os.execv(sys.executable, [sys.executable, *sys.argv])


def random_examples(users: int) -> Examples:
    """A log of noise, as wide as the peer's: the step's column is one of the features."""
    generator, rows = np.random.default_rng(0), users * STEPS
    states = generator.normal(size=(rows, FEATURES)).astype(np.float32)
    states[:, 0] = np.tile(np.arange(STEPS), users)
    continues = np.ones(rows, dtype=bool)
    continues[STEPS - 1 :: STEPS] = False
    return Examples(
        states=states,
        action=generator.integers(0, ACTIONS, rows).astype(np.int32),
        outcomes=np.stack([generator.normal(size=rows), generator.random(rows)]),
        propensity=np.full(rows, 1 / ACTIONS),
        continues=continues,
        starts=np.arange(users + 1) * STEPS,
        keys=np.arange(users, dtype=np.uint64),
        layout=StateLayout((), 0, FEATURES - 1, 0, (), step_change=1.0),
        actions=ACTIONS,
        campaign_steps=STEPS,
    )


def run_speed(options: argparse.Namespace) -> bool:
    """Ours and the peer's, in turns; processor time, which on one core is wall time without the others'."""
    plain = LearningSettings()
    settings = replace(
        plain,
        hidden=(UNITS, UNITS),
        advantage_rank=None,
        structure="independent",
        future=replace(plain.future, batch_rows=BATCH, patience=99),
        immediate=replace(plain.immediate, batch_rows=BATCH, epochs_least=1, epochs_most=1),
    )
    learner = SoftQ.prepare(random_examples(20_000), settings)
    training, _ = learner.folds.split(np.arange(0, 20_000 * STEPS, STEPS), "the first step")
    epochs = learner.learn([0.5]).report.epochs[0]  # compiles as well
    updates = settings.folds * epochs * (len(training) // BATCH)
    ours, theirs = [], []
    arguments = [str(number) for number in (options.peer_steps, BATCH, UNITS, FEATURES, ACTIONS, 20_000, STEPS)]
    command = [options.peer or str(peer_python()), str(FOLDER / "peers" / "d3rlpy_steps.py"), *arguments]
    for _ in range(options.rounds):
        start = time.process_time()
        learner.learn([0.5])
        ours.append(updates / (time.process_time() - start))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        theirs.append(json.loads(done.stdout.splitlines()[-1])["steps_a_second"])
    ratio = max(ours) / max(theirs)
    print(
        f"speed: {max(ours):.0f} updates a second (targets, sampling and held-out checks included) against "
        f"{max(theirs):.0f} of d3rlpy's DoubleDQN: {ratio:.1f} times (bar: {LEAST_SPEED})",
        flush=True,
    )
    return ratio >= LEAST_SPEED


def run_envelopes(options: argparse.Namespace) -> bool:
    stage = Stage(EnvelopeCampaign(population=options.population))
    steps = stage.campaign.steps
    steps_left = steps - stage.questions["step"].to_numpy()
    shares: dict[str, list[NDArray[np.float64]]] = {}
    for seed in range(options.envelope_seeds):
        encoder, examples = read_campaign(stage.campaign, options.users, seed)
        states, _ = encoder.encode_frame(stage.questions)
        learner = SoftQ.prepare(examples, seed=seed)
        values = {"learned, all prices": learner.learn_all()}
        values["learned, 24 prices together"] = learner.learn(stage.duals)
        found = {name: known.values(states, steps_left, stage.duals).probabilities for name, known in values.items()}
        if options.each:
            each = RetrainedPrice(learner, states[:1])
            rungs = [each.policy(float(dual)).probabilities(states, steps_left) for dual in stage.duals]
            found["learned, each price"] = np.stack(rungs, axis=1)
        if options.planned:
            fit = fit_neural(examples, seed=seed)
            found["planned"] = planned_answers(stage, encoder, TreePlanner(fit.model, steps, 0.0, steps))
            found["bandit"] = planned_answers(stage, encoder, TreePlanner(fit.model, 1, 0.0, steps))
        for name, answers in found.items():
            share = stage.share(stage.earn(answers))
            shares.setdefault(name, []).append(share)
            print(f"envelopes: {options.users:,} users, seed {seed}, {name:<28}{np.round(share, 3)}", flush=True)
    for name, rows in shares.items():
        columns = "  ".join(interval([float(row[place]) for row in rows]) for place in range(3))
        print(f"envelopes: {name:<28}{columns}")
    return bool(np.mean(shares["learned, all prices"], axis=0).min() >= LEAST_SHARE)


SECTIONS = {"speed": run_speed, "prices": run_prices, "two-step": run_two_step, "envelopes": run_envelopes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=f"among {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, one seed")
    parser.add_argument("--users", type=int, default=80_000, help="logged users of the envelopes campaign")
    parser.add_argument("--population", type=int, default=300, help="users on whom the truth is taken")
    parser.add_argument("--seeds", type=int, default=10, help="logs of the two-step problem")
    parser.add_argument("--envelope-seeds", type=int, default=3)
    parser.add_argument("--each", action="store_true", help="envelopes: also learn each price on its own")
    parser.add_argument("--no-planned", dest="planned", action="store_false", help="envelopes: leave planning out")
    parser.add_argument("--rounds", type=int, default=3, help="turns of the race")
    parser.add_argument("--peer-steps", type=int, default=500)
    parser.add_argument(
        "--peer", help="Python of an environment that has d3rlpy; made as peers/environment.py does if not given"
    )
    options = parser.parse_args()
    if options.quick:
        options.users, options.seeds, options.envelope_seeds, options.rounds = 5_000, 1, 1, 1
        options.sections = [name for name in options.sections if name != "speed" or options.peer]
    start_again_on_one_core()
    missed = [name for name in options.sections if not SECTIONS[name](options)]
    if missed and not options.quick:
        sys.exit(f"below the bar: {', '.join(missed)}")


if __name__ == "__main__":
    main()

"""Off-policy estimates against obp and SCOPE-RL, on the same arrays, each side in a process of its own.

One step: obp's joint call of IPW, SNIPW, DM and DR. Sequences: each of SCOPE-RL's estimators; an estimate with an
interval, theirs by the bootstrap with as many replicates as is the default of the call (both peers have two: one of
their joint call, one of an estimator's own), which is read from their signatures and shown, ours in closed form. Sides
alternate, each with one thread, and the least processor time of `--repeats` counts, because
other work on the machine can only add to it. Memory is what a side's peak grows by after the arrays are loaded.

At the end 64 duals against one: decisions given, and with planning included (a tree planner on a neural model,
off-policy data, and an estimate with its interval), in turns, as processor time too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from peers.environment import peer_python
from peers.run import NAMES, peak_bytes, timed

ACTIONS, STEPS = 10, 5
ONE_STEP = {"ipw": "per_decision", "snipw": "self_normalised_per_decision", "dm": "direct", "dr": "doubly_robust"}
SEQUENTIAL = {
    "dm": "direct",
    "tis": "trajectory",
    "pdis": "per_decision",
    "dr": "doubly_robust",
    "sntis": "self_normalised_trajectory",
    "snpdis": "self_normalised_per_decision",
    "sndr": "weighted_doubly_robust",
}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def write_arrays(folder: Path, rows: int, steps: int) -> None:
    generator = np.random.default_rng(rows)
    probabilities = generator.random((rows, ACTIONS))
    arrays = {
        "action": generator.integers(ACTIONS, size=rows),
        "reward": generator.random(rows),
        "propensity": np.full(rows, 1 / ACTIONS),
        "probabilities": probabilities / probabilities.sum(axis=1, keepdims=True),
        "action_values": generator.random((rows, ACTIONS)),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "steps.txt").write_text(str(steps))


def our_side(kind: str, folder: Path, repeats: int) -> dict[str, Any]:
    from redenvelope.evaluation.data import OffPolicyData, gather
    from redenvelope.evaluation.evaluate import Evaluation, evaluate

    arrays = {name: np.load(folder / f"{name}.npy") for name in NAMES}
    steps = int((folder / "steps.txt").read_text())
    rows = len(arrays["action"])
    starts = {1: np.arange(0, rows + 1, steps), steps: np.arange(0, rows + 1, steps) // steps}
    keys = np.arange(rows, dtype=np.uint64)

    def data(with_baseline: bool, every: int = 1) -> OffPolicyData:
        part = slice(None, None, every)
        return gather(
            starts=starts[every],
            keys=keys[: len(starts[every]) - 1],
            action=arrays["action"][part],
            propensity=arrays["propensity"][part],
            outcomes=arrays["reward"][None, part],
            outcome_names=["reward"],
            probabilities=arrays["probabilities"][part],
            to_go=arrays["action_values"][None, part] if with_baseline else None,
        )

    def single(name: str) -> Evaluation:
        """One estimate; the direct method looks at first states alone."""
        found = data(name in ("dm", "dr", "sndr"), steps if name == "dm" else 1)
        return evaluate(found, SEQUENTIAL[name])

    before = peak_bytes()
    if kind == "one_step":
        values, seconds = timed(lambda: joint_values(data, ONE_STEP), repeats)
        result = {"values": values, "seconds": seconds, "bytes": peak_bytes() - before}
        _, result["interval_seconds"] = timed(lambda: joint_bounds(data, ONE_STEP), repeats)
        return result
    result = {"values": {}, "seconds": {}, "interval_seconds": {}}
    for name in SEQUENTIAL:
        # Only numbers are kept of an answer, as of the peers': an evaluation keeps its data.
        result["values"][name], result["seconds"][name] = timed(lambda: float(single(name).value[0, 0]), repeats)  # noqa: B023
        _, result["interval_seconds"][name] = timed(lambda: single(name).bounds(), repeats)  # noqa: B023
    result["bytes"] = peak_bytes() - before
    _, result["joint_interval_seconds"] = timed(lambda: joint_bounds(data, SEQUENTIAL), repeats)
    return result


def joint_values(data: Callable[[bool], Any], names: dict[str, str]) -> dict[str, float]:
    """All estimates of one gathering."""
    from redenvelope.evaluation.evaluate import evaluate_partitions

    found = evaluate_partitions([data(True)], list(names.values()))
    return {name: float(found[ours].value[0, 0]) for name, ours in names.items()}


def joint_bounds(data: Callable[[bool], Any], names: dict[str, str]) -> list[Any]:
    """All estimates of one gathering, with intervals."""
    from redenvelope.evaluation.evaluate import evaluate_partitions

    return [found.bounds() for found in evaluate_partitions([data(True)], list(names.values())).values()]


def ask(command: list[Any]) -> dict[str, Any]:
    answer = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | ONE_THREAD)
    return json.loads(answer.stdout.splitlines()[-1])


def best_of(sides: list[dict[str, Any]]) -> dict[str, Any]:
    """The least of every time and of the memory."""
    merged = dict(sides[0])
    for other in sides[1:]:
        for name, value in other.items():
            if name == "values" or name not in merged:
                continue
            if isinstance(value, dict):
                merged[name] = {key: min(number, value[key]) for key, number in merged[name].items()}
            else:
                merged[name] = min(merged[name], value)
    return merged


def race(kind: str, rows: int, steps: int, repeats: int, inner: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ours and theirs."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_arrays(folder, rows, steps)
        for _ in range(repeats):
            run = Path(__file__).parent / "peers" / "run.py"
            theirs.append(ask([peer_python(), run, kind, folder, "--repeats", str(inner), "--intervals"]))
            ours.append(ask([sys.executable, __file__, "--side", kind, "--path", folder, "--repeats", str(inner)]))
    return best_of(ours), best_of(theirs)


def many_duals(users: int, duals: int, repeats: int) -> tuple[float, float]:
    """Processor seconds of a doubly robust pass over reward and cost at one dual and at many, decisions given."""
    from redenvelope.evaluation.data import gather
    from redenvelope.evaluation.evaluate import evaluate

    generator = np.random.default_rng(0)
    rows = users * STEPS
    shares = generator.dirichlet(np.ones(ACTIONS), size=(rows, duals)).astype(np.float32)
    values = generator.random((rows, duals, ACTIONS), dtype=np.float32)
    columns = {
        "starts": np.arange(0, rows + 1, STEPS),
        "keys": np.arange(users, dtype=np.uint64),
        "action": generator.integers(ACTIONS, size=rows),
        "propensity": np.full(rows, 1 / ACTIONS),
        "outcomes": generator.random((2, rows)),
    }

    def once(count: int) -> float:
        some = np.ascontiguousarray(values[:, :count])
        part = np.ascontiguousarray(shares[:, :count]), np.stack([some, some])
        start = time.process_time()
        evaluate(gather(**columns, probabilities=part[0], to_go=part[1]))
        return time.process_time() - start

    return min(once(1) for _ in range(repeats)), min(once(duals) for _ in range(repeats))


def planner_of(log: Any, encoder: Any, steps: int) -> Any:
    """A planner on a model of the default size, hardly trained: what it says does not change how long it takes."""
    from redenvelope.models.dataset import Examples
    from redenvelope.models.fit import fit_neural
    from redenvelope.models.training import NeuralSettings, TrainingSettings
    from redenvelope.planning.planner import TreePlanner

    training = TrainingSettings(steps=10, epochs_least=1, epochs_most=1)
    brief = NeuralSettings(reward_structure="dose", cost_structure="dose", training=training)
    model = fit_neural(Examples.from_log(log, encoder), brief, 0).model
    return TreePlanner(model, horizon=3, temperature=0.05, steps=steps)


def planned_duals(users: int, duals: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Processor seconds of planning, data and an estimate with interval, at one dual and at many, by estimator."""
    from redenvelope.evaluation.evaluate import evaluate_log
    from redenvelope.evaluation.marginalised import Marginalised
    from redenvelope.learning.values_to_go import KnownStates, ValueLearner, ValueSettings
    from redenvelope.log.encoding.encoder import Encoder
    from redenvelope.log.read import log_from_frame
    from redenvelope.simulate.envelopes import EnvelopeCampaign

    campaign = EnvelopeCampaign()
    log = log_from_frame(campaign.log(users, 1))
    encoder = Encoder.fit(log)
    planner = planner_of(log, encoder, campaign.steps)
    logged = KnownStates(encoder.encode(log), (campaign.steps - log.step).astype(np.int64))
    learner = ValueLearner.prepare(planner, logged, encoder.layout, ValueSettings(), 0)
    baseline = replace(planner, horizon=1, leaf_values=learner.followed(planner))

    def once(prices: np.ndarray, estimator: Any, complete: bool) -> float:
        start = time.process_time()

        def decide(batch: Any) -> tuple[Any, Any]:
            states, left = encoder.encode(batch), campaign.steps - batch.step
            values = planner.values(states, left, prices)
            to_go = baseline.values(states, left, prices).to_go if complete else values.to_go
            return values.probabilities, to_go

        (found,) = evaluate_log(log, decide, [estimator], features=encoder.encode).values()
        found.bounds()
        return time.process_time() - start

    grid = np.linspace(0, 1.5, duals)
    kinds = {
        "doubly robust": ("doubly_robust", False),
        "doubly robust, complete baseline": ("doubly_robust", True),
        "marginalised, complete baseline": (Marginalised(), True),
    }
    results = {}
    for name, kind in kinds.items():
        # The first round compiles.
        times = [(once(grid[duals // 2 :][:1], *kind), once(grid, *kind)) for _ in range(repeats + 1)]
        results[name] = (min(one for one, _ in times[1:]), min(many for _, many in times[1:]))
    return results


def show(name: str, ours: float, theirs: float, bar: float) -> None:
    ratio = theirs / ours
    verdict = "" if ratio >= bar else "SHORT"
    print(f"{name:<44} {theirs * 1e3:>10.1f} {ours * 1e3:>10.1f} {ratio:>8.1f} {bar:>6.1f} {verdict}")


def race_peers(rows: int, users: int, repeats: int) -> None:
    """Print every race against a peer."""
    ours, theirs = race("one_step", rows, 1, repeats, 5)
    apart = max(abs(ours["values"][name] - theirs["values"][name]) for name in ONE_STEP)
    print(f"{'':<44} {'peer ms':>10} {'ours ms':>10} {'ratio':>8} {'bar':>6}")
    show("obp joint: IPW, SNIPW, DM, DR", ours["seconds"], theirs["seconds"], 8)
    replicates = theirs["replicates"]["joint"]
    show(
        f"obp joint with intervals (default, {replicates:,})", ours["interval_seconds"], theirs["interval_seconds"], 40
    )
    print(f"  memory MB: obp {theirs['bytes'] / 1e6:.0f}, ours {ours['bytes'] / 1e6:.0f}; furthest apart {apart:.1e}")
    ours, theirs = race("sequential", users * STEPS, STEPS, repeats, 5)
    apart = max(abs(ours["values"][name] - theirs["values"][name]) for name in SEQUENTIAL)
    for name in SEQUENTIAL:
        show(f"SCOPE-RL {name}", ours["seconds"][name], theirs["seconds"][name], 4)
    own, replicates = theirs["replicates"]["own"], theirs["replicates"]["joint"]
    default = theirs["default_interval_seconds"]
    show(f"SCOPE-RL dr with interval (default, {own:,})", ours["interval_seconds"]["dr"], default, 40)
    joint = sum(theirs["interval_seconds"].values())
    show(f"SCOPE-RL all 7 with intervals (default, {replicates:,})", ours["joint_interval_seconds"], joint, 40)
    for name in SEQUENTIAL:
        show(
            f"SCOPE-RL {name} with interval (100)", ours["interval_seconds"][name], theirs["interval_seconds"][name], 0
        )
    print(
        f"  memory MB: SCOPE-RL {theirs['bytes'] / 1e6:.0f}, ours {ours['bytes'] / 1e6:.0f}; furthest apart {apart:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, once")
    parser.add_argument("--duals", action="store_true", help="only 64 duals against one, without peers")
    parser.add_argument("--side", choices=["one_step", "sequential"], help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(our_side(arguments.side, arguments.path, arguments.repeats)))
        return
    scale, repeats = (10, 1) if arguments.quick else (1, arguments.repeats)
    if not arguments.duals:
        race_peers(arguments.rows // scale, arguments.users // scale, repeats)
    one, many = many_duals(20_000 // scale, 64, repeats)
    print(f"64 duals take {many / one:.1f} times as long as one, decisions given: {many * 1e3:.0f}, {one * 1e3:.0f} ms")
    for name, (one, many) in planned_duals(10_000 // scale, 64, repeats).items():
        verdict = "" if many <= 5 * one else "SHORT"
        print(f"64 duals planned, {name}: {many / one:.1f} times as long as one: {many:.2f}, {one:.2f} s {verdict}")


if __name__ == "__main__":
    main()

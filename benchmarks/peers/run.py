"""What the peers say about arrays in a folder, how long they take and how much memory: runs in their environment.

    python run.py one_step FOLDER [--repeats N]      obp's joint call: IPW, SNIPW, DM, DR
    python run.py sequential FOLDER [--repeats N]    SCOPE-RL: TIS, PDIS, DR and their self-normalised forms, DM

FOLDER holds action, reward, propensity [rows], probabilities and action_values [rows, actions] as .npy, and
steps.txt, the number of steps of every user. Prints JSON.
"""

from __future__ import annotations

import argparse
import inspect
import json
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("action", "reward", "propensity", "probabilities", "action_values")


def timed(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """The answer of a call, and the least processor time of several: with one thread, wall time on a free machine."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        answer = call()
        seconds.append(time.process_time() - start)
    return answer, min(seconds)


def peak_bytes() -> int:
    """The most memory this program ever had; `ru_maxrss` would count that of the program that started it too."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def default_replicates(call: Callable[..., Any]) -> int:
    """How often a call resamples if it is not told."""
    return int(inspect.signature(call).parameters["n_bootstrap_samples"].default)


def one_step(arrays: dict[str, np.ndarray], repeats: int, intervals: bool) -> dict[str, Any]:
    from obp.ope import (
        DirectMethod,
        DoublyRobust,
        InverseProbabilityWeighting,
        OffPolicyEvaluation,
        SelfNormalizedInverseProbabilityWeighting,
    )

    rows = len(arrays["action"])
    feedback = {
        "action": arrays["action"],
        "reward": arrays["reward"],
        "pscore": arrays["propensity"],
        "position": np.zeros(rows, dtype=int),
        "n_rounds": rows,
    }
    estimators = [
        InverseProbabilityWeighting(),
        SelfNormalizedInverseProbabilityWeighting(),
        DirectMethod(),
        DoublyRobust(),
    ]
    joint = OffPolicyEvaluation(bandit_feedback=feedback, ope_estimators=estimators)
    inputs = {
        "action_dist": arrays["probabilities"][:, :, None],
        "estimated_rewards_by_reg_model": arrays["action_values"][:, :, None],
    }
    before = peak_bytes()
    values, seconds = timed(lambda: joint.estimate_policy_values(**inputs), repeats)
    result = {"values": {name: float(value) for name, value in values.items()}, "seconds": seconds}
    result["bytes"] = peak_bytes() - before
    result["replicates"] = {
        "joint": default_replicates(joint.estimate_intervals),
        "own": default_replicates(DoublyRobust().estimate_interval),
    }
    if intervals:
        _, result["interval_seconds"] = timed(lambda: joint.estimate_intervals(random_state=0, **inputs), 1)
    return result


def sequential(arrays: dict[str, np.ndarray], steps: int, repeats: int, intervals: bool) -> dict[str, Any]:
    from scope_rl.ope import OffPolicyEvaluation, discrete

    names = {
        "dm": discrete.DirectMethod,
        "tis": discrete.TrajectoryWiseImportanceSampling,
        "pdis": discrete.PerDecisionImportanceSampling,
        "dr": discrete.DoublyRobust,
        "sntis": discrete.SelfNormalizedTIS,
        "snpdis": discrete.SelfNormalizedPDIS,
        "sndr": discrete.SelfNormalizedDR,
    }
    inputs = {
        "step_per_trajectory": steps,
        "action": arrays["action"],
        "reward": arrays["reward"],
        "pscore": arrays["propensity"],
        "evaluation_policy_action_dist": arrays["probabilities"],
        "state_action_value_prediction": arrays["action_values"],
    }
    before = peak_bytes()
    result: dict[str, Any] = {"values": {}, "seconds": {}, "interval_seconds": {}}
    for name, kind in names.items():
        estimator = kind()
        value, result["seconds"][name] = timed(lambda: estimator.estimate_policy_value(**inputs), repeats)  # noqa: B023
        result["values"][name] = float(value)
    result["bytes"] = peak_bytes() - before
    replicates = default_replicates(OffPolicyEvaluation.estimate_intervals)
    result["replicates"] = {"joint": replicates, "own": default_replicates(discrete.DoublyRobust().estimate_interval)}
    if intervals:
        for name, kind in names.items():
            estimator = kind()
            _, result["interval_seconds"][name] = timed(
                lambda: estimator.estimate_interval(random_state=0, n_bootstrap_samples=replicates, **inputs),  # noqa: B023
                1,
            )
        usual = discrete.DoublyRobust()
        _, result["default_interval_seconds"] = timed(lambda: usual.estimate_interval(random_state=0, **inputs), 1)
    return result


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["one_step", "sequential"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--intervals", action="store_true")
    arguments = parser.parse_args()
    arrays = {name: np.load(arguments.folder / f"{name}.npy") for name in NAMES}
    if arguments.kind == "one_step":
        result = one_step(arrays, arguments.repeats, arguments.intervals)
    else:
        steps = int((arguments.folder / "steps.txt").read_text())
        result = sequential(arrays, steps, arguments.repeats, arguments.intervals)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

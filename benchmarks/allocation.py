"""One-step allocation: the exact solver against HiGHS and against plain numpy bisection, in one run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from redenvelope.dual.one_step import allocate_one_step

BUDGET = 0.4
ACTIONS = 10


def make_offers(users: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and costs that rise with the action, each user with a response of their own."""
    generator = np.random.default_rng(seed)
    costs = np.sort(generator.random((users, ACTIONS)), axis=1)
    steps = generator.random((users, ACTIONS)) * generator.random((users, 1))
    return np.cumsum(steps, axis=1) / ACTIONS, costs


def by_interior_point(rewards: np.ndarray, costs: np.ndarray) -> float:
    """Mean reward of the linear program."""
    users = len(rewards)
    result = linprog(
        -rewards.reshape(-1) / users,
        A_ub=sparse.csr_array(costs.reshape(1, -1) / users),
        b_ub=[BUDGET],
        A_eq=sparse.kron(sparse.eye_array(users), np.ones((1, ACTIONS)), format="csr"),
        b_eq=np.ones(users),
        method="highs-ipm",
    )
    return -float(result.fun)


def by_bisection(rewards: np.ndarray, costs: np.ndarray) -> float:
    """Mean reward after 50 passes of plain numpy; the bracket is given for free."""
    low, high, everyone = 0.0, 10.0, np.arange(len(rewards))
    for _ in range(50):
        dual = (low + high) / 2
        choices = (rewards - dual * costs).argmax(axis=1)
        if costs[everyone, choices].mean() > BUDGET:
            low = dual
        else:
            high = dual
    choices = (rewards - high * costs).argmax(axis=1)
    return float(rewards[everyone, choices].mean())


def timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least time of some repeats in seconds, and the result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def compare(users: int, peers: dict[str, Callable[[np.ndarray, np.ndarray], float]]) -> None:
    """Print one table."""
    rewards, costs = make_offers(users)
    seconds, found = timed(lambda: allocate_one_step(rewards, costs, BUDGET), 7)
    print(f"\n{users:,} users × {ACTIONS} actions, budget {BUDGET:g} a user")
    print(f"{'method':<24}{'seconds':>12}{'times ours':>12}{'difference of reward, relative':>34}")
    print(f"{'allocate_one_step':<24}{seconds:>12.5f}{1:>12.2f}{found.reward:>34.12f}")
    for name, peer in peers.items():
        peer_seconds, reward = timed(lambda peer=peer: peer(rewards, costs), 1)
        difference = abs(reward - found.reward) / abs(found.reward)
        print(f"{name:<24}{peer_seconds:>12.5f}{peer_seconds / seconds:>12.2f}{difference:>34.1e}")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer users")
    quick = parser.parse_args().quick
    compare(2_000 if quick else 10_000, {"HiGHS interior point": by_interior_point})
    compare(100_000 if quick else 1_000_000, {"numpy, 50 bisections": by_bisection})


if __name__ == "__main__":
    main()

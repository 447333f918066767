"""Speed of planning: what 64 duals cost against one, and the planner against this machine's own sgemm.

Every figure is a ratio of times taken in turns within one run, so that a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.planning.planner import TreePlanner

ACTIONS, HORIZON, FEATURES, HIDDEN, DUALS = 10, 3, 20, 128, 64
TEMPERATURE = 0.05
# Rows of one bare product: small enough for the cache, where both libraries are fastest.
BLOCK_ROWS = 1000
# The bars that the project set itself.
MOST_SOFT, MOST_HARD, LEAST_SHARE, MOST_BUDGETS = 4.0, 2.5, 0.5, 1.3


class BenchmarkModel(eqx.Module):
    """Two networks with two hidden layers each: one for reward and cost, one for the next state."""

    outcome_layers: tuple[jax.Array, ...]
    successor_layers: tuple[jax.Array, ...]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return ACTIONS

    @property
    def budgets(self) -> int:
        """One cost."""
        return 1

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Rewards and costs, [2, n, actions]."""
        values = forward(self.outcome_layers, states)
        return jnp.stack([values[:, :ACTIONS], jax.nn.softplus(values[:, ACTIONS:])])

    def successors(self, states: jax.Array) -> jax.Array:
        """[n, actions, features]."""
        changes = forward(self.successor_layers, states)
        return states[:, None] + changes.reshape(-1, ACTIONS, FEATURES)


class ThreeBudgets(eqx.Module):
    """The same model with three budgets: its cost, counted actions, and its cost where a column is above 0."""

    model: BenchmarkModel

    @property
    def actions(self) -> int:
        """Number of actions."""
        return ACTIONS

    @property
    def budgets(self) -> int:
        """Three costs."""
        return 3

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Rewards and costs, [4, n, actions]."""
        reward, cost = self.model.outcomes(states)
        counted = jnp.broadcast_to((jnp.arange(ACTIONS) >= ACTIONS // 2).astype(cost.dtype), cost.shape)
        return jnp.stack([reward, cost, counted, cost * (states[:, :1] > 0)])

    def successors(self, states: jax.Array) -> jax.Array:
        """[n, actions, features]."""
        return self.model.successors(states)


def forward(layers: tuple[jax.Array, ...], values: jax.Array) -> jax.Array:
    for layer in layers[:-1]:
        values = jax.nn.relu(values @ layer)
    return values @ layers[-1]


def layer_shapes(outputs: int) -> list[tuple[int, int]]:
    return [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, outputs)]


def make_model(seed: int) -> BenchmarkModel:
    generator = np.random.default_rng(seed)

    def layers(outputs: int) -> tuple[jax.Array, ...]:
        return tuple(
            jnp.asarray(generator.normal(size=shape) * shape[0] ** -0.5, dtype=jnp.float32)
            for shape in layer_shapes(outputs)
        )

    return BenchmarkModel(layers(2 * ACTIONS), layers(ACTIONS * FEATURES))


def multiplications(users: int) -> list[tuple[int, int, int]]:
    """(rows, inputs, outputs) of every product that planning for `users` users needs, level by level."""
    products = []
    for depth in range(HORIZON):
        rows = users * ACTIONS**depth
        products += [(rows, *shape) for shape in layer_shapes(2 * ACTIONS)]
        if depth < HORIZON - 1:
            products += [(rows, *shape) for shape in layer_shapes(ACTIONS * FEATURES)]
    return products


def operands(users: int) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Left and right of every product, and how often it is needed, in blocks of rows that fit the cache."""
    generator = np.random.default_rng(0)
    blocks = []
    for rows, inputs, outputs in multiplications(users):
        left = generator.normal(size=(BLOCK_ROWS, inputs)).astype(np.float32)
        right = generator.normal(size=(inputs, outputs)).astype(np.float32)
        blocks.append((left, right, rows // BLOCK_ROWS))
    return blocks


def numpy_products(users: int) -> Callable[[], object]:
    """The products alone, by numpy's sgemm, into memory that is already there."""
    blocks = [
        (left, right, np.empty((BLOCK_ROWS, right.shape[1]), dtype=np.float32), times)
        for left, right, times in operands(users)
    ]

    def run() -> None:
        for left, right, out, times in blocks:
            for _ in range(times):
                np.matmul(left, right, out=out)

    return run


def jax_products(users: int) -> Callable[[], object]:
    """The products alone, by jax, in one compiled program."""
    blocks = operands(users)
    repeats = [times for _, _, times in blocks]
    # Two different left sides in turn, or the compiler would see that one product does for all.
    arrays = [(jnp.asarray(np.stack([left, -left])), jnp.asarray(right)) for left, right, _ in blocks]

    @jax.jit
    def program(arrays: list[tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
        results = []
        for (lefts, right), times in zip(arrays, repeats, strict=True):

            def multiply(
                turn: jax.Array, _: jax.Array, lefts: jax.Array = lefts, right: jax.Array = right
            ) -> jax.Array:
                return lefts[turn % 2] @ right

            results.append(jax.lax.fori_loop(0, times, multiply, lefts[0] @ right))
        return results

    return lambda: jax.block_until_ready(program(arrays))


def race(runs: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The least seconds that each took; in turns, after a first round that compiles."""
    best = dict.fromkeys(runs, np.inf)
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if turn:
                best[name] = min(best[name], clock() - start)
    return best


def start_again_on_one_core() -> None:
    """Both sides must have one thread, and libraries ask how many they may have when they are loaded."""
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    # On one core one thread: several that wait for each other cost time that is nobody's work.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NPROC": "1"}
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 users in place of 10,000")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contender has")
    parser.add_argument("--all-cores", action="store_true", help="do not bind the process to one core")
    options = parser.parse_args()
    if not options.all_cores:
        start_again_on_one_core()
    users = 1_000 if options.quick else 10_000
    model = make_model(seed=0)
    states = np.random.default_rng(1).normal(size=(users, FEATURES)).astype(np.float32)
    soft = TreePlanner(model, HORIZON, TEMPERATURE, HORIZON)
    hard = TreePlanner(model, HORIZON, 0.0, HORIZON)
    duals = np.linspace(0.0, 2.0, DUALS)
    several = [TreePlanner(ThreeBudgets(model), HORIZON, each, HORIZON) for each in (TEMPERATURE, 0.0)]
    prices = np.random.default_rng(2).uniform(0.0, 1.0, (DUALS, 3))
    times = race(
        {
            "soft, 1 dual": lambda: soft.expected(states, HORIZON, duals[:1]),
            f"soft, {DUALS} duals": lambda: soft.expected(states, HORIZON, duals),
            "hard, 1 dual": lambda: hard.expected(states, HORIZON, duals[:1]),
            f"hard, {DUALS} duals": lambda: hard.expected(states, HORIZON, duals),
            "soft, 3 budgets": lambda: several[0].expected(states, HORIZON, prices),
            "hard, 3 budgets": lambda: several[1].expected(states, HORIZON, prices),
            "sgemm of numpy": numpy_products(users),
            "sgemm of jax": jax_products(users),
        },
        options.rounds,
        # On one core, processor time is wall time without what other processes took of it.
        time.perf_counter if options.all_cores else time.process_time,
    )
    report(users, times)


def report(users: int, times: dict[str, float]) -> None:
    work = sum(2.0 * rows * inputs * outputs for rows, inputs, outputs in multiplications(users)) / 1e9
    print(f"{users:,} users, {ACTIONS} actions, {HORIZON} steps, {work:.1f} GFLOP in matrix products")
    for name, seconds in times.items():
        print(f"  {name:<16}{seconds:8.3f} s {work / seconds:8.1f} GFLOP/s")
    soft = times[f"soft, {DUALS} duals"] / times["soft, 1 dual"]
    hard = times[f"hard, {DUALS} duals"] / times["hard, 1 dual"]
    share = min(times["sgemm of numpy"], times["sgemm of jax"]) / times["soft, 1 dual"]
    print(f"{DUALS} duals against one, soft: {soft:.2f} (bar: at most {MOST_SOFT})")
    print(f"{DUALS} duals against one, hard: {hard:.2f} (bar: at most {MOST_HARD})")
    for kind in ("soft", "hard"):
        ratio = times[f"{kind}, 3 budgets"] / times[f"{kind}, {DUALS} duals"]
        print(f"{DUALS} prices of 3 budgets against {DUALS} of one, {kind}: {ratio:.2f} (bar: at most {MOST_BUDGETS})")
    print(f"share of sgemm's rate, soft, 1 dual: {share:.0%} (bar: at least {LEAST_SHARE:.0%})")


if __name__ == "__main__":
    main()

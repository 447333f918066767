"""Exact plans of a finite problem: the dual search against HiGHS and against plain numpy, in one run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from redenvelope.dual.column_generation import ColumnGeneration, solve_budgets
from redenvelope.dual.search import solve_dual
from redenvelope.dual.solvers import Secant
from redenvelope.finite.problem import FiniteProblem, exact_price


def make_problem(
    states: int, actions: int, steps: int, successors: int, seed: int = 0, budgets: int = 1
) -> FiniteProblem:
    """Costs and rewards that rise with the action; about `successors` next states for each pair.

    The costs of further budgets are those of the first at some of the actions, or in some of the states: of counted
    actions, of a segment.
    """
    generator = np.random.default_rng(seed)
    costs = np.sort(generator.random((states, actions)), axis=1)
    rewards = np.sqrt(np.sort(generator.random((states, actions)), axis=1))
    transitions = generator.random((states, actions, states))
    transitions *= generator.random(transitions.shape) < successors / states
    transitions[..., 0] += 1e-6
    transitions /= transitions.sum(axis=2, keepdims=True)
    counted = np.broadcast_to(generator.random(actions) < 0.5, costs.shape).astype(float)
    segment = np.broadcast_to(generator.random((states, 1)) < 0.3, costs.shape) * costs
    costs = np.stack([costs, counted, segment])[:budgets]
    return FiniteProblem(rewards, costs, transitions, np.full(states, 1 / states), steps)


def occupancy_program(problem: FiniteProblem, budgets: list[float], method: str) -> float:
    """The greatest reward within the budgets, by HiGHS on flows through (step, state, action)."""
    states, actions, steps = problem.states, problem.actions, problem.steps
    leaving = sparse.kron(sparse.eye_array(states), np.ones((1, actions)), format="csr")
    coming = sparse.csr_array(problem.transitions.reshape(-1, states).T)
    balance = sparse.kron(sparse.eye_array(steps), leaving) - sparse.kron(sparse.eye_array(steps, k=-1), coming)
    result = linprog(
        -np.tile(problem.rewards.reshape(-1), steps),
        A_ub=sparse.csr_array(np.tile(problem.costs.reshape(len(budgets), -1), steps)),
        b_ub=budgets,
        A_eq=balance.tocsr(),
        b_eq=np.concatenate([problem.initial, np.zeros((steps - 1) * states)]),
        method=method,
    )
    return -float(result.fun)


def plain_search(problem: FiniteProblem, budget: float) -> float:
    """The same secant search as one would write it down first: one dual after the other."""
    everyone, costs = np.arange(problem.states), problem.costs[0]

    def plan(reward_weight: float, cost_weight: float) -> tuple[float, float]:
        gains = reward_weight * problem.rewards - cost_weight * costs
        values = np.zeros(problem.states)
        cost, reward = np.zeros(problem.states), np.zeros(problem.states)
        for _ in range(problem.steps):
            action_values = gains + problem.transitions @ values
            best = action_values.argmax(axis=1)
            values = action_values[everyone, best]
            following = problem.transitions[everyone, best]
            cost = costs[everyone, best] + following @ cost
            reward = problem.rewards[everyone, best] + following @ reward
        return float(problem.initial @ cost), float(problem.initial @ reward)

    low, high = plan(1.0, 0.0), plan(0.0, 1.0)
    while True:
        slope = (low[1] - high[1]) / (low[0] - high[0])
        middle = plan(1.0, slope)
        if middle[1] - slope * middle[0] <= low[1] - slope * low[0] + 1e-12 * abs(low[1]):
            share = (budget - high[0]) / (low[0] - high[0])
            return share * low[1] + (1 - share) * high[1]
        if middle[0] > budget:
            low = middle
        else:
            high = middle


def timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least time of some repeats in seconds, and the result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def compare(states: int, actions: int, steps: int, successors: int, methods: list[str]) -> None:
    """Print one table."""
    problem = make_problem(states, actions, steps, successors)
    budget = 0.3 * steps
    # From the arrays on: the time includes whatever `exact_price` prepares.
    seconds, found = timed(lambda: solve_dual(exact_price(problem), budget, Secant()), 5)
    plain_seconds, plain_reward = timed(lambda: plain_search(problem, budget), 3)
    print(f"\nS={states} A={actions} H={steps}, about {successors} next states, budget {budget:g}")
    print(f"{'method':<24}{'seconds':>12}{'times ours':>12}{'difference of reward, relative':>34}")
    print(f"{'dual search (secant)':<24}{seconds:>12.4f}{1:>12.2f}{found.reward:>34.12f}")
    several_seconds, several = timed(lambda: solve_budgets(exact_price(problem), budget), 5)
    generated_seconds, generated = timed(lambda: ColumnGeneration().solve(exact_price(problem), budget), 5)
    rows = [
        ("search for budgets", several_seconds, several.reward),
        ("column generation", generated_seconds, generated.reward),
        ("plain numpy secant", plain_seconds, plain_reward),
    ]
    for method in methods:
        rows.append((f"HiGHS {method}", *timed(partial(occupancy_program, problem, [budget], method), 1)))
    for name, other_seconds, reward in rows:
        difference = abs(reward - found.reward) / abs(found.reward)
        print(f"{name:<24}{other_seconds:>12.4f}{other_seconds / seconds:>12.2f}{difference:>34.1e}")
    print(f"passes {found.passes}, evaluations {len(found.priced)}, cost − budget {found.cost - budget:.1e}")


def compare_several(states: int, actions: int, steps: int, successors: int, methods: list[str]) -> None:
    """Print one table for three budgets: money, counted actions, and money in a segment."""
    problem = make_problem(states, actions, steps, successors, budgets=3)
    price = exact_price(problem)
    least, most = price(np.array([[np.inf] * 3])), price(np.zeros((1, 3)))
    budgets = (least[1:, 0] + np.array([0.35, 0.35, 0.25]) * (most - least)[1:, 0]).tolist()
    seconds, found = timed(lambda: ColumnGeneration().solve(exact_price(problem), budgets), 5)
    print(f"\nS={states} A={actions} H={steps}, about {successors} next states, three budgets")
    print(f"{'method':<24}{'seconds':>12}{'times ours':>12}{'difference of reward, relative':>34}")
    print(f"{'column generation':<24}{seconds:>12.4f}{1:>12.2f}{found.reward:>34.12f}")
    for method in methods:
        other, reward = timed(partial(occupancy_program, problem, budgets, method), 1)
        difference = abs(reward - found.reward) / abs(found.reward)
        print(f"{f'HiGHS {method}':<24}{other:>12.4f}{other / seconds:>12.2f}{difference:>34.1e}")
    over = max(cost - limit for cost, limit in zip(found.costs, budgets, strict=True))
    print(
        f"passes {found.passes}, plans {len(found.priced)}, mixed {len(found.shares)}; "
        f"{', '.join(found.statuses)}; greatest cost − budget {over:.1e}"
    )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller problems, both methods of HiGHS")
    if parser.parse_args().quick:
        compare(100, 10, 5, 100, ["highs-ipm", "highs-ds"])
        compare(100, 10, 5, 5, ["highs-ipm", "highs-ds"])
        compare_several(100, 10, 5, 100, ["highs-ipm", "highs-ds"])
        compare_several(100, 10, 5, 5, ["highs-ipm", "highs-ds"])
        return
    compare_several(500, 20, 10, 5, ["highs-ipm"])
    compare(500, 20, 10, 5, ["highs-ipm"])
    # The dual simplex did not finish the dense problem in ten minutes; the interior point takes about four.
    compare(500, 20, 10, 500, ["highs-ipm"])
    compare_several(500, 20, 10, 500, ["highs-ipm"])


if __name__ == "__main__":
    main()

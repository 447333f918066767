"""Learned values on random problems against plain counting: one table a step, filled from the last step back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp

from redenvelope.finite.problem import backward_induction
from redenvelope.learning.soft_q import SoftQ
from redenvelope.planning.q_values import LearnedPrice
from redenvelope.simulate.finite import random_problem
from tests.learning.conftest import TABLE, World, make_world, prepared

# Four prices of two or three components: more heads than curves.
DUALS = np.array([0.0, 0.3, 1.2, 4.0])
OFTEN = 20


def counted_values(world: World, dual: float, temperature: float) -> np.ndarray:
    """Action values by counting the log's own successors, in plain loops, [steps, states, actions]; NaN if unseen."""
    problem, examples = world.problem, world.examples
    found = np.full((problem.steps, problem.states, problem.actions), np.nan)
    value = np.zeros(problem.states)
    for step in reversed(range(problem.steps)):
        for state in range(problem.states):
            for action in np.flatnonzero(problem.allowed[state]):
                rows = np.flatnonzero((world.log.step == step) & (world.state == state) & (examples.action == action))
                if len(rows):
                    # Who has left earns and costs nothing more.
                    later = [value[world.state[row + 1]] if examples.continues[row] else 0.0 for row in rows]
                    gain = problem.rewards[state, action] - dual * problem.costs[0, state, action]
                    found[step, state, action] = gain + np.mean(later)
        seen = np.where(np.isnan(found[step]), -np.inf, found[step])
        with np.errstate(divide="ignore"):
            value = temperature * logsumexp(seen / temperature, axis=1) if temperature else seen.max(axis=1)
    return found


def often(world: World) -> np.ndarray:
    """Which step, state and action the log shows often, [steps, states, actions]."""
    counts = np.zeros((world.problem.steps, world.problem.states, world.problem.actions), dtype=int)
    np.add.at(counts, (world.log.step, world.state, world.examples.action), 1)
    return counts >= OFTEN


def on_all_users(world: World) -> SoftQ:
    """One fold of all users, and doubles of them held out: what is learned then is what the log says of itself."""
    # All rows in one batch: the gradient has no noise of its own.
    exact = replace(TABLE.future, batch_rows=1_024, steps=600, epochs_most=600, patience=600)
    learner = prepared(world, folds=1, future=exact)
    examples, rows = learner.examples, len(learner.examples)

    def twice(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, values])

    columns = ("states", "action", "propensity", "continues", "keys")
    doubled = replace(
        examples,
        **{name: twice(getattr(examples, name)) for name in columns},
        outcomes=np.concatenate([examples.outcomes, examples.outcomes], axis=1),
        starts=np.concatenate([examples.starts, examples.starts[1:] + rows]),
    )
    fold = np.repeat(np.array([0, -1], dtype=np.int8), rows)
    return replace(
        learner,
        examples=doubled,
        folds=replace(learner.folds, fold=fold, step=twice(learner.folds.step)),
        **{name: twice(getattr(learner, name)) for name in ("eligible", "outcomes", "frequent")},
    )


def learned_values(world: World, learner: SoftQ, temperature: float) -> np.ndarray:
    """Action values at DUALS, [duals, steps, states, actions]; NaN where the log has no such state."""
    values = learner.learn(DUALS, temperature)
    problem = world.problem
    found = np.full((len(DUALS), problem.steps, problem.states, problem.actions), np.nan)
    for step in range(problem.steps):
        for state in range(problem.states):
            rows = np.flatnonzero((world.log.step == step) & (world.state == state))[:1]
            if len(rows):
                found[:, step, state] = values.values(world.examples.states[rows], problem.steps - step, DUALS).q[0]
    return found


def random_world(seed: int, users: int = 3_000) -> World:
    """Chance decides where users go and whether they leave; some actions are forbidden in some states."""
    problem = random_problem(seed, states=4, actions=3, steps=3, leaving=0.2, ineligible=0.3)
    allowed = problem.allowed.copy()
    allowed[0] = [True, True, False]  # not every draw forbids something
    return make_world(replace(problem, initial=np.full(4, 0.25), eligible=allowed), users, seed)


# Outcomes have no noise, the successors are counted from the same rows, and the gradient is that of all rows:
# nothing but the last digits of training are left, where action values have a standard deviation of one to two.
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 16))])
def test_values_equal_counted_values(seed: int) -> None:
    world = random_world(seed, users=1_000)
    assert np.ptp(np.diff(world.log.starts)) > 0  # users do leave early
    assert not world.problem.allowed.all()
    learner = on_all_users(world)
    for temperature in (0.0, 0.4):
        found = learned_values(world, learner, temperature)
        for place, dual in enumerate(DUALS):
            exact = counted_values(world, float(dual), temperature)
            gap = np.abs(found[place] - exact)[often(world)]
            assert gap.size > 12
            assert gap.max() < 0.01


# Against the truth itself there is the noise of who went where as well. Values of next states differ by about one;
# a cell has 100 to 300 rows, of which each fold sees half: over two steps that are followed, a value is off by about
# sqrt(2) / sqrt(150) = 0.12, and 0.8 of that is the mean of its absolute value.
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_values_are_within_the_noise_of_exact_values(seed: int, temperature: float) -> None:
    world = random_world(seed)
    found = learned_values(world, prepared(world), temperature)
    exact = backward_induction(world.problem, DUALS, temperature).action_values
    gap = np.abs(found - exact)[:, often(world)]
    assert gap.mean() < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_cost_falls_as_the_dual_rises_on_random_problems(seed: int, temperature: float) -> None:
    world = random_world(seed)
    price = LearnedPrice(prepared(world).learn_all(temperature), world.first_states())
    _, costs = price(np.append(np.linspace(0.0, 5.0, 41), np.inf))
    # Values of two folds judge each other: a policy that is best for one may cost a little more by the other.
    assert np.diff(costs).max() < 0.01 * (costs[0] - costs[-1])

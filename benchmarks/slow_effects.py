"""Incentives whose effect comes late: what plans earn, in the learned model, of what its full-depth optimum earns.

Two finite campaigns. *Leaving*: incentives earn little at once and keep users, who stay with a chance of 0.9 without
one, 0.94 with a small and 0.99 with a large one. *Habit*: five incentives in a row build a habit that earns on its own
and fades without them. A model is learned from a log; its predictions for every step and state are a finite problem
whose optimum is exact backward induction. Shares of the optimum's gain over the cheapest policy at equal cost, mean of
three budgets, exact in that problem: trees of one and two steps with values to go, and a tree of four steps alone.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.finite.problem import FiniteProblem
from redenvelope.learning.values_to_go import KnownStates, ValueLearner, ValueSettings
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.environment import apply_steps
from redenvelope.models.fit import fit_neural
from redenvelope.models.neural_model import NeuralModel
from redenvelope.planning.planner import TreePlanner
from redenvelope.simulate.finite import FiniteCampaign

BUDGET_SHARES = np.array([0.2, 0.4, 0.7])
"""Of what the uniform policy costs."""
DUALS = np.geomspace(0.01, 20.0, 48)
LEAST_SHARE = 0.97
Array = NDArray[np.float64]


def leaving(steps: int) -> FiniteCampaign:
    """Four kinds of users who stay what they are."""
    worth = np.array([0.1, 0.2, 0.35, 0.5])[:, None]
    rewards = worth + np.array([0.0, 0.02, 0.04])
    costs = np.broadcast_to([0.0, 0.15, 0.6], (4, 3))
    moves = np.eye(4)[:, None] * np.array([0.9, 0.94, 0.99])[:, None]
    return FiniteCampaign(FiniteProblem(rewards, costs, moves, np.full(4, 0.25), steps), 0.05, 0.02)


def habit(steps: int) -> FiniteCampaign:
    """Six levels of a habit; what it earns comes with the last."""
    levels = np.arange(6)
    rewards = np.where(levels == 5, 1.0, 0.1)[:, None] + np.array([0.0, 0.02, 0.03])
    costs = np.broadcast_to([0.0, 0.3, 0.5], (6, 3))
    up, down = np.eye(6)[np.minimum(levels + 1, 5)], np.eye(6)[np.maximum(levels - 1, 0)]
    moves = np.stack([0.85 * np.eye(6) + 0.15 * down, 0.7 * up + 0.3 * np.eye(6), up], axis=1)
    initial = np.array([0.7, 0.2, 0.1, 0.0, 0.0, 0.0])
    return FiniteCampaign(FiniteProblem(rewards, costs, moves, initial, steps), 0.05, 0.02)


class Learned(NamedTuple):
    """What a model predicts for every step and state."""

    outcomes: Array
    """[outcomes, steps, states, actions]"""
    moves: Array
    """Probabilities of the next state, less where users leave, [steps, states, actions, states]."""
    initial: Array

    def follow(self, probabilities: Array) -> Array:
        """Reward and cost of policies [steps, duals, states, actions], [outcomes, duals]."""
        after = np.zeros((2, probabilities.shape[1], len(self.initial)))
        for step in reversed(range(len(probabilities))):
            to_go = self.outcomes[:, step, None] + np.einsum("sat,odt->odsa", self.moves[step], after)
            after = (to_go * probabilities[step]).sum(axis=-1)
        return np.asarray(after @ self.initial)

    def best(self, duals: Array) -> Array:
        """The best policies, [steps, duals, states, actions]."""
        value, chosen = np.zeros((len(duals), len(self.initial))), []
        for step in reversed(range(len(self.moves))):
            now = self.outcomes[0, step] - duals[:, None, None] * self.outcomes[1, step]
            q = now + np.einsum("sat,dt->dsa", self.moves[step], value)
            value = q.max(axis=-1)
            chosen.append(np.eye(q.shape[-1])[q.argmax(axis=-1)])
        return np.stack(chosen[::-1])


def predicted(model: NeuralModel, states: NDArray[np.float32], campaign: FiniteCampaign) -> Learned:
    """States are [steps, states, width]."""
    problem = campaign.problem
    outcomes, moves = [], []
    for own in states:
        found, staying, following = apply_steps(model, own)
        chances = np.broadcast_to(np.eye(problem.states)[:, None], (problem.states, problem.actions, problem.states))
        for block in model.layout.categories:  # none where users stay what they are
            # Codes of unseen and missing labels come before those of the states.
            chances = following[..., block][..., -problem.states :].astype(np.float64)
            chances = chances / chances.sum(axis=-1, keepdims=True)
        moves.append(chances if staying is None else chances * staying[..., None])
        outcomes.append(found.astype(np.float64))
    return Learned(np.stack(outcomes, axis=1), np.stack(moves), problem.initial)


def shares(campaign: FiniteCampaign, users: int, seed: int) -> dict[str, float]:
    log = log_from_frame(campaign.log(users, seed))
    encoder = Encoder.fit(log)
    examples = Examples.from_log(log, encoder)
    model = fit_neural(examples, seed=seed).model
    steps, labels = campaign.steps, [f"s{place}" for place in range(campaign.problem.states)]
    frames = [pl.DataFrame({"step": [step] * len(labels), "state": labels}) for step in range(steps)]
    states = np.stack([encoder.encode_frame(frame)[0] for frame in frames])
    world = predicted(model, states, campaign)
    tree = TreePlanner(model, 4, 0.0, steps)
    logged = KnownStates(examples.states, (steps - log.step).astype(np.int64))
    values = ValueLearner.prepare(tree, logged, encoder.layout, ValueSettings(), seed).optimal(tree)
    planners = {
        "1 step and values": replace(tree, horizon=1, leaf_values=values),
        "2 steps and values": replace(tree, horizon=2, leaf_values=values),
        "tree of 4 steps": tree,
    }

    def policies(planner: TreePlanner) -> Array:
        found = [planner.values(own, steps - step, DUALS).probabilities for step, own in enumerate(states)]
        return np.stack(found).swapaxes(1, 2).astype(np.float64)

    actions = campaign.problem.actions
    uniform = world.follow(np.full((steps, 1, len(labels), actions), 1 / actions))
    nothing = world.follow(np.broadcast_to(np.eye(actions)[0], (steps, 1, len(labels), actions)))
    budgets = BUDGET_SHARES * uniform[1, 0]

    def gain(chosen: Array) -> Array:
        reward, cost = np.concatenate([nothing, world.follow(chosen)], axis=1)
        order = np.argsort(cost)
        return np.interp(budgets, cost[order], reward[order]) - nothing[0, 0]

    best = gain(world.best(DUALS))
    return {name: float((gain(policies(planner)) / best).mean()) for name, planner in planners.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one log of 3,000 users each, 20 steps")
    options = parser.parse_args()
    users, seeds = (3_000, 1) if options.quick else (options.users, options.seeds)
    for name, make in (("leaving", leaving), ("habit", habit)):
        for steps in (20,) if options.quick else (20, 30):
            found = [shares(make(steps), users, seed) for seed in range(seeds)]
            for policy in found[0]:
                share = float(np.mean([one[policy] for one in found]))
                bar = (
                    f"  (bar {LEAST_SHARE}: {'met' if share >= LEAST_SHARE else 'MISSED'})"
                    if "values" in policy
                    else ""
                )
                print(f"{name}, {steps} steps  {policy:<20}{share:.3f}{bar}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""What all users checking buys, and whether it keeps its promise: tabular plans of random finite problems.

Every replication draws a problem and a log of it, learns a table of the problem from training users for every member of
the plan, plans by backward induction at prices that all members share, checks each group of users by the package's own
estimator on the member that the group did not train, and runs the fixed-sequence test. The truth is exact, so thousands
of certificates are judged in minutes: with one member and one check fold, and with members that all users check.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.influence import neighbour_sums
from redenvelope.evaluation.jackknife import SparsePrices
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.finite.problem import FiniteProblem, backward_induction, evaluate
from redenvelope.log.log import split_fold
from redenvelope.plan.fixed_sequence_test import climb
from redenvelope.plan.ladder import new_ladder
from redenvelope.randomness import member_of
from redenvelope.simulate.finite import random_problem

STATES, ACTIONS, STEPS = 6, 4, 4
TEMPERATURE, RUNGS = 0.05, 16
GRID = np.array([np.inf, *np.geomspace(20, 0.02, 60), 0.0])
ERRORS = ("plain", "with learning")
"""Standard errors in which the learned ratios count as known, and those that include their error."""


@dataclass(frozen=True, eq=False)
class Logged:
    """A log of uniformly drawn actions."""

    keys: NDArray[np.uint64]
    """[users]"""
    state: IntArray
    """[users, steps]"""
    action: IntArray
    outcomes: FloatArray
    """Reward and cost, [outcomes, users, steps]."""

    @classmethod
    def of(cls, problem: FiniteProblem, users: int, seed: int) -> Logged:
        """A log of a problem, its rewards and costs with noise."""
        generator = np.random.default_rng((seed, 77))
        state = np.empty((users, problem.steps), np.int64)
        action, outcomes = np.empty_like(state), np.empty((2, users, problem.steps))
        here, reach = generator.choice(problem.states, users, p=problem.initial), problem.transitions.cumsum(axis=-1)
        for step in range(problem.steps):
            given = generator.integers(problem.actions, size=users)
            state[:, step], action[:, step] = here, given
            outcomes[0, :, step] = problem.rewards[here, given] + generator.normal(0, 0.5, users)
            outcomes[1, :, step] = problem.costs[0][here, given] * generator.gamma(2.0, 0.5, users)
            here = np.minimum((generator.random(users)[:, None] > reach[here, given]).sum(axis=1), problem.states - 1)
        return cls(generator.integers(2**63, size=users).astype(np.uint64), state, action, outcomes)

    def learned(self, problem: FiniteProblem, some: NDArray[np.bool_]) -> FiniteProblem:
        """The problem as some of the users [users] show it."""
        pairs = self.state[some] * ACTIONS + self.action[some]
        counts = np.bincount(pairs.ravel(), minlength=STATES * ACTIONS) + 1.0
        tables = []
        for values in self.outcomes[:, some]:
            sums = np.bincount(pairs.ravel(), values.ravel(), minlength=len(counts)) + values.mean()
            tables.append((sums / counts).reshape(STATES, ACTIONS))
        following = np.full((STATES * ACTIONS, STATES), 1 / STATES)
        np.add.at(following, (pairs[:, :-1].ravel(), self.state[some][:, 1:].ravel()), 1.0)
        following /= following.sum(axis=1, keepdims=True)
        transitions = following.reshape(STATES, ACTIONS, STATES)
        return replace(problem, rewards=tables[0], costs=np.maximum(tables[1], 0)[None], transitions=transitions)


def planned(model: FiniteProblem, prices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Probabilities [prices, steps, states, actions] of a model's plans, and outcomes to go, [outcomes, …]."""
    shares = backward_induction(model, prices, TEMPERATURE).probabilities
    to_go, after = np.empty((2, *shares.shape)), np.zeros((2, len(prices), STATES))
    for step in reversed(range(STEPS)):
        to_go[:, :, step] = model.outcomes[:, None] + np.einsum("san,opn->opsa", model.transitions, after)
        after = np.einsum("psa,opsa->ops", shares[:, step], to_go[:, :, step])
    return shares, to_go


def shared_prices(models: list[FiniteProblem]) -> FloatArray:
    """Falling prices at which the members' costs, as they predict them, fall in even steps."""
    costs = np.mean([backward_induction(model, GRID, TEMPERATURE).outcomes[1] for model in models], axis=0)
    wanted = np.linspace(costs[0], costs[-1], RUNGS)[1:-1]
    middle = np.exp(np.interp(wanted, costs[1:], np.log(np.maximum(GRID[1:], 1e-3))))
    return np.array([np.inf, *np.unique(middle)[::-1], 0.0])


@dataclass(frozen=True, eq=False)
class Replication:
    """One problem, log and plan; costs and rewards per user."""

    budget: float
    error: float
    """Of the estimated cost at the rung whose true cost is nearest to the budget, in plain standard errors."""
    true: dict[str, tuple[float, float]]
    """By the kind of errors, the true reward and cost of the plan."""
    ends: tuple[float, float]
    """The reward of the cheapest plan, and of the best within the budget."""

    def gain(self, kind: str) -> float:
        """Share of the optimum's gain at the same budget."""
        least, best = self.ends
        return (self.true[kind][0] - least) / (best - least)


def replicate(seed: int, users: int, members: int, own: bool = False) -> Replication:
    """One replication; with `own`, wrongly, every group checks the member that it trained."""
    problem = random_problem(seed, STATES, ACTIONS, STEPS)
    logged = Logged.of(problem, users, seed)
    if members == 1:
        fold = split_fold(logged.keys, seed=seed)
        train, checks = [fold == 0], fold == 2
    else:
        member = member_of(logged.keys, members)
        train, checks = [(member == number) == own for number in range(members)], np.ones(users, bool)
    models = [logged.learned(problem, some) for some in train]
    prices = shared_prices(models)
    tables = [planned(model, prices) for model in models]
    shares, to_go = (np.stack([table[place] for table in tables]) for place in (0, 1))
    data = checked_data(logged, shares, to_go, checks, members)
    estimator = Marginalised(seed=seed, members=members)
    found = evaluate_partitions([data], [estimator], sparse=SparsePrices((range(len(prices)),), (4,)))[estimator.name]
    truth = np.mean([[evaluate(problem, table).outcomes for table in own] for own in shares], axis=0).T
    uniform, cheapest = evaluate(problem, np.full((STATES, ACTIONS), 1 / ACTIONS)), backward_induction(problem, GRID)
    budget = (uniform.cost + cheapest.outcomes[1, 0]) / 2
    near = int(np.abs(truth[1] - budget).argmin())
    added = found.influence()
    means, true = added.mean(axis=1, keepdims=True), {}
    for kind, factor in zip(ERRORS, (1.0, found.learning_factor[:, None]), strict=True):
        sums, nothing = neighbour_sums(means + factor * (added - means)), [[]] * len(prices)
        ladder = new_ladder(prices[:, None], sums, nothing, [{}] * len(prices), "marginalised")
        place = climb(ladder, [budget], 0.95).place
        true[kind] = (float(place.mix(truth[0])), float(place.mix(truth[1])))
    best = float(np.interp(budget, cheapest.outcomes[1], cheapest.outcomes[0]))
    error = (found.value[1, near] - truth[1, near]) / found.standard_error[1, near]
    return Replication(budget, float(error), true, (float(cheapest.outcomes[0, 0]), best))


def checked_data(
    logged: Logged, shares: FloatArray, to_go: FloatArray, checks: NDArray[np.bool_], members: int
) -> OffPolicyData:
    """The rows of the users who check, each with the tables of the member that the user follows."""
    keys, state = logged.keys[checks], logged.state[checks]
    member, step = member_of(keys, members)[:, None], np.arange(STEPS)[None]
    rows, prices = state.size, shares.shape[1]
    probabilities = shares[member, :, step, state].reshape(rows, prices, ACTIONS)
    baseline = np.moveaxis(to_go[member, :, :, step, state], 2, 0).reshape(2, rows, prices, ACTIONS)
    return gather(
        starts=np.arange(0, rows + 1, STEPS),
        keys=keys,
        action=logged.action[checks].ravel(),
        propensity=np.full(rows, 1 / ACTIONS),
        outcomes=logged.outcomes[:, checks].reshape(2, rows),
        probabilities=probabilities,
        to_go=np.ascontiguousarray(baseline),
        features=np.eye(STATES)[state.ravel()][:, 1:],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[2_000, 6_000])
    parser.add_argument("--members", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--replications", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=1_000, help="seed of the first problem")
    arguments = parser.parse_args()
    for users in arguments.users:
        for members in arguments.members:
            start, seeds = time.process_time(), range(arguments.first, arguments.first + arguments.replications)
            every = [replicate(seed, users, members) for seed in seeds]
            errors, seconds = np.array([one.error for one in every]), time.process_time() - start
            print(
                f"{users:,} users, {members} member(s): error of the cost near the budget {errors.mean():+.3f} ± "
                f"{errors.std():.3f} standard errors; {seconds:.0f} processor seconds"
            )
            for kind in ERRORS:
                spent = np.array([one.true[kind][1] / one.budget for one in every])
                gain = np.array([one.gain(kind) for one in every])
                print(
                    f"  errors {kind}: over the budget {(spent > 1 + 1e-9).mean():.1%}, spent "
                    f"{spent.mean():.1%}, share of the gain {gain.mean():.3f}"
                )


if __name__ == "__main__":
    main()

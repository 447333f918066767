"""Small finite campaigns whose truth is exact, and logs of them as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray

from redenvelope import FiniteProblem
from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.finite.problem import evaluate
from redenvelope.simulate.finite import random_problem

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class World:
    """A finite problem, a logger and policies to weigh, and logs drawn by a second, plain simulator."""

    problem: FiniteProblem
    behaviour: FloatArray
    """[states, actions]."""
    policies: FloatArray
    """[prices, states, actions]."""
    more_costs: tuple[FloatArray, ...] = ()
    """Of further budgets, [states, actions] each."""
    noise: float = 0.5

    @property
    def outcomes(self) -> FloatArray:
        """Mean outcomes, [outcomes, states, actions]: reward, cost, further costs."""
        return np.stack([*self.problem.outcomes, *self.more_costs])

    @property
    def outcome_names(self) -> tuple[str, ...]:
        return ("reward", "cost", *(f"cost {number}" for number in range(2, 2 + len(self.more_costs))))

    @cached_property
    def truth(self) -> FloatArray:
        """Exact outcomes of each policy, [outcomes, prices]."""
        rewards = [evaluate(self.problem, policy).reward for policy in self.policies]
        worlds = [replace(self.problem, costs=costs) for costs in self.outcomes[1:]]
        return np.array([rewards, *([evaluate(world, policy).cost for policy in self.policies] for world in worlds)])

    @cached_property
    def exact_values(self) -> FloatArray:
        """Outcomes to go of every action, [outcomes, prices, steps, states, actions]."""
        problem = self.problem
        result = np.zeros((len(self.outcomes), len(self.policies), problem.steps, *problem.rewards.shape))
        for place, outcome in enumerate(self.outcomes):
            for price, policy in enumerate(self.policies):
                after = np.zeros(problem.states)
                for step in reversed(range(problem.steps)):
                    result[place, price, step] = outcome + problem.transitions @ after
                    after = (policy * result[place, price, step]).sum(axis=1)
        return result

    def draw(self, users: int, seed: int, behaviour: FloatArray | None = None) -> Drawn:
        """A log of so many users."""
        logger = self.behaviour if behaviour is None else behaviour
        generator = np.random.default_rng(seed)
        problem = self.problem
        alive, state = np.arange(users), generator.choice(problem.states, size=users, p=problem.initial)
        columns = []
        for step in range(problem.steps):
            action = _pick(logger[state], generator)
            mean = self.outcomes[:, state, action]
            reward = mean[0] + self.noise * generator.standard_normal(len(state))
            costs = [cost * generator.exponential(size=len(state)) for cost in mean[1:]]
            propensity = logger[state, action]
            made = [alive, np.full(len(state), step), state, action, propensity, reward, *costs]
            columns.append(np.column_stack(made))
            moves = problem.transitions[state, action]
            leaving = np.maximum(1 - moves.sum(axis=1, keepdims=True), 0.0)
            following = _pick(np.concatenate([moves, leaving], axis=1), generator)
            stays = following < problem.states
            alive, state = alive[stays], following[stays]
        table = np.concatenate(columns)
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
        return Drawn(self, users, table)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A drawn log."""

    world: World
    users: int
    table: FloatArray
    """[rows, columns]: user, step, state, action, propensity, reward, costs."""

    @property
    def step(self) -> NDArray[np.int64]:
        return self.table[:, 1].astype(np.int64)

    @property
    def state(self) -> NDArray[np.int64]:
        return self.table[:, 2].astype(np.int64)

    @property
    def action(self) -> NDArray[np.int64]:
        return self.table[:, 3].astype(np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        lengths = np.bincount(self.table[:, 0].astype(np.int64), minlength=self.users)
        return np.concatenate([[0], np.cumsum(lengths)])

    @cached_property
    def probabilities(self) -> FloatArray:
        """[rows, prices, actions]."""
        return np.moveaxis(self.world.policies[:, self.state], 0, 1)

    def baseline(self, error: float = 0.0) -> FloatArray:
        """The exact values to go, or wrong ones: [outcomes, rows, prices, actions]."""
        exact = self.world.exact_values
        size = exact[0].size
        nonsense = np.stack([3 * np.sin(np.arange(size)), *([np.full(size, 2.5)] * (len(exact) - 1))])
        table = (1 - error) * exact + error * nonsense.reshape(exact.shape)
        return np.moveaxis(table[:, :, self.step, self.state], 2, 1)

    def data(
        self,
        error: float | None = 0.0,
        propensity: FloatArray | None = None,
        features: NDArray[np.floating] | None = None,
    ) -> OffPolicyData:
        """OffPolicyData with a baseline of this error, or without one; the features are the states unless others are
        given, [rows, features]."""
        return gather(
            starts=self.starts,
            keys=np.arange(self.users),
            action=self.action,
            propensity=self.table[:, 4] if propensity is None else propensity,
            outcomes=self.table[:, 5:].T,
            outcome_names=self.world.outcome_names,
            probabilities=self.probabilities,
            to_go=None if error is None else self.baseline(error),
            features=self.table[:, 2:3] if features is None else features,
            steps=self.world.problem.steps,
        )


def _pick(probabilities: FloatArray, generator: np.random.Generator) -> NDArray[np.int64]:
    edges = probabilities.cumsum(axis=1)
    draws = generator.random(len(edges)) * edges[:, -1]
    return (draws[:, None] >= edges).sum(axis=1)


def make_world(
    seed: int, leaving: float = 0.0, states: int = 4, actions: int = 3, steps: int = 3, costs: int = 1
) -> World:
    problem = random_problem(seed, states=states, actions=actions, steps=steps, leaving=leaving)
    generator = np.random.default_rng(seed + 1)
    behaviour = generator.dirichlet(np.full(actions, 8.0), size=states)
    policies = generator.dirichlet(np.full(actions, 2.0), size=(2, states))
    return World(problem, behaviour, policies, tuple(generator.random((costs - 1, states, actions))))


@pytest.fixture(scope="session")
def world() -> World:
    """Everybody stays to the end."""
    return make_world(3)


@pytest.fixture(scope="session")
def leaving_world() -> World:
    """A fifth of the users leaves at every step: ragged trajectories."""
    return make_world(5, leaving=0.2)


def every_path(world: World) -> tuple[Drawn, FloatArray]:
    """A log with one user for every possible trajectory, free of noise, and the probability of each, [users]."""
    problem = world.problem
    chances: list[float] = []
    rows: list[tuple[float, ...]] = []

    def walk(state: int, step: int, chance: float, path: tuple[tuple[float, ...], ...]) -> None:
        for action in range(problem.actions):
            propensity = float(world.behaviour[state, action])
            extended = (*path, (step, state, action, propensity, *world.outcomes[:, state, action]))
            moves = problem.transitions[state, action]
            leaving = 1 - float(moves.sum()) if step + 1 < problem.steps else 1.0
            if leaving > 1e-12:
                rows.extend((len(chances), *row) for row in extended)
                chances.append(chance * propensity * leaving)
            if step + 1 < problem.steps:
                for following in range(problem.states):
                    walk(following, step + 1, chance * propensity * float(moves[following]), extended)

    for state in range(problem.states):
        walk(state, 0, float(problem.initial[state]), ())
    return Drawn(world, len(chances), np.array(rows)), np.array(chances)


@pytest.fixture(scope="session")
def paths() -> tuple[Drawn, FloatArray]:
    """Every path of a world that users may leave."""
    return every_path(make_world(11, leaving=0.2, states=3, actions=2, steps=3))

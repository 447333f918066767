"""A small world with a known truth: rows to learn from, and what they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import NeuralFit, fit_neural
from redenvelope.models.training import NeuralSettings, TrainingSettings
from tests.quick_programs import quick_programs

STEPS = 3
ACTIONS = 4
AMOUNTS = np.array([0.0, 1.0, 2.0, 4.0])
LAYOUT = StateLayout(
    static_categories=(5,),
    static_numbers=1,
    dynamic_numbers=1,
    dynamic_binaries=1,
    dynamic_categories=(3,),
    step_change=1 / (STEPS - 1),
)
SMALL = NeuralSettings(
    outcome_hidden=(16,),
    transition_hidden=(16,),
    members=2,
    reward_structure="cumulative",
    cost_structure="low_rank",
    training=TrainingSettings(batch_rows=256, steps=800, epochs_most=15),
)
"""Settings that train in a second or two."""

CITY = np.array([0.0, 0.0, -0.5, 0.0, 0.5])
LIFT = np.array([0.0, 0.4, 0.7, 1.0])


@dataclass(frozen=True)
class World:
    """Truth of a world whose logits are linear in what a state shows."""

    def reward(self, states: np.ndarray) -> np.ndarray:
        """Chance of a reward, [n, actions]."""
        city = CITY[states[:, 0].astype(int)]
        logit = -0.8 + city + 0.5 * states[:, 1] + 0.6 * states[:, 3] + 0.5 * states[:, 4]
        strength = 1.0 + 0.5 * states[:, 1].clip(-1, 1)
        return 1 / (1 + np.exp(-(logit[:, None] + strength[:, None] * LIFT)))

    def consumption(self, states: np.ndarray) -> np.ndarray:
        """Chance that a rewarded user consumes, [n]."""
        return 1 / (1 + np.exp(-(0.5 + 0.5 * states[:, 1])))

    def cost(self, states: np.ndarray) -> np.ndarray:
        """Mean cost, [n, actions]."""
        return self.reward(states) * self.consumption(states)[:, None] * AMOUNTS

    def mood(self, states: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Chances of the next mood, [n, 3]: drawn to its number by the action."""
        logit = 1.0 * states[:, 5:8] + np.stack([1.0 - 0.5 * action, np.zeros(len(action)), 0.5 * action - 1], axis=1)
        return np.exp(logit) / np.exp(logit).sum(axis=1, keepdims=True)

    def next_tail(self, states: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Expected number, binary and mood of the next state, [n, 5]."""
        number = 0.7 * states[:, 3] + 0.2 * action - 0.3
        binary = 1 / (1 + np.exp(-(2 * states[:, 4] - 1 + 0.4 * action)))
        return np.concatenate([number[:, None], binary[:, None], self.mood(states, action)], axis=1)


def draw_examples(users: int, seed: int) -> Examples:
    """What a logger that prefers dear actions for the rich did to so many users."""
    world, generator = World(), np.random.default_rng(seed)
    states = np.zeros((users, STEPS, LAYOUT.width), dtype=np.float32)
    states[:, :, 0] = generator.integers(2, 5, users)[:, None]
    states[:, :, 1] = generator.normal(size=users)[:, None]
    states[:, :, 2] = np.arange(STEPS) * LAYOUT.step_change
    states[:, 0, 3] = generator.normal(size=users)
    states[:, 0, 4] = generator.random(users) < 0.4
    states[:, 0, 5:8] = np.eye(3)[generator.integers(0, 3, users)]
    action, propensity, reward, cost = np.zeros((4, users, STEPS))
    everyone = np.arange(users)
    for step in range(STEPS):
        now = states[:, step]
        weight = np.exp(0.3 * now[:, 1:2] * np.arange(ACTIONS))
        chance = 0.3 / ACTIONS + 0.7 * weight / weight.sum(axis=1, keepdims=True)
        taken = (generator.random((users, 1)) > chance.cumsum(axis=1)).sum(axis=1).clip(0, ACTIONS - 1)
        action[:, step], propensity[:, step] = taken, chance[everyone, taken]
        reward[:, step] = generator.random(users) < world.reward(now)[everyone, taken]
        consumed = reward[:, step] * (generator.random(users) < world.consumption(now))
        cost[:, step] = consumed * AMOUNTS[taken]
        if step + 1 < STEPS:
            expected = world.next_tail(now, taken)
            following = states[:, step + 1]
            following[:, 3] = expected[:, 0] + 0.3 * generator.normal(size=users)
            following[:, 4] = generator.random(users) < expected[:, 1]
            mood = (generator.random((users, 1)) > expected[:, 2:].cumsum(axis=1)).sum(axis=1).clip(0, 2)
            following[:, 5:8] = np.eye(3)[mood]
    continues = np.ones((users, STEPS), dtype=bool)
    continues[:, -1] = False
    return Examples(
        states=states.reshape(-1, LAYOUT.width),
        action=action.reshape(-1).astype(np.int32),
        outcomes=np.stack([reward.reshape(-1), cost.reshape(-1)]),
        propensity=propensity.reshape(-1),
        continues=continues.reshape(-1),
        starts=np.arange(users + 1) * STEPS,
        keys=np.arange(users, dtype=np.uint64),
        layout=LAYOUT,
        actions=ACTIONS,
        campaign_steps=STEPS,
    )


@pytest.fixture(scope="package", autouse=True)
def quickly_compiled() -> Iterator[None]:
    with quick_programs():
        yield


@pytest.fixture(scope="session")
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def draw() -> Callable[[int, int], Examples]:
    return draw_examples


@pytest.fixture(scope="session")
def small() -> NeuralSettings:
    return SMALL


@pytest.fixture(scope="session")
def learned() -> NeuralFit:
    """A model of 6,000 users."""
    return fit_neural(draw_examples(6_000, seed=1), SMALL, seed=0)

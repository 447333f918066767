"""Finite problems as logs: the truth is exact, and networks that are tables can reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from redenvelope import Encoder, FiniteCampaign, FiniteProblem, Log, log_from_frame
from redenvelope.learning.backward import LearningSettings
from redenvelope.learning.soft_q import SoftQ
from redenvelope.models.dataset import Examples
from redenvelope.models.training import TrainingSettings
from tests.quick_programs import quick_programs

_IMMEDIATE = TrainingSettings(
    learning_rate=0.1, weight_decay=0.0, batch_rows=512, steps=400, epochs_least=2, epochs_most=150, patience=150
)
TABLE = LearningSettings(
    hidden=(),
    advantage_rank=None,
    structure="independent",
    least_chance=0.0,
    immediate=_IMMEDIATE,
    future=replace(_IMMEDIATE, batch_rows=256, steps=500),
)
"""Networks without hidden layers over one-hot states, every action with its own weights: tables."""


@dataclass(frozen=True)
class World:
    """A finite problem, its log, and the rows to learn from."""

    problem: FiniteProblem
    log: Log
    encoder: Encoder
    examples: Examples
    state: np.ndarray
    """Index of each row's state, [rows]."""

    @property
    def eligible(self) -> np.ndarray:
        """[rows, actions]"""
        return self.problem.allowed[self.state]

    def every_state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A row of the log for every state and step that it shows often: encoded states, step and state, [found] each.

        In a state that few users were in, some fold may never have seen some action.
        """
        pairs, rows, counts = np.unique(
            self.log.step * self.problem.states + self.state, return_index=True, return_counts=True
        )
        pairs, rows = pairs[counts >= 100], rows[counts >= 100]
        assert len(pairs) > self.problem.steps
        return self.examples.states[rows], pairs // self.problem.states, pairs % self.problem.states

    def first_states(self) -> np.ndarray:
        return self.examples.states[self.log.starts[:-1]]


def make_world(
    problem: FiniteProblem, users: int, seed: int, variance: float = 0.0, behaviour: np.ndarray | None = None
) -> World:
    campaign = FiniteCampaign(problem, reward_variance=variance, cost_variance=variance, behaviour=behaviour)
    frame = campaign.log(users, seed)
    log = log_from_frame(frame)
    encoder = Encoder.fit(log)
    state = frame["state"].str.slice(1).cast(int).to_numpy()
    return World(problem, log, encoder, Examples.from_log(log, encoder), state)


def prepared(world: World, seed: int = 0, **changes: object) -> SoftQ:
    return SoftQ.prepare(world.examples, replace(TABLE, **changes), seed, world.eligible)  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="package")
def quick_compilation() -> Iterator[None]:
    with quick_programs():
        yield

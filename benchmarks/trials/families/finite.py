"""Finite: random problems of a few states, which the log shows as a category; rewards and costs are noisy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.finite.problem import FiniteProblem
from redenvelope.simulate.campaign import draw_actions
from redenvelope.simulate.finite import FiniteCampaign, random_problem
from trials.families.laws import FloatArray, Happened, State


@dataclass(frozen=True)
class Finite:
    """A random finite problem under the laws of `FiniteCampaign`."""

    seed: int

    @cached_property
    def campaign(self) -> FiniteCampaign:
        """The same as a campaign whose optimum is exact."""
        return FiniteCampaign(self.problem)

    @cached_property
    def problem(self) -> FiniteProblem:
        """Five states, three actions, three steps."""
        return random_problem(self.seed, states=5, actions=3, steps=3)

    @property
    def actions(self) -> tuple[str, ...]:
        """See Laws."""
        return self.campaign.actions

    @property
    def steps(self) -> int:
        """See Laws."""
        return self.problem.steps

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws."""
        return {"state": generator.choice(self.problem.states, size=users, p=self.problem.initial)}

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """See Laws."""
        return {"state": np.array([f"s{number}" for number in range(self.problem.states)])[state["state"]]}

    def logger(self, state: State, step: int) -> FloatArray:
        """See Laws."""
        return self.campaign.logging_policy[state["state"]]

    def noted(self, probabilities: FloatArray, state: State, step: int) -> FloatArray:
        """See Laws: the true ones."""
        return probabilities

    def means(self, state: State, step: int) -> FloatArray:
        """See Laws."""
        return np.stack([self.problem.rewards, self.problem.costs[0]])[:, state["state"]]

    def happen(self, state: State, step: int, action: NDArray[np.intp], generator: np.random.Generator) -> Happened:
        """See Laws."""
        here, own = state["state"], self.campaign
        reward = self.problem.rewards[here, action] + own.reward_variance**0.5 * generator.standard_normal(len(here))
        mean = self.problem.costs[0][here, action]
        free = mean <= 0
        scale = own.cost_variance / np.where(free, 1.0, mean)
        cost = np.where(free, 0.0, generator.gamma(np.where(free, 1.0, mean / scale), scale))
        moves = self.problem.transitions[here, action]
        gone = np.maximum(1 - moves.sum(axis=1, keepdims=True), 0.0)
        following = draw_actions(np.concatenate([moves, gone], axis=1), generator)
        stays = following < self.problem.states
        return Happened(reward, cost, {"state": np.where(stays, following, 0)}, stays)

"""The ways to decide that are compared: each answers for states at many prices, whatever it was learned by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from experiments.retrained import RetrainedPrice
from experiments.tabular import TabularModel
from redenvelope.finite.problem import FiniteProblem, Value, backward_induction
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.planning.planner import TreePlanner
from redenvelope.policies.policy import normalised
from redenvelope.simulate.campaign import Campaign

__all__ = [
    "Continued",
    "Counted",
    "Decisions",
    "Method",
    "Planned",
    "Retrained",
    "true_value",
    "true_values",
    "values_to_go",
]

FloatArray = NDArray[np.float64]
StateArray = NDArray[np.float32]


class Decisions(NamedTuple):
    """What a method does and expects, all [rows, duals, actions]."""

    probabilities: NDArray[np.floating]
    reward_to_go: NDArray[np.floating]
    cost_to_go: NDArray[np.floating]


class Method(Protocol):
    """A policy for every price."""

    def decisions(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> Decisions:
        """For encoded states [rows, width] with steps left [rows], at duals [duals]."""
        ...


@dataclass(frozen=True, eq=False)
class Planned:
    """Plans ahead in a learned model."""

    planner: TreePlanner

    def decisions(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> Decisions:
        """For encoded states [rows, width] with steps left [rows], at duals [duals]."""
        planned = self.planner.values(states, steps_left, duals)
        return Decisions(planned.probabilities, *planned.to_go)


@dataclass(frozen=True, eq=False)
class Continued:
    """A plan whose tree ends before the campaign, with what the steps after it bring on average put in.

    It decides as the plan does. Only what it expects is more: an estimate that is told of too few steps is right, and
    noisier. The averages are those of the rows at hand.
    """

    plan: Planned

    def decisions(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> Decisions:
        """For encoded states [rows, width] with steps left [rows], at duals [duals]."""
        planner = self.plan.planner
        made = self.plan.decisions(states, steps_left, duals)
        later = [np.zeros((len(states), len(duals))) for _ in range(2)]
        for outcomes, sums in zip(planner.outcomes(states), later, strict=True):
            taken = np.einsum("rda,ra->rd", made.probabilities, outcomes)
            for left in range(1, planner.steps + 1 - planner.depth):
                there = steps_left == left
                if there.any():
                    sums[steps_left >= left + planner.depth] += taken[there].mean(axis=0)
        return Decisions(
            made.probabilities, made.reward_to_go + later[0][:, :, None], made.cost_to_go + later[1][:, :, None]
        )


@dataclass(frozen=True, eq=False)
class Counted:
    """Exact induction in a model of counts, so many steps ahead; None looks to the end."""

    model: TabularModel
    lookahead: int | None = None

    def decisions(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> Decisions:
        """For encoded states [rows, width] with steps left [rows], at duals [duals]."""
        problem = self.model.problem
        tables = backward_induction(problem, duals, lookahead=self.lookahead).probabilities
        rewards, costs = values_to_go(problem, tables)
        step, state = problem.steps - steps_left, self.model.index(states)
        return Decisions(*(table[:, step, state].swapaxes(0, 1) for table in (tables, rewards, costs)))


@dataclass(frozen=True, eq=False)
class Retrained:
    """Learned without a model, once for every price it is asked for."""

    price: RetrainedPrice

    def decisions(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> Decisions:
        """For encoded states [rows, width] with steps left [rows], at duals [duals]."""
        found = [self.price.learned(float(dual)).values(states, steps_left, dual) for dual in duals]
        parts = ((values.probabilities, *values.to_go) for values in found)
        return Decisions(*(np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)))


def values_to_go(problem: FiniteProblem, tables: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Reward and cost to go of every action under policies [duals, steps, states, actions], of the same shape."""
    results = []
    for outcome in problem.outcomes:
        to_go = np.empty_like(tables)
        later = np.zeros((len(tables), problem.states))
        for step in reversed(range(problem.steps)):
            to_go[:, step] = outcome + np.einsum("sat,dt->dsa", problem.transitions, later)
            later = (tables[:, step] * to_go[:, step]).sum(axis=2)
        results.append(to_go)
    return results[0], results[1]


def true_values(campaign: Campaign, method: Method, encoder: Encoder, duals: FloatArray) -> FloatArray:
    """Exact reward and cost of the policy of each dual, [duals, outcomes]; the method is asked once for all of them."""
    actions = len(campaign.actions)
    frames: list[pl.DataFrame] = []

    def record(frame: pl.DataFrame) -> FloatArray:
        frames.append(frame)
        return np.full((frame.height, actions), 1 / actions)

    campaign.value(record)  # the uniform policy meets every state that any policy can
    met = pl.concat(frames)
    left = campaign.steps - met["step"].to_numpy().astype(np.int64)
    answers = method.decisions(encoder.encode_frame(met)[0], left, duals).probabilities
    keys = met.hash_rows(seed=0).to_numpy()
    order = np.argsort(keys)

    def decide(frame: pl.DataFrame, place: int) -> FloatArray:
        asked = frame.hash_rows(seed=0).to_numpy()
        return normalised(answers[order[np.searchsorted(keys[order], asked)], place])

    return np.array([campaign.value(partial(decide, place=place)).outcomes for place in range(len(duals))])


def true_value(
    campaign: Campaign, method: Method, encoder: Encoder, duals: tuple[float, ...], shares: tuple[float, ...]
) -> Value:
    """Exact reward and cost of the mixture of the policies of some prices, drawn once per user."""
    return Value(np.asarray(shares) @ true_values(campaign, method, encoder, np.array(duals)))

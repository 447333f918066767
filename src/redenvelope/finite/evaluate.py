"""Exact reward and costs of any policy of a finite problem: no sampling, no noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.finite.problem import FiniteProblem

__all__ = ["Value", "evaluate", "occupancy"]

FloatArray = NDArray[np.float64]

# A policy may come from float32 arithmetic, whose rows sum to one only this closely.
_PROBABILITY_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class Value:
    """What a policy earns and costs: means over users of sums over steps."""

    outcomes: FloatArray
    """The reward, then the cost of each budget, [outcomes]."""

    @property
    def reward(self) -> float:
        """Mean reward a user."""
        return float(self.outcomes[0])

    @property
    def cost(self) -> float:
        """Mean cost a user of the first budget."""
        return float(self.outcomes[1])

    @property
    def costs(self) -> FloatArray:
        """Mean cost a user of every budget, [budgets]."""
        return self.outcomes[1:]


def evaluate(problem: FiniteProblem, policy: FloatArray) -> Value:
    """The outcomes of a policy table [steps, states, actions], or [states, actions] for every step."""
    visits = occupancy(problem, policy).sum(axis=0)
    return Value((problem.outcomes * visits).sum(axis=(1, 2)))


def occupancy(problem: FiniteProblem, policy: FloatArray) -> FloatArray:
    """Share of users that meet a state at a step and get an action there, [steps, states, actions].

    `policy` is a table [steps, states, actions], or [states, actions] for every step.
    """
    table = _checked(problem, policy)
    transitions = problem.transitions.reshape(-1, problem.states)
    visits = np.empty_like(table)
    mass = problem.initial
    for step in range(problem.steps):
        visits[step] = mass[:, None] * table[step]
        mass = visits[step].reshape(-1) @ transitions
    return visits


def _checked(problem: FiniteProblem, policy: FloatArray) -> FloatArray:
    """The policy as float64 [steps, states, actions] with rows that sum to one exactly."""
    shape = (problem.steps, problem.states, problem.actions)
    table = np.asarray(policy, dtype=np.float64)
    if table.shape not in (shape, shape[1:]):
        raise UsageError(f"a policy of this problem has shape {shape} or {shape[1:]}, not {table.shape}")
    if not (table >= 0).all():
        raise UsageError("a policy holds a probability that is negative or not a number")
    if (table * ~problem.allowed).any():
        raise UsageError("a policy gives probability to an action that its state does not allow")
    totals = table.sum(axis=-1, keepdims=True)
    if (np.abs(totals - 1) > _PROBABILITY_TOLERANCE).any():
        raise UsageError("the probabilities of a policy do not sum to 1 in some state")
    return np.array(np.broadcast_to(table / totals, shape))

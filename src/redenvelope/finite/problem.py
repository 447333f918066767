"""A constrained Markov decision process with finitely many states, and the exact value of any policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ProblemError, UsageError

# Rows of a transition matrix are sums of a few hundred float64 numbers.
_PROBABILITY_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class FiniteProblem:
    """A constrained Markov decision process over `steps` steps, with one budget or several.

    A row of `transitions` may sum to less than one: the rest of the users leave the campaign there,
    and neither cost nor earn anything afterwards.
    """

    rewards: FloatArray
    """Mean reward, [states, actions]."""
    costs: FloatArray
    """Mean cost that counts against each budget, [budgets, states, actions]; one table [states, actions] is of one
    budget."""
    transitions: FloatArray
    """Probability of the next state, [states, actions, states]."""
    initial: FloatArray
    """Distribution of the first state, [states]."""
    steps: int
    """Number of decisions per user."""
    eligible: NDArray[np.bool_] | None = field(default=None)
    """Which actions a state allows, [states, actions]; None allows all."""

    def __post_init__(self) -> None:
        for name in ("rewards", "costs", "transitions", "initial"):
            values = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            if not np.isfinite(values).all():
                raise ProblemError(f"{name} holds a number that is not finite")
            object.__setattr__(self, name, values)
        if self.costs.ndim == 2:
            object.__setattr__(self, "costs", self.costs[None])
        self._check_shapes()
        self._check_probabilities()

    @property
    def states(self) -> int:
        """Number of states."""
        return int(self.rewards.shape[0])

    @property
    def actions(self) -> int:
        """Number of actions."""
        return int(self.rewards.shape[1])

    @property
    def budgets(self) -> int:
        """Number of budgets: tables of costs."""
        return int(self.costs.shape[0])

    @cached_property
    def outcomes(self) -> FloatArray:
        """The rewards, then the costs of each budget, [outcomes, states, actions]."""
        return np.concatenate([self.rewards[None], self.costs])

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """Which actions a state allows, [states, actions], written out."""
        return np.ones((self.states, self.actions), dtype=bool) if self.eligible is None else self.eligible

    def _check_shapes(self) -> None:
        if self.rewards.ndim != 2:
            raise ProblemError(f"rewards must be [states, actions], not of shape {self.rewards.shape}")
        states, actions = self.rewards.shape
        if self.costs.ndim != 3 or self.costs.shape[1:] != (states, actions) or not len(self.costs):
            raise ProblemError(
                f"costs must be one table of shape {(states, actions)} for each budget, [budgets, states, actions], "
                f"not of shape {self.costs.shape}"
            )
        expected = {
            "transitions": (states, actions, states),
            "initial": (states,),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ProblemError(f"{name} must have shape {shape}, not {getattr(self, name).shape}")
        if self.steps < 1:
            raise ProblemError(f"steps must be at least 1, not {self.steps}")
        if self.eligible is not None:
            if self.eligible.shape != (states, actions):
                raise ProblemError(f"eligible must have shape {(states, actions)}, not {self.eligible.shape}")
            if not self.eligible.any(axis=1).all():
                state = int(np.flatnonzero(~self.eligible.any(axis=1))[0])
                raise ProblemError(f"state {state} allows no action; every state needs at least one")

    def _check_probabilities(self) -> None:
        if (self.transitions < 0).any() or (self.initial < 0).any():
            raise ProblemError("transitions and initial are probabilities and cannot be negative")
        if self.transitions.sum(axis=2).max() > 1 + _PROBABILITY_TOLERANCE:
            raise ProblemError("a row of transitions sums to more than 1")
        if abs(self.initial.sum() - 1) > _PROBABILITY_TOLERANCE:
            raise ProblemError(f"initial must sum to 1, not {self.initial.sum():.12g}")


# A policy may come from float32 arithmetic, whose rows sum to one only this closely.
_POLICY_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class Value:
    """Reward and costs of a policy: means over users of sums over steps."""

    outcomes: FloatArray
    """The reward, then the cost of each budget, [outcomes]."""

    @property
    def reward(self) -> float:
        """Mean reward per user."""
        return float(self.outcomes[0])

    @property
    def cost(self) -> float:
        """Mean cost per user of the first budget."""
        return float(self.outcomes[1])

    @property
    def costs(self) -> FloatArray:
        """Mean cost per user of every budget, [budgets]."""
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
    if (np.abs(totals - 1) > _POLICY_TOLERANCE).any():
        raise UsageError("the probabilities of a policy do not sum to 1 in some state")
    return np.array(np.broadcast_to(table / totals, shape))

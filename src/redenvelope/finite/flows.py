"""Linear programs over the flows of users through steps, states and actions, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ProblemError
from redenvelope.finite.problem import FiniteProblem

__all__ = ["FlowProgram", "LeastExcess", "LinearProgramMethod", "OptimalFlows"]

FloatArray = NDArray[np.float64]
LinearProgramMethod = Literal["highs-ipm", "highs-ds", "highs"]

# HiGHS accepts nothing finer; its default of 1e-7 would show in the eighth digit of the reward.
_FEASIBILITY_TOLERANCE = 1e-10
# A dual of the excess smaller than this share of its greatest possible value is the solver's rounding.
_BINDING_SHARE = 1e-7


class OptimalFlows(NamedTuple):
    """The best flows within budgets."""

    flows: FloatArray
    """Share of users at each step in each state with each action, [steps, states, actions]."""
    duals: FloatArray
    """[budgets]."""


class LeastExcess(NamedTuple):
    """The flows closest to budgets that cannot all be kept."""

    flows: FloatArray
    """[steps, states, actions]."""
    amounts: FloatArray
    """Cost above each budget, [budgets]."""
    total: float
    """Sum over budgets of the excess as a share of the budget."""
    binding: NDArray[np.bool_]
    """Which budgets would lessen the total if they were larger, [budgets]."""


@dataclass(frozen=True, eq=False)
class FlowProgram:
    """The flows that a problem allows: who leaves a state came to it."""

    problem: FiniteProblem
    method: LinearProgramMethod

    def greatest_reward(self, budgets: FloatArray) -> OptimalFlows | None:
        """The flows of greatest reward with costs of at most `budgets` [budgets]; None where there are none."""
        limited = np.isfinite(budgets)
        result = self._solve(-self._outcomes[0], self._outcomes[1:][limited], budgets[limited], self._balance)
        if result.x is None:
            return None
        duals = np.zeros(len(budgets))
        duals[limited] = np.maximum(0.0, -result.ineqlin.marginals)
        return OptimalFlows(self._flows(result.x), duals)

    def least_excess(self, budgets: FloatArray) -> LeastExcess:
        """The flows with the least total of excesses over `budgets` [budgets], each as a share of its budget."""
        from scipy import sparse

        limited = np.flatnonzero(np.isfinite(budgets))
        costs = self._outcomes[1:][limited]
        # A budget of zero has no shares: its unit is the most that a user could cost.
        most = np.abs(self.problem.costs).max(axis=(1, 2)) * self.problem.steps
        units = np.where(budgets == 0, np.where(most > 0, most, 1.0), np.abs(budgets))[limited]
        objective = np.concatenate([np.zeros(costs.shape[1]), 1 / units])
        rows = np.concatenate([costs, -np.eye(len(limited))], axis=1)
        balance = sparse.hstack([self._balance, sparse.csr_array((self._balance.shape[0], len(limited)))]).tocsr()
        result = self._solve(objective, rows, budgets[limited], balance)
        if result.x is None:
            raise ProblemError(f"HiGHS found no solution ({result.message}); try another method or rescale costs")
        amounts, binding = np.zeros(len(budgets)), np.zeros(len(budgets), dtype=bool)
        amounts[limited] = np.maximum(0.0, result.x[-len(limited) :])
        binding[limited] = -result.ineqlin.marginals * units > _BINDING_SHARE
        total = float((amounts[limited] / units).sum())
        return LeastExcess(self._flows(result.x[: -len(limited)]), amounts, total, binding)

    def _solve(self, objective: FloatArray, rows: FloatArray, limits: FloatArray, balance: Any) -> Any:
        """What scipy says of the least objective [variables] with rows [budgets, variables] of at most the limits."""
        from scipy.optimize import linprog  # costs more to import than the rest of the package

        arriving = np.zeros((self.problem.steps, self.problem.states))
        arriving[0] = self.problem.initial
        options = {
            "primal_feasibility_tolerance": _FEASIBILITY_TOLERANCE,
            "dual_feasibility_tolerance": _FEASIBILITY_TOLERANCE,
        }
        return linprog(
            objective,
            A_ub=rows,
            b_ub=limits,
            A_eq=balance,
            b_eq=arriving.reshape(-1),
            method=self.method,
            options=options,
        )

    @cached_property
    def _pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """State and action of each pair that is allowed, both [pairs]."""
        state, action = np.nonzero(self.problem.allowed)
        return state, action

    @cached_property
    def _outcomes(self) -> FloatArray:
        """Reward and costs of each variable, [outcomes, steps·pairs]."""
        state, action = self._pairs
        return np.tile(self.problem.outcomes[:, state, action], self.problem.steps)

    @cached_property
    def _balance(self) -> Any:
        """Users who leave a state at a step minus users who came to it, sparse [steps·states, steps·pairs]."""
        from scipy import sparse

        problem, (state, action) = self.problem, self._pairs
        pairs = len(state)
        leaving = sparse.csr_array((np.ones(pairs), (state, np.arange(pairs))), shape=(problem.states, pairs))
        coming = sparse.csr_array(problem.transitions[state, action].T)
        earlier = sparse.eye_array(problem.steps, k=-1)
        return (sparse.kron(sparse.eye_array(problem.steps), leaving) - sparse.kron(earlier, coming)).tocsr()

    def _flows(self, variables: FloatArray) -> FloatArray:
        """[steps·pairs] -> [steps, states, actions]."""
        problem, (state, action) = self.problem, self._pairs
        flows = np.zeros((problem.steps, problem.states, problem.actions))
        flows[:, state, action] = np.maximum(variables, 0).reshape(problem.steps, -1)
        return flows

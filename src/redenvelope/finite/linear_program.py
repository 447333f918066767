"""The exact optimum of a finite problem under budgets: a linear program over occupancy measures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ProblemError, UsageError
from redenvelope.finite.problem import FiniteProblem, Value, evaluate, exact_price, finite_policy, occupancy
from redenvelope.wording import counted

LinearProgramStatus = Literal["converged", "budget_slack", "budget_infeasible"]

# The solver's optimum and exact backward induction agree this closely; below it, two values are equal.
_RELATIVE_TOLERANCE = 1e-9
# A state with less mass than this is decided by the price alone: its share is the solver's rounding.
_REACHED_MASS = 1e-9


@dataclass(frozen=True, eq=False)
class LinearProgramSolution:
    """The best policy whose mean costs stay within the budgets."""

    status: LinearProgramStatus
    """budget_slack: more of any budget would buy nothing. budget_infeasible: no policy is within all budgets; this one
    has the least total excess, each as a share of its budget, and among those the greatest reward."""
    value: Value
    """Mean reward and costs per user of `policy`, evaluated exactly."""
    duals: FloatArray
    """Reward that one more unit of each budget buys, [budgets]: 0 where it is slack. When infeasible, infinite for
    the budgets that cannot be met together and 0 for the others."""
    policy: FloatArray
    """Probability of each action, [steps, states, actions]."""
    occupancy: FloatArray
    """Share of users at each step in each state with each action, [steps, states, actions]."""

    @property
    def reward(self) -> float:
        """Mean reward per user."""
        return self.value.reward

    @property
    def cost(self) -> float:
        """Mean cost per user of the first budget; when one budget is infeasible, the smallest feasible one."""
        return self.value.cost

    @property
    def costs(self) -> FloatArray:
        """Mean cost per user of every budget, [budgets]."""
        return self.value.costs

    @property
    def dual(self) -> float:
        """Reward that one more unit of the first budget buys."""
        return float(self.duals[0])


def linear_program(
    problem: FiniteProblem, budgets: ArrayLike, method: LinearProgramMethod = "highs-ipm"
) -> LinearProgramSolution:
    """The policy of greatest mean reward with mean costs of at most `budgets`, a number or [budgets], by HiGHS."""
    limits = _checked(problem, budgets)
    free = np.zeros(problem.budgets)
    best = finite_policy(problem, free).table
    greatest = evaluate(problem, best)
    if (greatest.costs <= limits).all():
        return _solution(problem, "budget_slack", free, best)
    least = least_costs(problem)
    possible = (limits >= least - _RELATIVE_TOLERANCE * np.maximum(1.0, np.abs(least))).all()
    if problem.budgets == 1 and not possible:
        infinite = np.array([np.inf])
        return _solution(problem, "budget_infeasible", infinite, finite_policy(problem, infinite).table)
    program = FlowProgram(problem, method)
    found = program.greatest_reward(np.maximum(limits, least)) if possible else None
    if found is None:
        return _least_excess(problem, program, limits)
    solution = _solution(problem, "converged", found.duals, _policy(problem, found.flows, found.duals))
    # Several policies may earn the greatest reward, and the solver may have found one that fits.
    if solution.reward >= greatest.reward - _RELATIVE_TOLERANCE * max(1.0, abs(greatest.reward)):
        return _solution(problem, "budget_slack", free, solution.policy)
    return solution


def least_costs(problem: FiniteProblem) -> FloatArray:
    """The least mean cost any policy can have for each budget alone, [budgets]: planned over all steps, not greedy."""
    alone = np.where(np.eye(problem.budgets, dtype=bool), np.inf, 0.0)
    return np.diagonal(exact_price(problem)(alone)[1:]).copy()


def _least_excess(problem: FiniteProblem, program: FlowProgram, limits: FloatArray) -> LinearProgramSolution:
    """The solution where the solver found no policy within the budgets [budgets]: how far from them it has to be."""
    excess = program.least_excess(limits)
    # Of the policies with these excesses the one that earns the most; the first one found if rounding hides them.
    found = program.greatest_reward(limits + excess.amounts)
    if excess.total <= _RELATIVE_TOLERANCE:
        if found is None:
            raise ProblemError("HiGHS found no solution, though there is one; try another method or rescale costs")
        return _solution(problem, "converged", found.duals, _policy(problem, found.flows, found.duals))
    duals = np.where(excess.binding, np.inf, 0.0)
    flows = excess.flows if found is None else found.flows
    return _solution(problem, "budget_infeasible", duals, _policy(problem, flows, duals))


def _policy(problem: FiniteProblem, flows: FloatArray, duals: FloatArray) -> FloatArray:
    """Probabilities of flows, both [steps, states, actions]."""
    # The solver leaves states without users undecided; there the policy of the price is as good as any.
    fallback = finite_policy(problem, duals).table
    mass = flows.sum(axis=2, keepdims=True)
    return np.where(mass > _REACHED_MASS, flows / np.maximum(mass, _REACHED_MASS), fallback)


def _solution(
    problem: FiniteProblem, status: LinearProgramStatus, duals: FloatArray, policy: FloatArray
) -> LinearProgramSolution:
    return LinearProgramSolution(status, evaluate(problem, policy), duals, policy, occupancy(problem, policy))


def _checked(problem: FiniteProblem, budgets: ArrayLike) -> FloatArray:
    limits = np.atleast_1d(np.asarray(budgets, dtype=np.float64))
    if limits.shape != (problem.budgets,):
        raise UsageError(
            f"this problem has {counted(problem.budgets, 'budget')}, so budgets must be that many numbers, "
            f"not of shape {limits.shape}"
        )
    if not (limits > -np.inf).all():
        raise UsageError("a budget is not a number; give the mean cost per user that it allows (infinity for no limit)")
    return limits


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
    """The flows closest to budgets that cannot all be met."""

    flows: FloatArray
    """[steps, states, actions]."""
    amounts: FloatArray
    """Cost above each budget, [budgets]."""
    total: float
    """Sum over budgets of the excess as a share of the budget."""
    binding: NDArray[np.bool_]
    """Which budgets would reduce the total if they were larger, [budgets]."""


@dataclass(frozen=True, eq=False)
class FlowProgram:
    """The linear program over flows of users through steps, states and actions, solved by HiGHS."""

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
        # A budget of zero has no shares: its unit is the largest possible cost per user.
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
        """Minimize an objective [variables] with rows [budgets, variables] of at most the limits."""
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

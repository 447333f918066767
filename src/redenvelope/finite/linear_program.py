"""The exact optimum of a finite problem under budgets: a linear program over occupancy measures (`linear_program`)."""

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

# The solver's optimum and exact backward induction agree to this tolerance; closer values count as equal.
_RELATIVE_TOLERANCE = 1e-9
# Flows through a state with less mass are rounding: there the optimal policy at the duals decides.
_REACHED_MASS = 1e-9


@dataclass(frozen=True, eq=False)
class LinearProgramSolution:
    """The best policy whose mean costs stay within the budgets."""

    status: LinearProgramStatus
    """budget_slack: more of any budget would buy nothing. budget_infeasible: no policy is within all budgets; this one
    has the smallest total excess, each as a share of its budget, and among such policies the greatest reward."""
    value: Value
    """Mean reward and costs per user of `policy`, evaluated exactly."""
    duals: FloatArray
    """Shadow price of each budget, [budgets]: 0 if it is slack. If infeasible, infinity for the budgets that cannot be
    met together and 0 for the others."""
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
        """Shadow price of the first budget."""
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
    # Several policies may earn the greatest reward, and the solver may have found one within the budgets.
    if solution.reward >= greatest.reward - _RELATIVE_TOLERANCE * max(1.0, abs(greatest.reward)):
        return _solution(problem, "budget_slack", free, solution.policy)
    return solution


def least_costs(problem: FiniteProblem) -> FloatArray:
    """The smallest mean cost of any policy, for each budget alone, [budgets]: planned over all steps, not greedy."""
    alone = np.where(np.eye(problem.budgets, dtype=bool), np.inf, 0.0)
    return np.diagonal(exact_price(problem)(alone)[1:]).copy()


def _least_excess(problem: FiniteProblem, program: FlowProgram, limits: FloatArray) -> LinearProgramSolution:
    """The solution if the solver found no policy within the budgets [budgets]: the smallest possible excess."""
    excess = program.least_excess(limits)
    # The policy with these excesses that earns the most; the one already found if rounding hides it.
    found = program.greatest_reward(limits + excess.amounts)
    if excess.total <= _RELATIVE_TOLERANCE:
        if found is None:
            raise ProblemError("HiGHS found no solution, though there is one; try another method or rescale costs")
        return _solution(problem, "converged", found.duals, _policy(problem, found.flows, found.duals))
    duals = np.where(excess.binding, np.inf, 0.0)
    flows = excess.flows if found is None else found.flows
    return _solution(problem, "budget_infeasible", duals, _policy(problem, flows, duals))


def _policy(problem: FiniteProblem, flows: FloatArray, duals: FloatArray) -> FloatArray:
    """The action probabilities of flows, [steps, states, actions] each."""
    # Flows do not determine the policy in states without users: there any policy will do, such as that of the duals.
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
# A dual of the excess below this share of its largest possible value is the solver's rounding.
_BINDING_SHARE = 1e-7


class OptimalFlows(NamedTuple):
    """The flows (occupancy measures) of greatest reward within budgets."""

    flows: FloatArray
    """Share of users at each step in each state with each action, [steps, states, actions]."""
    duals: FloatArray
    """[budgets]."""


class LeastExcess(NamedTuple):
    """The flows with the smallest total excess over budgets that cannot all be met."""

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
        """The flows of greatest reward with costs of at most `budgets` [budgets]; None if HiGHS finds none."""
        limited = np.isfinite(budgets)
        result = self._solve(-self._outcomes[0], self._outcomes[1:][limited], budgets[limited], self._balance)
        if result.x is None:
            return None
        duals = np.zeros(len(budgets))
        duals[limited] = np.maximum(0.0, -result.ineqlin.marginals)
        return OptimalFlows(self._flows(result.x), duals)

    def least_excess(self, budgets: FloatArray) -> LeastExcess:
        """The flows with the smallest total excess over `budgets` [budgets], each as a share of its budget."""
        from scipy import sparse

        limited = np.flatnonzero(np.isfinite(budgets))
        costs = self._outcomes[1:][limited]
        # A budget of zero has no shares, so its unit is the largest possible cost per user.
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
        """Minimise an objective [variables] subject to rows [budgets, variables] at most `limits` and the balance."""
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
        """State and action of each allowed pair, [pairs] each."""
        state, action = np.nonzero(self.problem.allowed)
        return state, action

    @cached_property
    def _outcomes(self) -> FloatArray:
        """Reward and costs of each variable, [outcomes, steps·pairs]."""
        state, action = self._pairs
        return np.tile(self.problem.outcomes[:, state, action], self.problem.steps)

    @cached_property
    def _balance(self) -> Any:
        """Flow out of each state and step minus flow into it, sparse [steps·states, steps·pairs]."""
        from scipy import sparse

        problem, (state, action) = self.problem, self._pairs
        pairs = len(state)
        leaving = sparse.csr_array((np.ones(pairs), (state, np.arange(pairs))), shape=(problem.states, pairs))
        coming = sparse.csr_array(problem.transitions[state, action].T)
        earlier = sparse.eye_array(problem.steps, k=-1)
        return (sparse.kron(sparse.eye_array(problem.steps), leaving) - sparse.kron(earlier, coming)).tocsr()

    def _flows(self, variables: FloatArray) -> FloatArray:
        """The program's variables as flows: [steps·pairs] -> [steps, states, actions]."""
        problem, (state, action) = self.problem, self._pairs
        flows = np.zeros((problem.steps, problem.states, problem.actions))
        flows[:, state, action] = np.maximum(variables, 0).reshape(problem.steps, -1)
        return flows

"""The exact optimum of a finite problem under budgets: a linear program over occupancy measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import ProblemError, UsageError
from redenvelope.finite.evaluate import Value, evaluate, occupancy
from redenvelope.finite.flows import FlowProgram, LinearProgramMethod
from redenvelope.finite.induction import exact_price, finite_policy
from redenvelope.finite.problem import FiniteProblem

__all__ = ["LinearProgramSolution", "LinearProgramStatus", "least_costs", "linear_program"]

FloatArray = NDArray[np.float64]
LinearProgramStatus = Literal["converged", "budget_slack", "budget_infeasible"]

# The solver's optimum and exact backward induction agree this closely; below it, two values are equal.
_RELATIVE_TOLERANCE = 1e-9
# A state with less mass than this is decided by the price alone: its share is the solver's rounding.
_REACHED_MASS = 1e-9


@dataclass(frozen=True, eq=False)
class LinearProgramSolution:
    """The best policy whose mean costs stay within the budgets."""

    status: LinearProgramStatus
    """budget_slack: more of any budget would buy nothing. budget_infeasible: no policy keeps all budgets; this one
    has the least total of excesses, each as a share of its budget, and earns the most that these excesses allow."""
    value: Value
    """Mean reward and costs a user of `policy`, evaluated exactly."""
    duals: FloatArray
    """Reward that one more unit of each budget buys, [budgets]: 0 where it is slack. When infeasible, infinite for
    the budgets that cannot be kept together and 0 for the others."""
    policy: FloatArray
    """Probability of each action, [steps, states, actions]."""
    occupancy: FloatArray
    """Share of users at each step in each state with each action, [steps, states, actions]."""

    @property
    def reward(self) -> float:
        """Mean reward a user."""
        return self.value.reward

    @property
    def cost(self) -> float:
        """Mean cost a user of the first budget; when one budget is infeasible, the least that would do."""
        return self.value.cost

    @property
    def costs(self) -> FloatArray:
        """Mean cost a user of every budget, [budgets]."""
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
            f"this problem has {problem.budgets} budget(s), so budgets must be that many numbers, "
            f"not of shape {limits.shape}"
        )
    if not (limits > -np.inf).all():
        raise UsageError("a budget is not a number; give the mean cost a user may have (infinity for no limit)")
    return limits

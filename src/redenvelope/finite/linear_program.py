"""The exact optimum of a finite problem under a budget: a linear program over occupancy measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ProblemError, UsageError
from redenvelope.finite.evaluate import evaluate, occupancy
from redenvelope.finite.problem import FiniteProblem

__all__ = ["LinearProgramSolution", "least_cost", "linear_program"]

FloatArray = NDArray[np.float64]
Method = Literal["highs-ipm", "highs-ds", "highs"]

# HiGHS accepts nothing finer; its default of 1e-7 would show in the eighth digit of the reward.
_FEASIBILITY_TOLERANCE = 1e-10
# The solver's optimum and exact backward induction agree this closely; below it, two values are equal.
_RELATIVE_TOLERANCE = 1e-9
# A state with less mass than this is decided by the price alone: its share is the solver's rounding.
_REACHED_MASS = 1e-9


@dataclass(frozen=True, eq=False)
class LinearProgramSolution:
    """The best policy whose mean cost stays within the budget."""

    status: Literal["converged", "budget_slack", "budget_infeasible"]
    """budget_slack: more budget would buy nothing. budget_infeasible: the policy is the cheapest one."""
    reward: float
    """Mean reward a user of `policy`, evaluated exactly."""
    cost: float
    """Mean cost a user of `policy`, evaluated exactly; when infeasible, the least budget that would do."""
    dual: float
    """Reward that one more unit of budget buys; 0 when slack, infinite when infeasible."""
    policy: FloatArray
    """Probability of each action, [steps, states, actions]."""
    occupancy: FloatArray
    """Share of users at each step in each state with each action, [steps, states, actions]."""


def linear_program(problem: FiniteProblem, budget: float, method: Method = "highs-ipm") -> LinearProgramSolution:
    """The policy of greatest mean reward with a mean cost of at most `budget`, by HiGHS."""
    if np.isnan(budget):
        raise UsageError("the budget is not a number; give the mean cost a user may have")
    cheapest, negative_cost = _plan(problem, 0.0, 1.0)
    best, greatest_reward = _plan(problem, 1.0, 0.0)
    least = -negative_cost
    if budget < least - _RELATIVE_TOLERANCE * max(1.0, abs(least)):
        return _solution(problem, "budget_infeasible", np.inf, cheapest)
    if evaluate(problem, best).cost <= budget:
        return _solution(problem, "budget_slack", 0.0, best)
    flows, dual = _solve(problem, max(budget, least), method)
    # The solver leaves states without users undecided; there the policy of the price is as good as any.
    fallback, _ = _plan(problem, 1.0, dual)
    mass = flows.sum(axis=2, keepdims=True)
    policy = np.where(mass > _REACHED_MASS, flows / np.maximum(mass, _REACHED_MASS), fallback)
    solution = _solution(problem, "converged", dual, policy)
    # Several policies may earn the greatest reward, and the solver may have found one that fits.
    if solution.reward >= greatest_reward - _RELATIVE_TOLERANCE * max(1.0, abs(greatest_reward)):
        return _solution(problem, "budget_slack", 0.0, policy)
    return solution


def least_cost(problem: FiniteProblem) -> float:
    """The least mean cost any policy can have: planned over all steps, not greedy step by step."""
    return -_plan(problem, 0.0, 1.0)[1]


def _solve(problem: FiniteProblem, budget: float, method: Method) -> tuple[FloatArray, float]:
    """Optimal flows [steps, states, actions] and the dual of the budget row."""
    from scipy.optimize import linprog  # costs more to import than the rest of the package

    state, action = np.nonzero(problem.allowed)
    rewards = np.tile(problem.rewards[state, action], problem.steps)
    costs = np.tile(problem.costs[state, action], problem.steps)
    balance = np.zeros((problem.steps, problem.states))
    balance[0] = problem.initial
    options = {
        "primal_feasibility_tolerance": _FEASIBILITY_TOLERANCE,
        "dual_feasibility_tolerance": _FEASIBILITY_TOLERANCE,
    }
    result = linprog(
        -rewards,
        A_ub=costs[None, :],
        b_ub=[budget],
        A_eq=_balance_matrix(problem, state, action),
        b_eq=balance.reshape(-1),
        method=method,
        options=options,
    )
    if result.x is None:
        raise ProblemError(f"HiGHS found no solution ({result.message}); try another method or rescale costs")
    flows = np.zeros((problem.steps, problem.states, problem.actions))
    flows[:, state, action] = np.maximum(result.x, 0).reshape(problem.steps, -1)
    return flows, max(0.0, -float(result.ineqlin.marginals[0]))


def _balance_matrix(problem: FiniteProblem, state: NDArray[np.intp], action: NDArray[np.intp]) -> Any:
    """Users who leave a state at a step minus users who came to it, sparse [steps·states, steps·pairs]."""
    from scipy import sparse

    pairs = len(state)
    leaving = sparse.csr_array((np.ones(pairs), (state, np.arange(pairs))), shape=(problem.states, pairs))
    coming = sparse.csr_array(problem.transitions[state, action].T)
    steps = problem.steps
    earlier = sparse.eye_array(steps, k=-1)
    return (sparse.kron(sparse.eye_array(steps), leaving) - sparse.kron(earlier, coming)).tocsr()


def _plan(problem: FiniteProblem, reward_weight: float, cost_weight: float) -> tuple[FloatArray, float]:
    """Policy [steps, states, actions] and value of the greatest weighted reward minus weighted cost."""
    gains = reward_weight * problem.rewards - cost_weight * problem.costs
    gains = np.where(problem.allowed, gains, -np.inf)
    policy = np.zeros((problem.steps, problem.states, problem.actions))
    values = np.zeros(problem.states)
    for step in reversed(range(problem.steps)):
        action_values = gains + problem.transitions @ values
        np.put_along_axis(policy[step], action_values.argmax(axis=1)[:, None], 1.0, axis=1)
        values = action_values.max(axis=1)
    return policy, float(problem.initial @ values)


def _solution(
    problem: FiniteProblem,
    status: Literal["converged", "budget_slack", "budget_infeasible"],
    dual: float,
    policy: FloatArray,
) -> LinearProgramSolution:
    cost, reward = evaluate(problem, policy)[:2]
    return LinearProgramSolution(status, reward, cost, dual, policy, occupancy(problem, policy))

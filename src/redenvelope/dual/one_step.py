"""The exact optimum of a campaign of one step: one action per user, one budget, millions of users. The linear
relaxation of this multiple-choice knapsack problem is solved by a secant on the price (`allocate_one_step`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray, IndexArray
from redenvelope.dual.solution import DualStatus
from redenvelope.errors import ProblemError, UsageError

# Users priced at once: rewards, costs and scores of a block stay in the second-level cache.
_BLOCK_USERS = 4096
# The optimum of a sample gives a first bracket: the sample's largest size, its part of all users, and the
# audience from which on it saves more than it costs.
_SAMPLE_USERS = 16384
_SAMPLE_PART = 16
_FEWEST_USERS = 8192
# Half-width of that bracket, in standard errors of the sample's mean cost. A miss only costs time.
_SAMPLE_DEVIATIONS = 4.0
# Gains smaller than this share of the total are rounding.
_ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class OneStepAllocation:
    """An action for every user. Costs and rewards are means per user, the marginal user's share included."""

    status: DualStatus
    budget: float
    dual: float
    """Shadow price: the reward that one more unit of budget buys."""
    cost: float
    reward: float
    choices: IndexArray
    """Action of each user, [users]; these alone are within the budget."""
    marginal_user: int | None
    """The one user whose action is drawn at random, so that the budget is spent exactly; None if there is none."""
    marginal_choice: int | None
    """That user's dearer action; the other is in `choices`."""
    marginal_share: float
    """Probability of the dearer action."""
    least_budget: float | None
    """The smallest feasible budget, if this one is infeasible."""
    message: str
    """The outcome in a sentence."""


class _Side(NamedTuple):
    """The plan at one dual."""

    dual: float
    choices: IndexArray
    """[users]."""
    cost: float
    """Sum over users."""
    reward: float
    """Sum over users."""


def allocate_one_step(rewards: ArrayLike, costs: ArrayLike, budget: float) -> OneStepAllocation:
    """Choose one action per user, [users, actions], for the greatest reward within a mean cost per user.

    A discrete secant on the price evaluates only users whose action is still open: an action that is best at both ends
    of the bracket is best in between. The result, with one user's action drawn at random, is the optimum of the linear
    program.
    """
    rewards, costs = _checked(rewards, costs, budget)
    users, budget = len(rewards), float(budget)
    sides = _guess(rewards, costs, budget)
    if sides is None:
        low, high = _price(rewards, costs, [0.0, np.inf])
        rounding = _ROUNDING * users * abs(budget)
        if high.cost > budget * users + rounding:
            return _settled(DualStatus.BUDGET_INFEASIBLE, rewards, costs, budget)
        if low.cost <= budget * users + rounding:
            return _settled(DualStatus.BUDGET_SLACK, rewards, costs, budget)
        sides = low, high
    dual, *edge = _secant(rewards, costs, *sides, budget * users)
    if dual <= 0:
        # The budget only decides between actions of equal reward: with the cheapest of them it is slack.
        return _settled(DualStatus.BUDGET_SLACK, rewards, costs, budget)
    return _filled(rewards, costs, budget, dual, *edge)


def _guess(rewards: FloatArray, costs: FloatArray, budget: float) -> tuple[_Side, _Side] | None:
    """A narrow bracket for all users from the optimum of a sample; None if the sample does not help."""
    users = len(rewards)
    if users < _FEWEST_USERS:
        return None
    size = min(_SAMPLE_USERS, users // _SAMPLE_PART)
    # Random, because users may be sorted; with a fixed seed, so that results repeat.
    sample = np.sort(np.random.default_rng(0).integers(0, users, size))
    few_rewards, few_costs = rewards[sample], costs[sample]
    margin = _SAMPLE_DEVIATIONS * float(few_costs.std()) / np.sqrt(size)
    around = [allocate_one_step(few_rewards, few_costs, budget + side * margin).dual for side in (1, -1)]
    if not 0 < around[0] < around[1] < np.inf:
        return None
    low, high = _price(rewards, costs, around)
    return (low, high) if low.cost > budget * users >= high.cost else None


def _secant(
    rewards: FloatArray, costs: FloatArray, low: _Side, high: _Side, total: float
) -> tuple[float, IndexArray, NDArray[np.intp], IndexArray]:
    """The dual, the cheaper plan [users], and the open users [open] with their dearer actions [open].

    At the dual the open users are indifferent between their two actions.
    """
    plan = high.choices
    open_users = np.flatnonzero(low.choices != plan)
    dearer = low.choices[open_users]
    rewards, costs = rewards.take(open_users, axis=0), costs.take(open_users, axis=0)
    while True:
        # At this slope the two plans have equal value; a better plan there is a new corner between them.
        slope = (low.reward - high.reward) / (low.cost - high.cost)
        if open_users.size == 0 or not low.dual < slope < high.dual:
            return slope, plan, open_users, dearer
        (middle,) = _price(rewards, costs, [slope])
        # Differences over the open users alone: those of the totals would be lost in rounding.
        extra_cost = middle.cost - float(_chosen(costs, dearer).sum())
        extra_reward = middle.reward - float(_chosen(rewards, dearer).sum())
        if extra_reward - slope * extra_cost <= _ROUNDING * (abs(low.reward) + slope * abs(low.cost)):
            return slope, plan, open_users, dearer
        corner = middle._replace(cost=low.cost + extra_cost, reward=low.reward + extra_reward)
        if corner.cost > total:
            low, dearer = corner, middle.choices
        else:
            high = corner
            plan[open_users] = middle.choices
        still = np.flatnonzero(dearer != plan[open_users])
        open_users, dearer = open_users[still], dearer[still]
        rewards, costs = rewards.take(still, axis=0), costs.take(still, axis=0)


def _filled(
    rewards: FloatArray,
    costs: FloatArray,
    budget: float,
    dual: float,
    plan: IndexArray,
    open_users: NDArray[np.intp],
    dearer: IndexArray,
) -> OneStepAllocation:
    """Give open users their dearer action, in order, until the budget is spent; the last one's action is drawn.

    All of them gain `dual` per unit of cost, so any order is optimal.
    """
    users = len(rewards)
    cost, reward = float(_chosen(costs, plan).sum()), float(_chosen(rewards, plan).sum())
    extra_costs = costs[open_users, dearer] - costs[open_users, plan[open_users]]
    extra_rewards = rewards[open_users, dearer] - rewards[open_users, plan[open_users]]
    spent = np.cumsum(extra_costs)
    room = budget * users - cost
    fits = int(np.searchsorted(spent, room, side="right"))
    plan[open_users[:fits]] = dearer[:fits]
    cost += float(extra_costs[:fits].sum())
    reward += float(extra_rewards[:fits].sum())
    marginal: tuple[int | None, int | None, float] = (None, None, 0.0)
    if fits < len(open_users) and budget * users > cost:
        share = (budget * users - cost) / float(extra_costs[fits])
        marginal = int(open_users[fits]), int(dearer[fits]), share
        cost += share * float(extra_costs[fits])
        reward += share * float(extra_rewards[fits])
    cost, reward = cost / users, reward / users
    message = (
        f"The allocation spends {cost:.6g} of {budget:.6g} per user and earns {reward:.6g}; "
        f"one more unit of budget would earn about {dual:.4g} more."
    )
    return OneStepAllocation(DualStatus.CONVERGED, budget, dual, cost, reward, plan, *marginal, None, message)


def _settled(status: DualStatus, rewards: FloatArray, costs: FloatArray, budget: float) -> OneStepAllocation:
    """The allocation of a slack or infeasible budget, without search; ties go to lower cost, or to higher reward."""
    if status is DualStatus.BUDGET_SLACK:
        ties = rewards == rewards.max(axis=1, keepdims=True)
        choices = np.where(ties, costs, np.inf).argmin(axis=1)
    else:
        ties = costs == costs.min(axis=1, keepdims=True)
        choices = np.where(ties, rewards, -np.inf).argmax(axis=1)
    cost, reward = float(_chosen(costs, choices).mean()), float(_chosen(rewards, choices).mean())
    if status is DualStatus.BUDGET_SLACK:
        message = (
            f"The budget of {budget:.6g} per user is at least what the best allocation can use: it earns "
            f"{reward:.6g} for {cost:.6g}, and more budget would buy nothing."
        )
        return OneStepAllocation(status, budget, 0.0, cost, reward, choices, None, None, 0.0, None, message)
    message = (
        f"No allocation is as cheap as {budget:.6g} per user: the cheapest one costs {cost:.6g}, "
        "which is the least budget that would do."
    )
    return OneStepAllocation(status, budget, np.inf, cost, reward, choices, None, None, 0.0, cost, message)


def _price(rewards: FloatArray, costs: FloatArray, duals: Sequence[float]) -> list[_Side]:
    """The plan of every user at each dual, in one pass over blocks of users, [users, actions]."""
    users = len(rewards)
    choices = np.empty((len(duals), users), dtype=np.intp)
    sums = np.zeros((len(duals), 2))
    for start in range(0, users, _BLOCK_USERS):
        block_rewards = rewards[start : start + _BLOCK_USERS]
        block_costs = costs[start : start + _BLOCK_USERS]
        for position, dual in enumerate(duals):
            chosen = _best(block_rewards, block_costs, dual)
            choices[position, start : start + _BLOCK_USERS] = chosen
            sums[position] += _chosen(block_costs, chosen).sum(), _chosen(block_rewards, chosen).sum()
    return [
        _Side(float(dual), choices[position], float(sums[position, 0]), float(sums[position, 1]))
        for position, dual in enumerate(duals)
    ]


def _best(rewards: FloatArray, costs: FloatArray, dual: float) -> IndexArray:
    """The best action of each user at a price, [users]; the first of equals."""
    if np.isinf(dual):
        return np.asarray(costs.argmin(axis=1))
    scores = rewards - dual * costs if dual > 0 else rewards
    return np.asarray(scores.argmax(axis=1))


def _chosen(values: FloatArray, choices: IndexArray) -> FloatArray:
    """Values of the chosen actions: [users, actions], [users] -> [users]."""
    # Indexing the flattened array is several times faster than indexing rows and columns.
    return values.reshape(-1).take(np.arange(0, values.size, values.shape[1]) + choices)


def _checked(rewards: ArrayLike, costs: ArrayLike, budget: float) -> tuple[FloatArray, FloatArray]:
    if not np.isfinite(budget):
        raise UsageError(f"the budget must be a number (the mean cost per user), not {budget}")
    checked = [np.ascontiguousarray(values, dtype=np.float64) for values in (rewards, costs)]
    if checked[0].shape != checked[1].shape or checked[0].ndim != 2 or 0 in checked[0].shape:
        raise ProblemError(
            "rewards and costs must both be [users, actions] with at least one user and action, "
            f"not {checked[0].shape} and {checked[1].shape}"
        )
    for name, values in zip(("rewards", "costs"), checked, strict=True):
        # A sum is finite only if all its terms are, and costs one pass instead of two.
        if not np.isfinite(values.sum()) and not np.isfinite(values).all():
            user, action = np.argwhere(~np.isfinite(values))[0]
            raise ProblemError(f"{name} of user {user} and action {action} is not a finite number")
    return checked[0], checked[1]

"""Campaigns over finite problems (`FiniteCampaign`), random problems, and the paper's two-step problem; the optimum is
that of the linear program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from redenvelope.arrays import FloatArray, IndexArray
from redenvelope.errors import ProblemError, UsageError
from redenvelope.finite.linear_program import linear_program
from redenvelope.finite.problem import FiniteProblem, Value, evaluate
from redenvelope.simulate.campaign import Decide, Optimum, Run, ask, bisect_price, draw_actions, summarise_run


@dataclass(frozen=True, eq=False)
class FiniteCampaign:
    """Users who move through the states of a finite problem, with noise on reward and costs.

    Rewards are Gaussian. Costs have the given mean and variance and are gamma distributed, because spent money is never
    negative. If the problem has several budgets, the log's column `cost` is the cost of the first, and `cost_2`,
    `cost_3`, … are those of the others.
    """

    problem: FiniteProblem
    reward_variance: float = 0.1
    cost_variance: float = 0.1
    behaviour: FloatArray | None = None
    """Behaviour policy, [states, actions]; None is uniform over the allowed actions."""

    def __post_init__(self) -> None:
        if min(self.reward_variance, self.cost_variance) < 0:
            raise ProblemError("reward_variance and cost_variance cannot be negative")
        evaluate(self.problem, self.logging_policy)

    @property
    def actions(self) -> tuple[str, ...]:
        """Labels of the actions, by increasing cost."""
        return tuple(f"a{action}" for action in range(self.problem.actions))

    @property
    def steps(self) -> int:
        """Decisions per user."""
        return self.problem.steps

    @cached_property
    def logging_policy(self) -> FloatArray:
        """Probability of each action in the log, [states, actions]."""
        if self.behaviour is not None:
            return np.asarray(self.behaviour, dtype=np.float64)
        return self._uniform_policy

    def log(self, users: int, seed: int) -> pl.DataFrame:
        """Columns user, step, action, propensity, reward, cost (cost_2, …), state; users who leave have fewer rows."""
        generator = np.random.default_rng(seed)
        walk = _Walk(self, users, generator)
        frames = []
        for step in range(self.steps):
            probabilities = self.logging_policy[walk.state]
            action = draw_actions(probabilities, generator)
            user, state = walk.user, walk.state
            outcomes = walk.advance(action)
            columns = {
                "user": user,
                "step": np.full(len(user), step),
                "action": np.array(self.actions)[action],
                "propensity": probabilities[np.arange(len(user)), action],
                **dict(zip(self._outcome_names, outcomes, strict=True)),
                "state": _labels(state),
            }
            frames.append(pl.DataFrame(columns))
        return pl.concat(frames).sort("user", "step")

    def run(self, decide: Decide, users: int, seed: int) -> Run:
        """Let a policy act on `users` users and sum their noisy outcomes."""
        generator = np.random.default_rng(seed)
        walk = _Walk(self, users, generator)
        totals = np.zeros((1 + self.problem.budgets, users))
        for step in range(self.steps):
            probabilities = self._ask(decide, walk.user, step, walk.state)
            user = walk.user
            totals[:, user] += walk.advance(draw_actions(probabilities, generator))
        return summarise_run(totals)

    def value(self, decide: Decide) -> Value:
        """The exact reward and costs of a policy, which is asked once for each reachable state of each step."""
        table = np.zeros((self.steps, self.problem.states, self.problem.actions))
        table[...] = self._uniform_policy
        reachable = self.problem.initial > 0
        for step in range(self.steps):
            state = np.flatnonzero(reachable)
            table[step, state] = self._ask(decide, state, step, state)
            flows = table[step, state][:, :, None] * self.problem.transitions[state]
            reachable = flows.any(axis=(0, 1))
        return evaluate(self.problem, table)

    def optimum(self, budget: float) -> Optimum:
        """The most any policy can earn within the budget, by the linear program."""
        self._require_one_budget()
        solution = linear_program(self.problem, budget)
        return Optimum(solution.status, solution.cost, solution.reward, solution.dual)

    def bandit(self, budget: float) -> Optimum:
        """See Campaign."""
        self._require_one_budget()
        problem, costs = self.problem, self.problem.costs[0]

        def price(dual: float) -> Value:
            gains = -costs if np.isinf(dual) else problem.rewards - dual * costs
            best = np.where(problem.allowed, gains, -np.inf).argmax(axis=1)
            return evaluate(problem, np.eye(problem.actions)[best])

        return bisect_price(price, budget)

    def uniform(self) -> Value:
        """Every allowed action equally likely."""
        return evaluate(self.problem, self._uniform_policy)

    def cheapest(self) -> Value:
        """Always the first action that is allowed."""
        return evaluate(self.problem, np.eye(self.problem.actions)[self.problem.allowed.argmax(axis=1)])

    def dearest(self) -> Value:
        """Always the last action that is allowed."""
        last = self.problem.actions - 1 - self.problem.allowed[:, ::-1].argmax(axis=1)
        return evaluate(self.problem, np.eye(self.problem.actions)[last])

    @cached_property
    def _uniform_policy(self) -> FloatArray:
        policy: FloatArray = self.problem.allowed / self.problem.allowed.sum(axis=1, keepdims=True)
        return policy

    @property
    def _outcome_names(self) -> list[str]:
        return ["reward", "cost", *(f"cost_{number}" for number in range(2, 1 + self.problem.budgets))]

    def _require_one_budget(self) -> None:
        if self.problem.budgets > 1:
            raise UsageError(
                f"this campaign has {self.problem.budgets} budgets, and this method supports one; use "
                "linear_program(campaign.problem, budgets)"
            )

    def _ask(self, decide: Decide, user: IndexArray, step: int, state: IndexArray) -> FloatArray:
        frame = pl.DataFrame({"user": user, "step": np.full(len(user), step), "state": _labels(state)})
        answer = ask(decide, frame, self.problem.actions)
        if (answer * ~self.problem.allowed[state]).any():
            raise UsageError("a policy gave probability to an action that its state does not allow")
        return answer


class _Walk:
    """The users still in the campaign and their states."""

    def __init__(self, campaign: FiniteCampaign, users: int, generator: np.random.Generator) -> None:
        if users < 1:
            raise UsageError(f"a campaign needs at least one user, not {users}")
        self.campaign, self.generator = campaign, generator
        self.user: IndexArray = np.arange(users)
        """Users still in the campaign, [users still in]."""
        self.state: IndexArray = draw_actions(np.tile(campaign.problem.initial, (users, 1)), generator)
        """Their states, [users still in]."""

    def advance(self, action: IndexArray) -> FloatArray:
        """Take actions [users still in], move on, and return the step's noisy outcomes, [outcomes, users still in]."""
        campaign, problem = self.campaign, self.campaign.problem
        outcomes = problem.outcomes[:, self.state, action]
        outcomes[0] += np.sqrt(campaign.reward_variance) * self.generator.standard_normal(len(action))
        for cost in outcomes[1:]:
            cost[:] = _spent(cost, campaign.cost_variance, self.generator)
        edges = problem.transitions[self.state, action].cumsum(axis=1)
        draws = self.generator.random(len(action))
        following = (draws[:, None] >= edges).sum(axis=1)
        # A draw above a row's total leaves, unless the row is complete and the excess mere rounding.
        complete = edges[:, -1] > 1 - 1e-9
        following = np.where(complete, np.minimum(following, problem.states - 1), following)
        stays = following < problem.states
        self.user, self.state = self.user[stays], following[stays]
        return outcomes


def random_problem(
    seed: int,
    states: int = 6,
    actions: int = 4,
    steps: int = 4,
    *,
    deterministic: bool = False,
    leaving: float = 0.0,
    ineligible: float = 0.0,
    budgets: int = 1,
) -> FiniteProblem:
    """A random finite problem whose costs rise with the action.

    `leaving` is the mean share of users who leave at a step, `ineligible` the share of forbidden actions. With several
    `budgets` the first one's costs rise with the action; those of the others have no order.
    """
    generator = np.random.default_rng(seed)
    shape = (states, actions)
    if deterministic:
        transitions = np.eye(states)[generator.integers(states, size=shape)]
    else:
        transitions = generator.dirichlet(np.full(states, 0.5), size=shape)
    staying = 1 - leaving * generator.uniform(0, 2, size=shape).clip(max=1 / max(leaving, 1e-12))
    eligible = generator.random(shape) >= ineligible
    eligible[np.arange(states), generator.integers(actions, size=states)] = True
    # Rewards mostly grow with the action, but not always: a higher cost need not earn more.
    rewards = generator.normal(size=(states, 1)) + generator.normal(0.3, 0.6, size=shape).cumsum(axis=1)
    # Bands that do not overlap keep the order of the actions' mean costs the same under any logging.
    rising = np.arange(actions) * 0.5 + generator.uniform(0.0, 0.45, size=shape)
    initial = generator.dirichlet(np.ones(states))
    # Drawn last, so that the rest of a problem is the same with any number of budgets.
    others = generator.uniform(0.0, 2.0, size=(budgets - 1, *shape))
    return FiniteProblem(
        rewards=rewards,
        costs=np.concatenate([rising[None], others]),
        transitions=transitions * staying[:, :, None],
        initial=initial,
        steps=steps,
        eligible=None if ineligible == 0 else eligible,
    )


def _spent(mean: FloatArray, variance: float, generator: np.random.Generator) -> FloatArray:
    """Costs with these means [rows] and this variance, none negative; a mean of zero is always zero."""
    if variance == 0:
        return mean
    safe = np.where(mean > 0, mean, 1.0)
    drawn: FloatArray = generator.gamma(safe**2 / variance, variance / safe)
    return np.where(mean > 0, drawn, 0.0)


def _labels(state: IndexArray) -> pl.Series:
    """States as text, s0, s1, …, [rows]."""
    return pl.select(pl.concat_str(pl.lit("s"), pl.Series(state).cast(pl.String))).to_series()


_ACTIONS = 4
_BASE_REWARD = 1.18155
_FIRST_REWARD = 0.84396
_SECOND_REWARD = 0.65112
_BASE_COST = 0.71475
_COST_STEP = 0.5


def two_step_problem() -> FiniteProblem:
    """Four envelopes, sent twice: state 0 first, then state i + 1 after action i; calibrated to the paper's table."""
    action = np.arange(_ACTIONS)
    state = np.arange(_ACTIONS + 1)
    first = _BASE_REWARD + _FIRST_REWARD * np.sqrt(state)
    rewards = first[:, None] + (action - state[:, None]) * _SECOND_REWARD
    rewards[0] = first[:_ACTIONS]
    transitions = np.zeros((len(state), _ACTIONS, len(state)))
    transitions[0, action, action + 1] = 1.0
    return FiniteProblem(
        rewards=rewards,
        costs=np.tile(_BASE_COST + _COST_STEP * action, (len(state), 1)),
        transitions=transitions,
        initial=np.eye(len(state))[0],
        steps=2,
    )


def two_step(reward_variance: float = 0.1) -> FiniteCampaign:
    """The campaign of the two-step problem: uniform logging, cost variance 0.1, reward variance free."""
    return FiniteCampaign(two_step_problem(), reward_variance=reward_variance, cost_variance=0.1)

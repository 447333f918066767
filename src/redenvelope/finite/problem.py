"""A finite constrained MDP as arrays (`FiniteProblem`): exact evaluation of policies, and backward induction at many
prices at once, with or without entropy. Tests and simulated campaigns take their truth from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import BoolArray, FloatArray
from redenvelope.errors import ProblemError, UsageError
from redenvelope.prices import checked_prices, outcome_weights

# The problem, and the exact value of any policy.


# Rows of a transition matrix are sums of a few hundred float64 numbers.
_PROBABILITY_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class FiniteProblem:
    """A constrained Markov decision process over `steps` steps, with one budget or several.

    A row of `transitions` may sum to less than one: the remaining users leave the campaign there,
    and neither cost nor earn anything afterwards.
    """

    rewards: FloatArray
    """Mean reward, [states, actions]."""
    costs: FloatArray
    """Mean cost that counts against each budget, [budgets, states, actions]; or [states, actions] for one budget."""
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
        """Number of budgets, each with a table of costs."""
        return int(self.costs.shape[0])

    @cached_property
    def outcomes(self) -> FloatArray:
        """The rewards, then the costs of each budget, [outcomes, states, actions]."""
        return np.concatenate([self.rewards[None], self.costs])

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """Which actions a state allows, [states, actions]; all true if `eligible` is None."""
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
        expected = {"transitions": (states, actions, states), "initial": (states,)}
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
    """Occupancy measure: the share of users in each state at each step with each action, [steps, states, actions].

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
    """The policy as a valid table, float64 [steps, states, actions], with rows normalised."""
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


# Exact backward induction at many prices at once, with or without entropy.
#
# `Ranking` scores actions and breaks ties; `expectation` takes the mean over next states, by a dense or sparse
# product.


# Numbers in one block of action values: larger blocks would not stay in the cache.
_BLOCK_NUMBERS = 2**21


@dataclass(frozen=True, eq=False)
class FinitePolicy:
    """A policy as a table."""

    table: FloatArray
    """Probability of each action, [steps, states, actions]."""

    def probabilities(self, states: NDArray[np.integer], steps_left: int) -> FloatArray:
        """Probability of each action for states given by index: [n] -> [n, actions]."""
        steps = self.table.shape[0]
        if not 1 <= steps_left <= steps:
            raise UsageError(f"steps_left must be between 1 and {steps}, not {steps_left}")
        return np.asarray(self.table[steps - steps_left][states])


@dataclass(frozen=True, eq=False)
class ExactPlans:
    """The optimal plan at each row of prices, as tables."""

    prices: FloatArray
    """[prices, budgets]."""
    action_values: FloatArray
    """Penalised reward (and entropy bonus) to go, [prices, steps, states, actions]; −inf if not allowed. At an infinite
    price, the reward of the actions of least cost and −inf for the others."""
    probabilities: FloatArray
    """[prices, steps, states, actions]."""
    outcomes: FloatArray
    """Mean reward per user, without entropy bonus, and mean costs, [outcomes, prices]."""

    def policy(self, position: int) -> FinitePolicy:
        """The policy of one row of prices."""
        return FinitePolicy(self.probabilities[position])


def backward_induction(
    problem: FiniteProblem, prices: ArrayLike, temperature: float = 0.0, lookahead: int | None = None
) -> ExactPlans:
    """Plan at every row of prices [prices, budgets] and return all tables; `exact_price` returns only the outcomes.

    With one budget, prices may be a plain list. An infinite price minimises that cost, then the costs in the order of
    budgets, then maximises reward. Without entropy, ties (up to rounding) are broken by the lowest costs to go in the
    order of budgets, then by the greatest reward, then by the first action. With `lookahead` the policy plans only that
    many steps ahead, again at every step; 1 is the bandit. Its outcomes are still those of all steps.
    """
    table = checked_prices(prices, problem.budgets)
    stages = list(_stages(problem, table, temperature, lookahead))[::-1]
    return ExactPlans(
        prices=table,
        action_values=np.stack([stage.action_values for stage in stages], axis=1),
        probabilities=np.stack([stage.decision.probabilities(problem.actions) for stage in stages], axis=1),
        outcomes=stages[0].to_go[: 1 + problem.budgets] @ problem.initial,
    )


def finite_policy(
    problem: FiniteProblem, price: ArrayLike, temperature: float = 0.0, lookahead: int | None = None
) -> FinitePolicy:
    """The optimal policy at one price, a number or [budgets]."""
    return backward_induction(problem, np.reshape(price, (1, -1)), temperature, lookahead).policy(0)


def exact_price(
    problem: FiniteProblem, temperature: float = 0.0, lookahead: int | None = None
) -> Callable[[FloatArray], FloatArray]:
    """The price function of the exact plans: prices [prices, budgets] -> outcomes [outcomes, prices]."""
    outcomes, expect = 1 + problem.budgets, expectation(problem)
    block = max(1, _BLOCK_NUMBERS // (problem.states * problem.actions))

    def price(prices: FloatArray) -> FloatArray:
        table = checked_prices(prices, problem.budgets)
        values = np.empty((outcomes, len(table)))
        for start in range(0, len(table), block):
            part = slice(start, start + block)
            for stage in _stages(problem, table[part], temperature, lookahead, expect):
                last = stage.to_go
            values[:, part] = last[:outcomes] @ problem.initial
        return values

    return price


class _Choices(NamedTuple):
    """A deterministic decision: one action for each state, [prices, states]."""

    choices: NDArray[np.intp]

    def average(self, values: FloatArray) -> FloatArray:
        """[..., prices, states, actions] -> [..., prices, states]."""
        index = np.broadcast_to(self.choices[..., None], (*values.shape[:-1], 1))
        return np.asarray(np.take_along_axis(values, index, axis=-1)[..., 0])

    def probabilities(self, actions: int) -> FloatArray:
        """[prices, states, actions]."""
        return np.asarray(self.choices[..., None] == np.arange(actions), dtype=np.float64)

    def entropy(self) -> FloatArray:
        """[prices, states]."""
        return np.zeros(self.choices.shape)


class _Shares(NamedTuple):
    """A random decision: a probability for each action, [prices, states, actions]."""

    shares: FloatArray

    def average(self, values: FloatArray) -> FloatArray:
        """[..., prices, states, actions] -> [..., prices, states]."""
        return np.asarray(np.einsum("...psa,psa->...ps", values, self.shares))

    def probabilities(self, actions: int) -> FloatArray:
        """[prices, states, actions]."""
        return self.shares

    def entropy(self) -> FloatArray:
        """[prices, states]."""
        logarithms = np.log(self.shares, where=self.shares > 0, out=np.zeros_like(self.shares))
        return -np.asarray((self.shares * logarithms).sum(axis=-1))


class _Stage(NamedTuple):
    """One step of backward induction."""

    action_values: FloatArray
    """[prices, states, actions]."""
    decision: _Choices | _Shares
    to_go: FloatArray
    """Outcomes to go and, with entropy, its bonus: [outcomes (+ 1), prices, states]."""


def _stages(
    problem: FiniteProblem,
    prices: FloatArray,
    temperature: float,
    lookahead: int | None,
    expect: Expectation | None = None,
) -> Iterator[_Stage]:
    """The stages of backward induction, from the last step to the first."""
    if not (np.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"temperature must be zero or a positive number, not {temperature}")
    if lookahead is not None and lookahead < 1:
        raise UsageError(f"lookahead must be at least 1 step, not {lookahead}")
    expect = expect or expectation(problem)
    ranking = Ranking.at(problem, prices)
    outcomes = problem.outcomes
    if temperature > 0:
        outcomes = np.concatenate([outcomes, np.zeros((1, *outcomes.shape[1:]))])
    to_go = np.zeros((len(outcomes), len(prices), problem.states))
    for depth in range(1, problem.steps + 1):
        ahead = outcomes[:, None] + (expect(to_go) if depth > 1 else 0.0)
        ahead = np.broadcast_to(ahead, (*to_go.shape, problem.actions))
        # With more steps left than the lookahead, the same decision is used again; only its outcomes accumulate.
        if lookahead is None or depth <= lookahead:
            scores = ranking.scores(ahead)
            decision: _Choices | _Shares = (
                _soft(scores, temperature) if temperature > 0 else _Choices(ranking.choices(scores, ahead))
            )
        to_go = decision.average(ahead)
        if temperature > 0:
            to_go[-1] += temperature * decision.entropy()
        yield _Stage(scores, decision, to_go)


def _soft(scores: FloatArray, temperature: float) -> _Shares:
    best = scores.max(axis=-1, keepdims=True)
    weights = np.exp((scores - best) / temperature)
    return _Shares(weights / weights.sum(axis=-1, keepdims=True))


# Action values at most this many roundings apart count as equal: they may be the same sum in another order.
_TIE_ROUNDINGS = 16.0


class Ranking(NamedTuple):
    """The order of actions at some prices: by value, then by the costs in the order of budgets, then by reward.

    A row with an infinite price keeps the actions that are least in those costs, then in all costs in the order of
    budgets; these are ranked by reward, even with entropy, as in the limit of ever higher prices.
    """

    weights: FloatArray
    """Weight of each cost in a score, [budgets, prices, 1, 1]; 0 for rows with an infinite price."""
    alone: NDArray[np.intp]
    """The rows with an infinite price, [rows]."""
    alone_weights: FloatArray
    """Weight of each cost in these rows, [budgets, rows, 1, 1]: 1 if its price is infinite, else 0."""
    allowed: BoolArray | None
    """[states, actions]; None allows all."""
    roundings: FloatArray
    """Largest rounding difference between equal outcomes to go, [outcomes]."""
    score_rounding: FloatArray
    """Largest rounding difference between equal scores, [prices, 1, 1]; it grows with the price, so that an action that
    lost a tie against a cheaper one does not win it back at a higher price."""

    @classmethod
    def at(cls, problem: FiniteProblem, prices: FloatArray) -> Ranking:
        """The ranking at prices [prices, budgets]."""
        weights = outcome_weights(prices)
        alone = weights[0] == 0
        scored = np.where(alone, 0.0, weights[1:])
        unit = _TIE_ROUNDINGS * np.finfo(float).eps * problem.steps
        roundings = unit * np.abs(problem.outcomes).max(axis=(1, 2))
        return cls(
            weights=scored[:, :, None, None],
            alone=np.flatnonzero(alone),
            alone_weights=-weights[1:, alone, None, None],
            allowed=problem.eligible,
            roundings=roundings,
            score_rounding=(roundings[0] - roundings[1:] @ scored)[:, None, None],
        )

    def scores(self, to_go: FloatArray) -> FloatArray:
        """Penalised reward of outcomes to go [outcomes (+ 1), prices, states, actions], [prices, states, actions].

        An entropy bonus after the outcomes is added. Actions that are not allowed, or that an infinite price rules out,
        get −inf.
        """
        outcomes = len(self.roundings)
        scores = np.asarray(to_go[0] + self.weights[0] * to_go[1])
        for weight, cost in zip(self.weights[1:], to_go[2:outcomes], strict=True):
            scores += weight * cost
        for bonus in to_go[outcomes:]:
            scores += bonus
        if self.allowed is not None:
            scores = np.where(self.allowed, scores, -np.inf)
        if len(self.alone):
            left = self._cheapest(to_go[:, self.alone])
            scores[self.alone] = np.where(left, scores[self.alone], -np.inf)
        return scores

    def choices(self, scores: FloatArray, to_go: FloatArray) -> NDArray[np.intp]:
        """The best action by scores [prices, states, actions], with ties broken by outcomes to go: [prices, states]."""
        ties = scores >= scores.max(axis=-1, keepdims=True) - self.score_rounding
        choices = ties.argmax(axis=-1)
        # Ties are rare: only their rows are examined again.
        if np.count_nonzero(ties) > choices.size:
            rows = np.nonzero(np.count_nonzero(ties, axis=-1) > 1)
            choices[rows] = self._among_equals(ties[rows], to_go[:, rows[0], rows[1]])
        return np.asarray(choices)

    def _cheapest(self, to_go: FloatArray) -> BoolArray:
        """The actions that an infinite price keeps: [outcomes, rows, states, actions] -> [rows, states, actions]."""
        dear = np.asarray((self.alone_weights * to_go[1 : len(self.roundings)]).sum(axis=0))
        rounding = (self.roundings[1:, None, None, None] * self.alone_weights).sum(axis=0)
        every = np.ones(dear.shape, dtype=bool) if self.allowed is None else np.broadcast_to(self.allowed, dear.shape)
        return self._least_costs(_least(dear, every, rounding), to_go)

    def _among_equals(self, candidates: BoolArray, to_go: FloatArray) -> NDArray[np.intp]:
        """The winner among candidates [rows, actions] with outcomes to go [outcomes, rows, actions], [rows]."""
        candidates = self._least_costs(candidates, to_go)
        candidates = _least(-to_go[0], candidates, self.roundings[0])
        return np.asarray(np.where(candidates, to_go[1], np.inf).argmin(axis=-1))

    def _least_costs(self, candidates: BoolArray, to_go: FloatArray) -> BoolArray:
        """The candidates [..., actions] with the lowest costs, budget after budget."""
        for cost, rounding in zip(to_go[1 : len(self.roundings)], self.roundings[1:], strict=True):
            candidates = _least(cost, candidates, rounding)
        return candidates


def _least(values: FloatArray, candidates: BoolArray, rounding: FloatArray) -> BoolArray:
    """The candidates with the smallest value, up to rounding, [..., actions]."""
    of_candidates = np.where(candidates, values, np.inf)
    return np.asarray(of_candidates <= of_candidates.min(axis=-1, keepdims=True) + rounding)


Expectation = Callable[[FloatArray], FloatArray]
"""The map from values of next states to their means: [..., states] -> [..., states, actions]."""

# Below this share of nonzero transitions a sparse product reads less memory than a dense one.
_SPARSE_SHARE = 0.1
# Multiplications up to which the matrix library does not copy its arguments, and the fewest pairs worth a call.
_SMALL_PRODUCT = 900_000
_FEWEST_PAIRS = 40


def expectation(problem: FiniteProblem) -> Expectation:
    """The map from values of next states to their means: [..., states] -> [..., states, actions]."""
    matrix = problem.transitions.reshape(-1, problem.states)
    shape = (problem.states, problem.actions)
    multiply: Expectation
    # A sample of rows is enough, because the choice only matters for speed.
    if np.count_nonzero(matrix[::16]) > _SPARSE_SHARE * matrix[::16].size:
        multiply = partial(_dense_product, matrix)
    else:
        multiply = partial(_sparse_product, _sparse(matrix))

    def expect(values: FloatArray) -> FloatArray:
        return multiply(values.reshape(-1, shape[0])).reshape(*values.shape[:-1], *shape)

    return expect


def _dense_product(matrix: FloatArray, values: FloatArray) -> FloatArray:
    """`values @ matrix.T`, [few, states] @ [states, pairs].

    In small blocks the library multiplies in place; at once it would first copy the matrix, which for few rows of
    values takes longer than the product.
    """
    pairs = _SMALL_PRODUCT // values.size
    if pairs < _FEWEST_PAIRS:
        return np.asarray(values @ matrix.T)
    columns = np.ascontiguousarray(values.T)
    product = np.empty((len(matrix), len(values)))
    for start in range(0, len(matrix), pairs):
        np.matmul(matrix[start : start + pairs], columns, out=product[start : start + pairs])
    return np.ascontiguousarray(product.T)


def _sparse(matrix: FloatArray) -> Any:
    """A matrix in sparse form; scipy's own conversion passes over it several times."""
    from scipy import sparse  # costs more to import than the rest of the package

    places = np.flatnonzero(matrix)
    starts = np.searchsorted(places, np.arange(len(matrix) + 1) * matrix.shape[1])
    return sparse.csr_array((matrix.reshape(-1)[places], places % matrix.shape[1], starts), shape=matrix.shape)


def _sparse_product(matrix: Any, values: FloatArray) -> FloatArray:
    """`values @ matrix.T`, [few, states] @ [states, pairs], for a sparse matrix."""
    return np.ascontiguousarray((matrix @ values.T).T)

"""Exact backward induction for a vector of duals at once, hard or with entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.finite.problem import FiniteProblem

__all__ = ["ExactPlans", "FinitePolicy", "backward_induction", "exact_price", "finite_policy"]

FloatArray = NDArray[np.float64]
Expectation = Callable[[FloatArray], FloatArray]

# Two action values this many roundings apart are the same number, added up in another order.
_TIE_ROUNDINGS = 16.0
# Below this share of nonzero transitions a sparse product reads less memory than a dense one.
_SPARSE_SHARE = 0.1
# Numbers in one block of action values: larger blocks fall out of the cache and run no faster.
_BLOCK_NUMBERS = 2**21
# Multiplications up to which the matrix library skips its copying, and the fewest pairs worth a call.
_SMALL_PRODUCT = 900_000
_FEWEST_PAIRS = 40


@dataclass(frozen=True, eq=False)
class FinitePolicy:
    """A policy written out as a table."""

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
    """The best plan at each dual, written out."""

    duals: FloatArray
    """[duals]."""
    action_values: FloatArray
    """Penalised reward (and entropy bonus) to go, [duals, steps, states, actions]; -inf if ruled out."""
    probabilities: FloatArray
    """[duals, steps, states, actions]."""
    costs: FloatArray
    """Mean cost a user, [duals]."""
    rewards: FloatArray
    """Mean reward a user, without entropy bonus, [duals]."""

    def policy(self, position: int) -> FinitePolicy:
        """The policy of one of the duals."""
        return FinitePolicy(self.probabilities[position])


def backward_induction(
    problem: FiniteProblem, duals: ArrayLike, temperature: float = 0.0, lookahead: int | None = None
) -> ExactPlans:
    """Plan at every dual and keep everything; `exact_price` keeps only costs and rewards.

    A dual of infinity plans on cost alone, and on reward among what is equally cheap. Without entropy,
    equal action values (up to rounding) go to the action with the least cost to go, then to the first.
    With `lookahead` the policy plans that many steps ahead again at every step; 1 is the bandit. Its
    costs and rewards are still those of all steps.
    """
    duals = _checked_duals(duals)
    stages = list(_stages(problem, duals, temperature, lookahead))[::-1]
    return ExactPlans(
        duals=duals,
        action_values=np.stack([stage.action_values for stage in stages], axis=1),
        probabilities=np.stack([stage.decision.probabilities(problem.actions) for stage in stages], axis=1),
        costs=stages[0].to_go[1] @ problem.initial,
        rewards=stages[0].to_go[0] @ problem.initial,
    )


def finite_policy(
    problem: FiniteProblem, dual: float, temperature: float = 0.0, lookahead: int | None = None
) -> FinitePolicy:
    """The policy that is best at one dual."""
    return backward_induction(problem, [dual], temperature, lookahead).policy(0)


def exact_price(
    problem: FiniteProblem, temperature: float = 0.0, lookahead: int | None = None
) -> Callable[[FloatArray], tuple[FloatArray, FloatArray]]:
    """The function duals -> (costs, rewards), both [duals], of the plan at each dual."""
    expect = _expectation(problem)
    block = max(1, _BLOCK_NUMBERS // (problem.states * problem.actions))

    def price(duals: FloatArray) -> tuple[FloatArray, FloatArray]:
        duals = _checked_duals(duals)
        costs, rewards = np.empty_like(duals), np.empty_like(duals)
        for start in range(0, len(duals), block):
            part = slice(start, start + block)
            for stage in _stages(problem, duals[part], temperature, lookahead, expect):
                last = stage.to_go
            costs[part], rewards[part] = last[1] @ problem.initial, last[0] @ problem.initial
        return costs, rewards

    return price


class _Choices(NamedTuple):
    """One action for each state: [duals, states]."""

    choices: NDArray[np.intp]

    def average(self, values: FloatArray) -> FloatArray:
        """[..., duals, states, actions] -> [..., duals, states]."""
        index = np.broadcast_to(self.choices[..., None], (*values.shape[:-1], 1))
        return np.asarray(np.take_along_axis(values, index, axis=-1)[..., 0])

    def probabilities(self, actions: int) -> FloatArray:
        """[duals, states, actions]."""
        return np.asarray(self.choices[..., None] == np.arange(actions), dtype=np.float64)

    def entropy(self) -> FloatArray:
        """[duals, states]."""
        return np.zeros(self.choices.shape)


class _Shares(NamedTuple):
    """A probability for each action: [duals, states, actions]."""

    shares: FloatArray

    def average(self, values: FloatArray) -> FloatArray:
        """[..., duals, states, actions] -> [..., duals, states]."""
        return np.asarray(np.einsum("...dsa,dsa->...ds", values, self.shares))

    def probabilities(self, actions: int) -> FloatArray:
        """[duals, states, actions]."""
        return self.shares

    def entropy(self) -> FloatArray:
        """[duals, states]."""
        logarithms = np.log(self.shares, where=self.shares > 0, out=np.zeros_like(self.shares))
        return -np.asarray((self.shares * logarithms).sum(axis=-1))


class _Stage(NamedTuple):
    """One step of the recursion."""

    action_values: FloatArray
    """[duals, states, actions]."""
    decision: _Choices | _Shares
    to_go: FloatArray
    """Reward, cost (and entropy bonus, if there is entropy) to go: [2 or 3, duals, states]."""


def _stages(
    problem: FiniteProblem,
    duals: FloatArray,
    temperature: float,
    lookahead: int | None,
    expect: Expectation | None = None,
) -> Iterator[_Stage]:
    """The stages of the recursion, from the last step to the first."""
    if not (np.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"temperature must be zero or a positive number, not {temperature}")
    if lookahead is not None and lookahead < 1:
        raise UsageError(f"lookahead must be at least 1 step, not {lookahead}")
    expect = expect or _expectation(problem)
    components = 3 if temperature > 0 else 2
    outcomes = np.stack([problem.rewards, problem.costs, np.zeros_like(problem.costs)])[:components]
    weights = np.where(np.isinf(duals), 0.0, duals)[:, None, None]
    rounding = _rounding(problem, weights)
    to_go = np.zeros((components, len(duals), problem.states))
    for depth in range(1, problem.steps + 1):
        ahead = outcomes[:, None] + (expect(to_go) if depth > 1 else 0.0)
        ahead = np.broadcast_to(ahead, (*to_go.shape, problem.actions))
        # Deeper than the lookahead the policy stays the one just planned: only what it earns goes on.
        if lookahead is None or depth <= lookahead:
            scores = ahead[0] - weights * ahead[1] + (ahead[2] if temperature > 0 else 0.0)
            scores = _rule_out(scores, problem, ahead[1], duals)
            decision: _Choices | _Shares = (
                _soft(scores, temperature) if temperature > 0 else _hard(scores, ahead[1], rounding)
            )
        to_go = decision.average(ahead)
        if temperature > 0:
            to_go[2] += temperature * decision.entropy()
        yield _Stage(scores, decision, to_go)


def _hard(scores: FloatArray, costs: FloatArray, rounding: FloatArray) -> _Choices:
    best = scores.max(axis=-1, keepdims=True)
    return _Choices(np.where(scores >= best - rounding, costs, np.inf).argmin(axis=-1))


def _soft(scores: FloatArray, temperature: float) -> _Shares:
    best = scores.max(axis=-1, keepdims=True)
    weights = np.exp((scores - best) / temperature)
    return _Shares(weights / weights.sum(axis=-1, keepdims=True))


def _rule_out(scores: FloatArray, problem: FiniteProblem, costs: FloatArray, duals: FloatArray) -> FloatArray:
    """Scores with -inf where a state does not allow an action, or an infinite dual finds it too dear."""
    if problem.eligible is not None:
        scores = np.where(problem.eligible, scores, -np.inf)
    infinite = np.isinf(duals)
    if infinite.any():
        allowed_costs = np.where(problem.allowed, costs[infinite], np.inf)
        cheapest = allowed_costs.min(axis=-1, keepdims=True)
        slack = _TIE_ROUNDINGS * np.finfo(float).eps * problem.steps * np.abs(problem.costs).max()
        scores[infinite] = np.where(allowed_costs <= cheapest + slack, scores[infinite], -np.inf)
    return scores


def _rounding(problem: FiniteProblem, weights: FloatArray) -> FloatArray:
    """How far apart equal action values may come out, [duals, 1, 1]; grows with the dual, so that an
    action which lost a tie against a cheaper one does not win it back at a higher dual."""
    scale = np.abs(problem.rewards).max() + weights * np.abs(problem.costs).max()
    return np.asarray(_TIE_ROUNDINGS * np.finfo(float).eps * problem.steps * scale)


def _expectation(problem: FiniteProblem) -> Expectation:
    """The map from values of next states to their means: [..., states] -> [..., states, actions]."""
    matrix = problem.transitions.reshape(-1, problem.states)
    shape = (problem.states, problem.actions)
    multiply: Expectation
    # Some rows are enough to tell: it is a choice of speed, not of result.
    if np.count_nonzero(matrix[::16]) > _SPARSE_SHARE * matrix[::16].size:
        multiply = partial(_dense_product, matrix)
    else:
        multiply = partial(_sparse_product, _sparse(matrix))

    def expect(values: FloatArray) -> FloatArray:
        return multiply(values.reshape(-1, shape[0])).reshape(*values.shape[:-1], *shape)

    return expect


def _dense_product(matrix: FloatArray, values: FloatArray) -> FloatArray:
    """`values @ matrix.T`, [few, states] @ [states, pairs].

    In small blocks the library multiplies in place; in one piece it first copies the matrix, which for few
    rows of values takes longer than the product.
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
    """The nonzero numbers of a matrix; scipy's own conversion passes over it several times."""
    from scipy import sparse  # costs more to import than the rest of the package

    places = np.flatnonzero(matrix)
    starts = np.searchsorted(places, np.arange(len(matrix) + 1) * matrix.shape[1])
    return sparse.csr_array((matrix.reshape(-1)[places], places % matrix.shape[1], starts), shape=matrix.shape)


def _sparse_product(matrix: Any, values: FloatArray) -> FloatArray:
    """`values @ matrix.T`, [few, states] @ [states, pairs], for a sparse matrix."""
    return np.ascontiguousarray((matrix @ values.T).T)


def _checked_duals(duals: ArrayLike) -> FloatArray:
    checked = np.atleast_1d(np.asarray(duals, dtype=np.float64))
    if checked.ndim != 1 or not (checked >= 0).all():
        raise UsageError("duals must be a list of numbers of at least 0 (infinity plans on cost alone)")
    return checked

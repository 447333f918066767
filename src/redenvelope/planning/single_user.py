"""The tree planner for one user at a time: the batch planner's decisions, without a compiled program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import BoolArray, Float32Array, FloatArray
from redenvelope.errors import ModelError
from redenvelope.models.charges import Charges
from redenvelope.models.networks import ValueNetwork, networks_at
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.single.folding import single_inputs, single_outcomes, single_trunk
from redenvelope.models.single.model import SingleModel, quiet, single_future, single_model
from redenvelope.models.single.networks import Future, Heads, Inputs, Outcomes, Trunk, softmax
from redenvelope.planning.planner import TreePlanner, checked_states
from redenvelope.planning.q_values import LearnedValues, checked_duals, supported
from redenvelope.planning.tree import NodeMasks, branch_shares
from redenvelope.policies.action_values import ActionValues
from redenvelope.policies.eligibility_state import EligibilityState, allowed, eligibility_state
from redenvelope.policies.policy import Constraint, checked_eligible, checked_steps_left
from redenvelope.prices import checked_prices, outcome_weights


@dataclass(frozen=True, eq=False)
class SinglePlanner:
    """Plans one user's tree at the prices of a plan."""

    model: SingleModel
    planner: TreePlanner
    """Whose decisions these are: the shape of the tree, temperature and discount are its own."""
    terms: tuple[Terms, ...]
    """The prices."""
    depth: int
    shares: FloatArray | None
    """What each action's future takes from the branches past the first step, [actions, branches]; None where every
    action has a branch of its own."""
    constraint: Constraint | None = None
    """Asked at every node which actions a state allows."""
    charges: Charges | None = None
    """What budgets are charged of what is measured; None where the costs are as they are measured."""

    @classmethod
    def of(cls, planner: TreePlanner, model: NeuralModel, prices: ArrayLike) -> SinglePlanner:
        """A planner on a loaded model, for one user at a time and prices [prices, budgets]."""
        branching = planner.branching
        shares = None if branching.is_full else branch_shares(branching.actions, branching.branches).astype(np.float64)
        single, charges = single_model(model), getattr(planner.model, "charges", None)
        terms = new_terms(checked_prices(prices, planner.budgets), planner.temperature, planner.explore)
        return cls(single, planner, terms, branching.depth, shares, planner.constraint, charges)

    def at(self, prices: ArrayLike) -> SinglePlanner:
        """The same planner at other prices [prices, budgets]."""
        planner = self.planner
        table = checked_prices(prices, planner.budgets)
        return replace(self, terms=new_terms(table, planner.temperature, planner.explore))

    @quiet
    def decide(self, state: Float32Array, steps_left: int, eligible: OneEligible = None) -> SingleDecision:
        """What the actions are worth in a state [width]; `eligible` [actions] holds at every step of the tree, and a
        `EligibilityState` of one row says besides what constraints remember."""
        planner = self.planner
        require_asked(state, steps_left, planner.steps, eligible, self.model.actions, planner.columns)
        responses, tails = self._grow(state, min(steps_left, self.depth))
        levels, survival = responses, None
        if self.model.leaves:
            levels, survival = [level[:-1] for level in responses], [level[-1] for level in responses]
        if self.charges is not None:
            levels = [
                np.stack(self.charges.outcomes(list(level), nodes))
                for level, nodes in zip(levels, self._nodes(state, tails), strict=True)
            ]
        standing = one_standing(eligible, self.model.actions, self.constraint)
        barred = None if standing is None else self._barred(state, tails, steps_left, standing)
        roots = [back_up(levels, self.shares, terms, barred, planner.discount, survival) for terms in self.terms]
        return SingleDecision(gathered(self.terms, roots), levels[0][:, :, 0])

    def _grow(self, state: Float32Array, depth: int) -> tuple[list[FloatArray], list[Float32Array]]:
        """Responses to every action [responses, actions, nodes] (the outcomes, and where users leave the chance of a
        next step) and tails [nodes, tail] of every level."""
        layout, outcome = self.model.layout, self.model.outcome
        # The nodes of a level have the head of their state in common: the user's, so many steps on.
        heads = self.model.inputs.heads(state[None], self._steps(state, depth))
        constants = outcome.trunk.constant(heads), self.model.tail.trunk.constant(heads)
        levels: list[FloatArray] = []
        tails = [state[None, layout.step + 1 :]]
        for level in range(depth):
            means = outcome.means(constants[0][:, level, None], tails[level])
            levels.append(np.ascontiguousarray(means.transpose(0, 2, 1), dtype=np.float64))
            if level + 1 < depth:
                following = self.model.following(constants[1][:, level, None], tails[level], means)
                if level and self.shares is not None:
                    # A branch belongs to the action that takes all its future from it.
                    following = following[:, np.argmax(self.shares, axis=0)]
                # Not −1: where nothing of a state changes, a tail has no columns.
                tails.append(following.reshape(following.shape[0] * following.shape[1], following.shape[2]))
        return levels, tails

    def _nodes(self, state: Float32Array, tails: list[Float32Array]) -> list[Float32Array]:
        """The states of the nodes of every level, [nodes, width] each."""
        levels = []
        for tail, step in zip(tails, self._steps(state, len(tails)), strict=True):
            nodes = np.repeat(state[None], len(tail), axis=0)
            nodes[:, self.model.layout.step], nodes[:, self.model.layout.step + 1 :] = step, tail
            levels.append(nodes)
        return levels

    def _steps(self, state: Float32Array, depth: int) -> Float32Array:
        """The step's column of a state [width] and of the levels below it, [depth]."""
        layout = self.model.layout
        return np.asarray(state[layout.step] + np.arange(depth, dtype=np.float32) * np.float32(layout.step_change))

    def _barred(
        self, state: Float32Array, tails: list[Float32Array], steps_left: int, standing: EligibilityState
    ) -> list[FloatArray]:
        """−inf for what nodes may not choose, [actions, nodes or 1] for each level."""
        if self.constraint is None:
            return [penalties(standing.always[0])[:, None]] * len(tails)
        masks, barred = NodeMasks.at_root(standing, np.array([steps_left]), self.constraint), []
        for level, nodes in enumerate(self._nodes(state, tails)):
            barred.append(penalties(masks.at(nodes)[:, 0]))
            if level + 1 < len(tails):
                masks = masks.below(self.planner.branching.at_depth(len(tails)), level)
        return barred


# One user's values, backed up in plain arrays: few prices, few nodes, no compiled program.
#
# Actions stand before nodes, so that a maximum or a sum over actions runs along the nodes.


class SingleDecision(NamedTuple):
    """What one user's actions are worth, and what they bring at once."""

    values: ActionValues
    """Of one user."""
    outcomes: FloatArray
    """Of this step alone, [outcomes, actions]."""


class Terms(NamedTuple):
    """Prices that are decided alike: softly, or by the best."""

    places: NDArray[np.intp]
    """Which of all prices, [prices]."""
    weights: FloatArray
    """What the outcomes count in q, and then in each outcome, [1 + outcomes, prices, outcomes]."""
    temperature: float
    """0 takes the best."""
    explore: float = 0.0
    """Share of the decisions that is drawn evenly among what is allowed."""
    finite: bool = True


class Priced(NamedTuple):
    """Actions of some nodes at some prices."""

    worth: FloatArray
    """q, and then the outcomes to go, [1 + outcomes, prices, actions, nodes]."""
    probabilities: FloatArray
    """[prices, actions, nodes]."""


def new_terms(prices: FloatArray, temperature: float, explore: float = 0.0) -> tuple[Terms, ...]:
    """Prices [prices, budgets] in one or two groups: the finite ones, softly decided with a temperature, and others."""
    finite = np.isfinite(prices).all(axis=1)
    each = np.repeat(np.eye(1 + prices.shape[1])[:, None], len(prices), axis=1)
    weights = np.concatenate([outcome_weights(prices).T[None], each])
    groups = ((np.flatnonzero(finite), temperature, True), (np.flatnonzero(~finite), 0.0, False))
    return tuple(
        Terms(places, weights[:, places], warmth, explore, kind) for places, warmth, kind in groups if len(places)
    )


def back_up(
    levels: Sequence[FloatArray],
    shares: FloatArray | None,
    terms: Terms,
    barred: Sequence[FloatArray] | None,
    discount: float,
    survival: Sequence[FloatArray] | None = None,
) -> Priced:
    """The root of a tree of outcomes [outcomes, actions, nodes], one for each level.

    Past the first step an action's future is made of `shares` [actions, branches] of the branches; None is a branch
    for each. `barred` [actions, nodes or 1], one for each level, is −inf for what may not be chosen, else 0.
    `survival` [actions, nodes], one for each level but the last, is the chance of a next step; None is 1.
    """
    below: FloatArray | None = None
    for level in range(len(levels) - 1, -1, -1):
        count, actions, nodes = levels[level].shape
        worth = (terms.weights @ levels[level].reshape(count, -1)).reshape(1 + count, -1, actions, nodes)
        if below is not None:
            future = _future(below, nodes, shares if level else None, discount)
            worth += future if survival is None else survival[level] * future
        if barred is not None:
            worth[0] += barred[level]
        below = _nodes(worth, terms) if level else None
    return Priced(worth, choose(worth, terms)[0])


def _nodes(worth: FloatArray, terms: Terms) -> FloatArray:
    """Values and outcomes of nodes, [1 + outcomes, prices, nodes], from those of their actions."""
    probabilities, value = choose(worth, terms)
    found = np.empty((len(worth), *value.shape))
    found[0] = value
    np.add.reduce(probabilities * worth[1:], axis=2, out=found[1:])
    return found


def _future(below: FloatArray, nodes: int, shares: FloatArray | None, discount: float) -> FloatArray:
    """What follows actions at nodes, [..., actions, nodes], given the nodes below, [..., nodes · branches]."""
    branches = below.reshape(*below.shape[:2], nodes, -1).swapaxes(2, 3)
    if shares is not None:
        branches = shares @ branches
    return branches if discount == 1.0 else discount * branches


def choose(worth: FloatArray, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """Probabilities [prices, actions, nodes] and values [prices, nodes] of [1 + outcomes, prices, actions, nodes]."""
    probabilities, value = _chosen(worth, terms)
    if not terms.explore:
        return probabilities, value
    allowed = worth[0] > -np.inf
    even = allowed / np.add.reduce(allowed, axis=1, keepdims=True)
    mean = np.add.reduce(even * np.where(allowed, worth[0], 0.0), axis=1)
    share = terms.explore
    return (1 - share) * probabilities + share * even, (1 - share) * value + share * mean


def _chosen(worth: FloatArray, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """The same without exploration."""
    q = worth[0]
    best = np.maximum.reduce(q, axis=1)
    temperature = terms.temperature
    if not temperature:
        return _best(worth, best, terms.finite), best
    weights = q - best[:, None]
    weights *= 1.0 / temperature
    np.exp(weights, out=weights)
    total = np.add.reduce(weights, axis=1)
    weights /= total[:, None]
    value = np.log(total, out=total)
    value *= temperature
    value += best
    return weights, value


def _best(worth: FloatArray, best: FloatArray, finite: bool) -> FloatArray:
    """1 for the best action of each node, 0 for the others; ties go to the one that spends least in all; where prices
    are not finite to the least costs, in the order of budgets, then to the greatest reward."""
    equal = worth[0] == best[:, None]
    if np.count_nonzero(equal) > best.size:
        for outcome in (worth[2:].sum(axis=0),) if finite else (*worth[2:], -worth[1]):
            least = np.where(equal, outcome, np.inf)
            equal = least == least.min(axis=1, keepdims=True)
        # Who is equal in everything: the first.
        equal &= np.cumsum(equal, axis=1) == 1
    return np.asarray(equal, dtype=np.float64)


def gathered(terms: Sequence[Terms], roots: Sequence[Priced]) -> ActionValues:
    """Values of one user from the roots [.., 1 node] of each group of prices, in the order of all prices."""
    worth, probabilities = roots[0].worth[..., 0], roots[0].probabilities[..., 0]
    if len(roots) > 1:
        order = np.argsort(np.concatenate([group.places for group in terms]))
        worth = np.concatenate([root.worth[..., 0] for root in roots], axis=1)[:, order]
        probabilities = np.concatenate([root.probabilities[..., 0] for root in roots])[order]
    to_go = worth[1:, None]
    if not math.isfinite(np.add.reduce(to_go, axis=None)):
        raise ModelError(
            "the model's predictions for this user are not finite numbers, although the state is; the model may have "
            "diverged in training, or the state lies far outside its data"
        )
    return ActionValues(worth[:1], probabilities[None], to_go)


# Quick checks of what is asked about one user; what is wrong is said by the checks of many.

OneEligible = EligibilityState | BoolArray | None
"""What one user may get: a mask [actions], or where the user stands, as one row; None is all."""


def require_asked(
    state: NDArray[np.float32],
    steps_left: int,
    steps: int,
    eligible: OneEligible,
    actions: int,
    columns: tuple[str, ...] = (),
) -> None:
    """Raise unless a state [width] is finite, 1 to `steps` steps are left, and some action is eligible."""
    if not math.isfinite(np.add.reduce(state)):
        checked_states(state[None], columns)
    if not 1 <= steps_left <= steps:
        checked_steps_left(steps_left, 1, steps)
    if isinstance(eligible, EligibilityState):
        return
    if eligible is not None and not (eligible.shape == (actions,) and eligible.any()):
        checked_eligible(eligible[None], 1, actions)


def one_standing(eligible: OneEligible, actions: int, constraint: Constraint | None) -> EligibilityState | None:
    """Where the user stands, one row; None where nothing is ruled out."""
    if eligible is None and constraint is None:
        return None
    mask = eligible[None] if isinstance(eligible, np.ndarray) else eligible
    return eligibility_state(mask, 1, actions, constraint)


def penalties(allowed: BoolArray) -> NDArray[np.float64]:
    """−inf for what may not be chosen, else 0."""
    return np.where(allowed, 0.0, -np.inf)


# Learned values for one user at a time: the same decisions as for many, without a compiled program.


@dataclass(frozen=True, eq=False)
class SingleLearned:
    """Decides for one user at the prices of a plan."""

    learned: LearnedValues
    inputs: Inputs
    outcome: Outcomes
    behaviour: Trunk
    futures: tuple[Future, ...]
    """Of each step but the last, at the prices."""
    terms: tuple[Terms, ...]
    """The prices."""

    @classmethod
    def of(cls, learned: LearnedValues, prices: ArrayLike) -> SingleLearned:
        """Learned values for one user at a time and prices [prices, 1]."""
        immediate = learned.immediate
        targets = (immediate.rewarding, immediate.costing)
        trunks = [single_trunk(networks.network) for networks in _by_step(learned)]
        return cls(
            learned=learned,
            inputs=single_inputs(learned.layout),
            outcome=single_outcomes(immediate.outcome.network, targets, learned.actions),
            behaviour=single_trunk(immediate.behaviour.network),
            **_priced(learned, trunks, prices),
        )

    def at(self, prices: ArrayLike) -> SingleLearned:
        """The same values at other prices [prices, 1]."""
        return replace(self, **_priced(self.learned, [future.trunk for future in self.futures], prices))

    @quiet
    def decide(self, state: NDArray[np.float32], steps_left: int, eligible: OneEligible = None) -> SingleDecision:
        """What the actions are worth in a state [width]; `eligible` [actions], or an `EligibilityState` of one row,
        rules some out, and so does the guard."""
        learned, step = self.learned, self.learned.layout.step
        require_asked(state, steps_left, learned.steps, eligible, learned.actions)
        heads, tails = self.inputs.heads(state[None], state[step, None]), state[None, step + 1 :]
        now = self.outcome.means(self.outcome.trunk.constant(heads), tails)[:, 0].astype(np.float64)
        worth = np.zeros((self.prices, learned.components, learned.actions))
        stage = learned.steps - steps_left
        if stage < len(self.futures):
            later = self.futures[stage]
            worth += later.values(later.trunk.constant(heads), tails).reshape(worth.shape)
        worth[:, :2] += now
        standing = one_standing(eligible, learned.actions, learned.constraint)
        mask = np.ones((1, learned.actions), dtype=bool)
        if standing is not None:
            mask = allowed(standing, learned.constraint, state[None], np.array([steps_left]))
        barred = penalties(self._allowed(heads, tails, mask))
        return SingleDecision(gathered(self.terms, [_decided(worth, terms, barred) for terms in self.terms]), now)

    @property
    def prices(self) -> int:
        """Number of prices."""
        return sum(len(terms.places) for terms in self.terms)

    def _allowed(self, heads: Heads, tails: NDArray[np.float32], mask: BoolArray) -> BoolArray:
        """What may be chosen, [actions], of what is eligible, [1, actions]."""
        habits = softmax(self.behaviour.outputs(self.behaviour.constant(heads), tails)).mean(axis=0)
        return np.asarray(supported(habits >= self.learned.least_chance, mask)[0])


def _decided(worth: FloatArray, terms: Terms, barred: FloatArray) -> Priced:
    """One node with values [prices, components, actions], at some of the prices."""
    own, weights = worth[terms.places], terms.weights[0]
    earned = own[:, 0] if own.shape[1] == 2 else own[:, 0] + own[:, 2]
    q = weights[:, :1] * earned + weights[:, 1:] * own[:, 1] + barred
    table = np.stack([q, own[:, 0], own[:, 1]])[..., None]
    return Priced(table, choose(table, terms)[0])


def _by_step(learned: LearnedValues) -> list[ValueNetwork]:
    """The networks of each step but the last."""
    found = (networks_at(learned.futures, stage) for stage in range(learned.steps - 1))
    return [networks for networks in found if networks is not None]


def _priced(learned: LearnedValues, trunks: Sequence[Trunk], prices: ArrayLike) -> dict[str, Any]:
    """Futures and terms at prices [prices, 1]."""
    duals = checked_duals(prices)
    low, share = learned.around(duals)
    everyone = np.arange(len(duals))
    mixing = np.zeros((len(duals), len(learned.duals)))
    mixing[everyone, np.minimum(low + 1, len(learned.duals) - 1)] = share
    mixing[everyone, low] += 1.0 - share
    networks = _by_step(learned)
    return {
        "futures": tuple(single_future(*pair, mixing) for pair in zip(networks, trunks, strict=True)),
        "terms": new_terms(duals[:, None], learned.temperature, learned.explore),
    }

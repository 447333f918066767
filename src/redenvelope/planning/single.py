"""The tree planner for one user at a time: the batch planner's decisions, without a compiled program."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.models.charges import Charges
from redenvelope.models.neural import NeuralModel
from redenvelope.models.single.build import single_model
from redenvelope.models.single.model import SingleModel, quiet
from redenvelope.planning.branching import branch_shares
from redenvelope.planning.masks import NodeMasks
from redenvelope.planning.single_backup import SingleDecision, Terms, back_up, gathered, new_terms
from redenvelope.planning.single_checks import OneEligible, one_standing, penalties, require_asked
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.constraints import Constraint
from redenvelope.policies.standing import Standing
from redenvelope.prices import checked_prices

__all__ = ["SinglePlanner"]

FloatArray = NDArray[np.float64]
StateArray = NDArray[np.float32]


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
    def decide(self, state: StateArray, steps_left: int, eligible: OneEligible = None) -> SingleDecision:
        """What the actions are worth in a state [width]; `eligible` [actions] holds at every step of the tree, and a
        `Standing` of one row says besides what constraints remember."""
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

    def _grow(self, state: StateArray, depth: int) -> tuple[list[FloatArray], list[StateArray]]:
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

    def _nodes(self, state: StateArray, tails: list[StateArray]) -> list[StateArray]:
        """The states of the nodes of every level, [nodes, width] each."""
        levels = []
        for tail, step in zip(tails, self._steps(state, len(tails)), strict=True):
            nodes = np.repeat(state[None], len(tail), axis=0)
            nodes[:, self.model.layout.step], nodes[:, self.model.layout.step + 1 :] = step, tail
            levels.append(nodes)
        return levels

    def _steps(self, state: StateArray, depth: int) -> StateArray:
        """The step's column of a state [width] and of the levels below it, [depth]."""
        layout = self.model.layout
        return np.asarray(state[layout.step] + np.arange(depth, dtype=np.float32) * np.float32(layout.step_change))

    def _barred(
        self, state: StateArray, tails: list[StateArray], steps_left: int, standing: Standing
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

"""The tree planner for one user at a time: the batch planner's decisions, without a compiled program."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.models.neural import NeuralModel
from redenvelope.models.single.build import single_model
from redenvelope.models.single.model import SingleModel, quiet
from redenvelope.planning.single_backup import SingleDecision, Terms, back_up, gathered, new_terms
from redenvelope.planning.single_checks import penalties, require_state, require_steps_left
from redenvelope.planning.thinned import branch_shares
from redenvelope.planning.tree import TreePlanner
from redenvelope.prices import checked_prices

__all__ = ["SinglePlanner"]

FloatArray = NDArray[np.float64]


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

    @classmethod
    def of(cls, planner: TreePlanner, model: NeuralModel, prices: ArrayLike) -> SinglePlanner:
        """A planner on a loaded model, for one user at a time and prices [prices, budgets]."""
        branching = planner.branching
        shares = None if branching.is_full else branch_shares(branching.actions, branching.branches)
        single = single_model(model)
        terms = new_terms(checked_prices(prices, single.budgets), planner.temperature)
        return cls(single, planner, terms, branching.depth, None if shares is None else shares.astype(np.float64))

    def at(self, prices: ArrayLike) -> SinglePlanner:
        """The same planner at other prices [prices, budgets]."""
        return replace(self, terms=new_terms(checked_prices(prices, self.model.budgets), self.planner.temperature))

    @quiet
    def decide(
        self, state: NDArray[np.float32], steps_left: int, eligible: NDArray[np.bool_] | None = None
    ) -> SingleDecision:
        """What the actions are worth in a state [width]; `eligible` [actions] holds at every step of the tree."""
        require_state(state, self.planner.columns)
        require_steps_left(steps_left, self.planner.steps)
        barred = penalties(eligible, self.model.actions)
        levels = self._grow(state, min(steps_left, self.depth))
        roots = [back_up(levels, self.shares, terms, barred, self.planner.discount) for terms in self.terms]
        return SingleDecision(gathered(self.terms, roots), levels[0][:, :, 0])

    def _grow(self, state: NDArray[np.float32], depth: int) -> list[FloatArray]:
        """Outcomes of every action at every node, [outcomes, actions, nodes] for each level."""
        layout, outcome, tail = self.model.layout, self.model.outcome, self.model.tail
        # The nodes of a level have the head of their state in common: the user's, so many steps on.
        steps = state[layout.step] + np.arange(depth, dtype=np.float32) * np.float32(layout.step_change)
        heads = self.model.inputs.heads(state[None], steps)
        constants = outcome.trunk.constant(heads), tail.trunk.constant(heads)
        levels: list[FloatArray] = []
        tails = state[None, layout.step + 1 :]
        for level in range(depth):
            means = outcome.means(constants[0][:, level, None], tails)
            levels.append(np.ascontiguousarray(means.transpose(0, 2, 1), dtype=np.float64))
            if level + 1 < depth:
                following = tail.following(constants[1][:, level, None], tails, means)
                if level and self.shares is not None:
                    # A branch belongs to the action that takes all its future from it.
                    following = following[:, np.argmax(self.shares, axis=0)]
                tails = following.reshape(-1, following.shape[2])
        return levels

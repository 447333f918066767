"""Learned values for one user at a time: the same decisions as for many, without a compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.models.single.build import single_future
from redenvelope.models.single.folded_outcomes import single_outcomes
from redenvelope.models.single.folded_trunk import single_inputs, single_trunk
from redenvelope.models.single.model import quiet
from redenvelope.models.single.networks import Future, Outcomes, softmax
from redenvelope.models.single.trunk import Heads, Inputs, Trunk
from redenvelope.models.value_network import ValueNetwork, networks_at
from redenvelope.planning.learned_decisions import supported
from redenvelope.planning.learned_values import LearnedValues, checked_duals
from redenvelope.planning.single_backup import Priced, SingleDecision, Terms, choose, gathered, new_terms
from redenvelope.planning.single_checks import OneEligible, one_standing, penalties, require_asked
from redenvelope.policies.standing import allowed

__all__ = ["SingleLearned"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


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
        """What the actions are worth in a state [width]; `eligible` [actions], or a `Standing` of one row, rules some
        out, and so does the guard."""
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

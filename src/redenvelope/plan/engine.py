"""The decision engine: from encoded states to probabilities and draws. Every decision of a plan is made here, whether
for a table (`Plan.allocate`), for one user (`Decider`) or for requests that wait together (`serve`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import Float32Array, FloatArray, IntArray
from redenvelope.errors import ModelError
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.policies.eligibility_state import EligibilityState
from redenvelope.policies.policy import normalised
from redenvelope.policies.pricing import Pricing
from redenvelope.randomness import draw, fraction

ACTION_STREAM = "action"
"""Name of the stream that actions are drawn with."""


class Decisions(NamedTuple):
    """What a plan does for some users."""

    probabilities: FloatArray
    """Of each action, [users, actions]."""
    outcomes: FloatArray
    """Expected outcomes of this step alone, [outcomes, users, actions]."""
    followed: NDArray[np.intp]
    """Which row of the prices each user follows, [users]."""
    uniforms: FloatArray
    """What each action is drawn with: fixed by user, step and seed, [users]."""

    def actions(self) -> NDArray[np.intp]:
        """The actions drawn, [users]."""
        return draw(self.probabilities, self.uniforms)


class DecisionEngine:
    """Decides for any number of users at once by a deployed policy."""

    def __init__(self, policy: DeployedPolicy, seed: int = 0, least_prices: int = 1) -> None:
        """`least_prices` rows of prices are decided for at least: a number of rows is compiled for once, and nobody
        waits for another when the pricing of a campaign gains a row."""
        self._policy, self._seed, self._least = policy, seed, least_prices

    def decide(
        self,
        states: Float32Array,
        step: IntArray,
        standing: EligibilityState | None,
        keys: NDArray[np.uint64],
        pricing: Pricing | None = None,
    ) -> Decisions:
        """Decide for states [users, width] of users with these keys [users] at their steps [users].

        `pricing` is the policy's own if None.
        """
        policy = self._policy
        pricing = policy.pricing if pricing is None else pricing
        followed = pricing.drawn(keys, self._seed)
        table = _filled(pricing.table, self._least)
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is refused below
            found = policy.valuer.decided(states, policy.steps_left(step), table, standing)
            probabilities = normalised(found.probabilities[np.arange(len(keys)), followed])
        outcomes = np.asarray(found.outcomes, dtype=np.float64)
        _require_numbers(probabilities.sum(axis=1) + outcomes.sum(axis=(0, 2)))
        return Decisions(probabilities, outcomes, followed, fraction(keys, ACTION_STREAM, self._seed, step))


def stacked(standings: Sequence[EligibilityState | None], actions: int, columns: int) -> EligibilityState:
    """Where users stand, from where each of them stands, one row each; None allows all.

    Users who may get everything are listed too, so that one compiled program decides for all.
    """
    everything = EligibilityState(np.ones((1, actions), dtype=bool), np.zeros((1, columns), np.int16))
    each = [everything if standing is None else standing for standing in standings]
    return EligibilityState(np.concatenate([one.always for one in each]), np.concatenate([one.memory for one in each]))


def _filled(table: FloatArray, rows: int) -> FloatArray:
    """Prices [prices, budgets] of at least so many rows, the last one repeated."""
    missing = rows - len(table)
    return table if missing <= 0 else np.concatenate([table, np.repeat(table[-1:], missing, axis=0)])


def _require_numbers(totals: ArrayLike) -> None:
    """Refuse decisions that are no numbers, [users]: what was learned is damaged, or beyond all bounds."""
    wrong = np.flatnonzero(~np.isfinite(totals))
    if len(wrong):
        raise ModelError(
            f"row {wrong[0] + 1:,}: what the plan learned gives no number for this user ({len(wrong)} row(s) like "
            "it); fit the plan again, or ask who made it"
        )

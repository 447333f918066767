"""Action values per user and price (`ActionValues`), and the protocol of what computes them (`Valuer`): tree planners
and learned values give the same record, so that decisions, searches and estimates do not depend on which."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.policies.eligibility_state import Eligible


class ActionValues(NamedTuple):
    """Values and decisions for some users at some prices; numpy arrays, or jax arrays inside a compiled program."""

    q: Any
    """Penalised reward to go plus the entropy bonus of later steps, [users, prices, actions]; −inf if not eligible.
    Minus the cost to go if the price is infinite."""
    probabilities: Any
    """Probability of each first action, [users, prices, actions]."""
    to_go: Any
    """Outcomes to go of the action and the policy after it, without entropy bonus, [outcomes, users, prices, actions]:
    the reward, then one cost for each budget."""

    def expected(self) -> NDArray[np.float64]:
        """Outcomes of following the policy, [outcomes, users, prices]."""
        return np.asarray(np.einsum("upa,oupa->oup", self.probabilities, self.to_go, dtype=np.float64))


class Decided(NamedTuple):
    """What a decision needs: probabilities, and the expected outcomes of this step."""

    probabilities: NDArray[np.float32]
    """Probability of each action, [users, prices, actions]."""
    outcomes: NDArray[np.float32]
    """Expected outcomes of this step alone, [outcomes, users, actions]."""


class Valuer(Protocol):
    """Computes action values at any prices."""

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        ...

    @property
    def budgets(self) -> int:
        """Number of budgets, which is that of the costs after the reward."""
        ...

    @property
    def depth(self) -> int:
        """Steps that the values look ahead."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about what was left out for speed or safety."""
        ...

    def values(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> ActionValues:
        """Action values of states [users, width] with steps left (a number, or [users]) at prices [prices, budgets]."""
        ...

    def decided(
        self,
        states: ArrayLike,
        steps_left: ArrayLike,
        prices: ArrayLike,
        eligible: Eligible = None,
        waiting: bool = False,
    ) -> Decided:
        """The probabilities of `values` and this step's `outcomes` in one pass: faster for many users at few prices.

        With `waiting`, latency counts: a few users are decided at once, as quickly as possible.
        """
        ...

    def outcomes(self, states: NDArray[np.float32]) -> NDArray[np.float64]:
        """Expected outcomes of this step alone: [users, width] -> [outcomes, users, actions]."""
        ...
